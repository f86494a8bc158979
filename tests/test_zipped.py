"""Archives and XML made to do harm: what they say of themselves is not believed, and nothing of them is half read."""

import struct
import zipfile
import zlib

import pytest

from ends.docxs import Entry, archive, entry, repeated
from lnk.documents.content import BOMB, DAMAGED, ENCRYPTED, LeftOut
from lnk.documents.xml import DEPTH_MAX, NAMES_MAX, NAMESPACE_CHARS_MAX, TAG_BYTES_MAX, local, parse
from lnk.documents.zipped import PART_BYTES_MAX, PARTS_MAX, TOTAL_BYTES_MAX, Archive

MIB = 1 << 20


def reason(*entries: Entry, name: str = "a.xml") -> str:
    """Why that part is left out."""
    return _reason_of(archive(entries), name)


def _reason_of(data: bytes, name: str = "a.xml") -> str:
    with pytest.raises(LeftOut) as left:
        Archive(data).read(name)
    return str(left.value)


# ---------------------------------------------------------------- archives


def test_parts_are_read_by_their_names():
    made = Archive(archive([entry(b"a.xml", b"one"), entry("ä/漢.xml".encode(), b"two", flags=0x800)]))
    assert made.names == ["a.xml", "ä/漢.xml"]
    assert (made.read("a.xml"), made.read("ä/漢.xml")) == (b"one", b"two")
    assert "a.xml" in made and "b.xml" not in made


def test_a_name_is_found_with_other_slashes_in_other_case_and_in_an_old_encoding():
    """case docx-12: names as some programs write them."""
    made = Archive(
        archive([entry(b"word\\Document.xml", b"one"), entry(b"/b.xml", b"two"), entry(b"\x84.xml", b"three")])
    )
    assert made.names == ["word/Document.xml", "b.xml", "ä.xml"]
    assert [made.read(name) for name in ("word/document.XML", "b.xml", "ä.xml")] == [b"one", b"two", b"three"]


def test_two_names_that_differ_in_case_are_two_parts():
    made = Archive(archive([entry(b"a.xml", b"one"), entry(b"A.xml", b"two")]))
    assert (made.read("a.xml"), made.read("A.xml")) == (b"one", b"two")


def test_a_part_that_is_there_twice_is_read_where_both_are_the_same():
    assert reason(entry(b"a.xml", b"one"), entry(b"a.xml", b"two")) == DAMAGED
    assert Archive(archive([entry(b"a.xml", b"one")] * 2)).read("a.xml") == b"one"


@pytest.mark.parametrize(
    "lies",
    [
        {"size": 2},
        {"size": 4},
        {"crc": 1},
        {"local_name": b"b.xml"},
        {"packed_size": 1},
        {"packed_size": 1 << 20},
        {"offset": 3},
        {"offset": 1 << 30},
        {"way": zipfile.ZIP_LZMA},
        {"way": zipfile.ZIP_BZIP2},
        {"way": 99},
        {"packed": b"\xff" * 40},
        {"packed": b""},
    ],
    ids=str,
)
def test_a_part_that_is_not_as_the_directory_says_is_damaged(lies):
    assert reason(entry(b"a.xml", b"one", **lies)) == DAMAGED


def test_what_the_local_header_says_of_sizes_does_not_count():
    assert Archive(archive([entry(b"a.xml", b"one", local_size=1 << 31)])).read("a.xml") == b"one"


def test_an_encrypted_part_is_said_to_be():
    assert reason(entry(b"a.xml", b"one", flags=1)) == ENCRYPTED


def test_parts_that_lie_over_one_another_are_refused():
    """case docx-09: the layout of a bomb whose parts share their bytes."""
    assert reason(entry(b"a.xml", b"one"), entry(b"b.xml", b"two", offset=0)) == DAMAGED
    assert reason(entry(b"a.xml", b"one"), entry(b"b.xml", b"two", offset=5)) == DAMAGED


def test_a_bomb_is_refused_by_what_it_says_and_by_what_comes_out():
    """case docx-09."""
    whole = repeated(b"A" * MIB, 1500)
    assert reason(Entry(b"a.xml", whole, 1500 * MIB)) == BOMB
    assert reason(Entry(b"a.xml", whole, MIB)) == DAMAGED  # it says that it is small: no more is unpacked than it says
    assert reason(Entry(b"a.xml", repeated(b"A" * MIB, 10), 10 * MIB)) == BOMB
    assert reason(Entry(b"a.xml", bytes(PART_BYTES_MAX + 1), PART_BYTES_MAX + 1, way=zipfile.ZIP_STORED)) == BOMB


def test_a_real_files_ratio_is_none_of_a_bomb():
    data = b"".join(b"<row n='%d'>the same again and again</row>" % at for at in range(50_000))
    made = entry(b"a.xml", data)
    assert 5 < len(data) / len(made.packed) < 100
    assert Archive(archive([made])).read("a.xml") == data
    small = entry(b"a.xml", b"A" * MIB)
    assert Archive(archive([small])).read("a.xml") == b"A" * MIB


def test_all_parts_together_are_limited():
    data = bytes(32 * MIB)
    stored = Entry(b"", data, len(data), zlib.crc32(data), zipfile.ZIP_STORED)
    made = Archive(archive([stored._replace(name=b"%d" % at) for at in range(5)]))
    for at in range(TOTAL_BYTES_MAX // len(data)):
        assert len(made.read(str(at))) == len(data)
    with pytest.raises(LeftOut, match=BOMB):
        made.read("4")


def test_too_many_parts_are_refused():
    assert len(Archive(archive(entry(b"%d" % at, b"") for at in range(PARTS_MAX))).names) == PARTS_MAX
    assert _reason_of(archive(entry(b"%d" % at, b"") for at in range(PARTS_MAX + 1))) == BOMB


def test_sizes_of_64_bits_that_lie_are_no_way_around():
    huge = struct.pack("<2H2Q", 1, 16, 1 << 40, 1 << 40)
    data = bytearray(archive([entry(b"a.xml" + huge, b"one")]))
    at = data.rindex(b"PK\1\2")
    data[at + 20 : at + 28] = b"\xff" * 8  # both sizes: see the field that follows the name
    struct.pack_into("<2H", data, at + 28, 5, len(huge))
    assert _reason_of(bytes(data)) in (BOMB, DAMAGED)
    end = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1 << 60, 1 << 60, 1 << 60, 1 << 60)
    plain = archive([entry(b"a.xml", b"one")])
    cut = plain.rindex(b"PK\5\6")
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, cut, 1)
    assert _reason_of(plain[:cut] + end + locator + plain[cut:]) == DAMAGED


@pytest.mark.parametrize("data", [b"", b"PK\5\6", b"PK\3\4" + bytes(100), b"\xd0\xcf\x11\xe0", bytes(4000)])
def test_what_is_no_archive_is_damaged(data):
    assert _reason_of(data) == DAMAGED


def test_a_part_that_is_not_there_is_damage():
    assert reason(entry(b"a.xml", b"one"), name="b.xml") == DAMAGED


# ---------------------------------------------------------------- XML


def read_xml(data: bytes) -> list[object]:
    """What stands in it, in order."""
    found: list[object] = []
    parse(data, lambda name, attributes: found.append((name, dict(attributes))), found.append, found.append)
    return found


def refused(data: bytes) -> str:
    with pytest.raises(LeftOut) as left:
        read_xml(data)
    return str(left.value)


def test_elements_and_text_come_in_order_with_their_namespaces():
    found = read_xml(b'<w:a xmlns:w="urn:x" w:n="1">one<b m="2"/>&#x16; &amp;</w:a>'.replace(b"&#x16;", b"&#9;"))
    assert found == [("urn:x}a", {"urn:x}n": "1"}), "one", ("b", {"m": "2"}), "b", "\t &", "urn:x}a"]
    assert [local("urn:x}a"), local("b")] == ["a", "b"]


@pytest.mark.parametrize(
    "data",
    [
        "\ufeff<a>é</a>".encode(),
        '<?xml version="1.0" encoding="UTF-16"?><a>é</a>'.encode("utf-16"),
        '\ufeff<?xml version="1.0" encoding="UTF-16"?><a>é</a>'.encode("utf-16-be"),
        '<?xml version="1.0" encoding="ISO-8859-1"?><a>é</a>'.encode("latin-1"),
        '<?xml version="1.0" encoding="windows-1252"?><a>é</a>'.encode("cp1252"),
    ],
    ids=["utf-8", "utf-16-le", "utf-16-be", "latin-1", "cp1252"],
)
def test_xml_is_read_in_the_encodings_that_need_no_file(data):
    assert read_xml(data) == [("a", {}), "é", "a"]


def test_an_encoding_that_would_have_to_be_loaded_is_refused(monkeypatch):
    """In the child, where nothing can be opened, a look for it would fail in ways of its own."""
    monkeypatch.setattr("encodings.search_function", lambda name: pytest.fail(f"looked for {name}"))
    assert refused(b'<?xml version="1.0" encoding="x-none"?><a/>') == DAMAGED
    assert refused(b'<?xml version="1.0" encoding="mac_farsi"?><a/>') == DAMAGED


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<a>",
        b"<a></b>",
        b"text",
        b"<a>\xff</a>",
        b"<a>&none;</a>",
        b"<a b='1' b='2'/>",
        b"<a/><b/>",
        b"<a>\0</a>",
    ],
)
def test_what_is_no_xml_is_damaged(data):
    assert refused(data) == DAMAGED


@pytest.mark.parametrize(
    "dtd",
    [
        b'<!DOCTYPE a [<!ENTITY x "y">]>',
        b'<!DOCTYPE a SYSTEM "http://127.0.0.1:9/">',
        b"<!DOCTYPE a ["
        + b"".join(b'<!ENTITY a%d "%s">' % (at, b"&a%d;" % (at - 1) * 9) for at in range(1, 9))
        + b"]>",
    ],
    ids=["entity", "external", "laughs"],
)
def test_a_document_with_a_dtd_is_refused(dtd):
    """case docx-07."""
    assert refused(dtd + b"<a>&a8;</a>") == DAMAGED


@pytest.mark.parametrize(
    "data",
    [
        b"<a>" * (DEPTH_MAX + 1),
        b"<a>" + b"".join(b"<b%d/>" % at for at in range(NAMES_MAX * 2)) + b"</a>",
        b"<a " + b" ".join(b'b%d=""' % at for at in range(NAMES_MAX * 2)) + b"/>",
        b'<a b="' + b"x" * (TAG_BYTES_MAX + MIB) + b'"/>',
        b'<a xmlns="' + b"x" * (NAMESPACE_CHARS_MAX + 1) + b'"/>',
        b'<a xmlns:b="' + b"x" * (NAMESPACE_CHARS_MAX + 1) + b'"/>',
    ],
    ids=["deep", "names", "attributes", "a long one", "namespace", "named namespace"],
)
def test_xml_that_would_fill_the_memory_is_refused(data):
    assert refused(data) == BOMB


def test_xml_within_the_limits_is_read():
    assert len(read_xml(b"<a>" * DEPTH_MAX + b"</a>" * DEPTH_MAX)) == 2 * DEPTH_MAX
    assert len(read_xml(b'<a b="' + b"x" * MIB + b'"/>')) == 2
    assert sum(map(len, read_xml(b"<a>" + b"x" * (20 * MIB) + b"</a>")[1:-1])) == 20 * MIB
