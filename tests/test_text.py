"""Text: encodings, titles, parts and lines, and texts made to do harm. Files go through the engine's real program."""

import codecs
import itertools
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lnk.memory.markdown import Chunk, chunks, clean_title, title_of
from lnk.memory.parse import parse
from lnk.memory.text import decode, html_text

CHUNK_CHARS = 1500
TITLE_CHARS = 200
TEXT_BYTES = 2 << 20
FILE_BYTES = 32 << 20

RUSSIAN = "Утром мы ехали вдоль реки и видели трёх цапель.\nПотом чинили заднее колесо и пили чай с мёдом.\n"
JAPANESE = "今日は自転車の後輪を直しました。\n明日は山の方へ走りに行く予定です。お弁当はおにぎりと卵焼きにします。\n"
CHINESE = "今天我们修好了自行车的后轮，明天打算去山上骑车。\n午饭带饭团和鸡蛋，晚上回来喝茶。\n"
TAIWANESE = "今天我們修好了腳踏車的後輪，明天打算去山上騎車。\n午飯帶飯糰和雞蛋，晚上回來喝茶。\n"
KOREAN = "오늘은 자전거 뒷바퀴를 고쳤습니다.\n내일은 산으로 달리러 갈 예정입니다. 점심은 김밥과 달걀말이입니다.\n"
FRENCH = "Le café de la place était fermé, alors nous avons mangé des crêpes à la maison.\nÇa coûte moins cher l'été.\n"
GERMAN = "Der Schlüssel hängt hinter der Tür.\nDie Straße ist gesperrt, wir fahren über die Brücke.\n"
SPANISH = "El niño comió piñas en la montaña, ¿verdad?\nMañana más.\n"
ENGLISH = "The key hangs behind the door.\nMind the step.\n"

# name -> what is written, in which encoding, after which mark
ENCODED = {
    "utf-8": (JAPANESE, "utf-8", b""),
    "utf-8-mark": (RUSSIAN, "utf-8", codecs.BOM_UTF8),
    "utf-16-le-mark": (JAPANESE, "utf-16-le", codecs.BOM_UTF16_LE),
    "utf-16-be-mark": (KOREAN, "utf-16-be", codecs.BOM_UTF16_BE),
    "utf-16-le": (ENGLISH, "utf-16-le", b""),
    "utf-16-be": (FRENCH, "utf-16-be", b""),
    "utf-32-le-mark": (CHINESE, "utf-32-le", codecs.BOM_UTF32_LE),
    "utf-32-be-mark": (RUSSIAN, "utf-32-be", codecs.BOM_UTF32_BE),
    "cp1251": (RUSSIAN, "cp1251", b""),
    "koi8-r": (RUSSIAN, "koi8-r", b""),
    "euc-jp": (JAPANESE, "euc-jp", b""),
    "shift-jis": (JAPANESE, "shift-jis", b""),
    "iso-2022-jp": (JAPANESE, "iso-2022-jp", b""),
    "gb18030": (CHINESE, "gb18030", b""),
    "big5": (TAIWANESE, "big5", b""),
    "euc-kr": (KOREAN, "euc-kr", b""),
}


# ---------------------------------------------------------------- encodings


def test_a_file_is_read_in_the_encoding_that_it_was_written_in(place, session):
    """case encoding-02: a mark, UTF-8, UTF-16 of Latin text without a mark, else detected; the file is untouched."""
    written = {name: mark + text.encode(encoding) for name, (text, encoding, mark) in ENCODED.items()}
    for name, data in written.items():
        place.write(f"memory/{name}.md", data)
    memory = session().settled()
    texts = {name: text for name, (text, _, _) in ENCODED.items()}
    assert {name: memory.read(f"memory/{name}.md")["text"] for name in ENCODED} == texts
    assert memory.paths("цапель мёдом", path="memory/cp1251.md") == ["memory/cp1251.md"]
    assert memory.paths("山上骑车", path="memory/gb18030.md") == ["memory/gb18030.md"]
    assert {name: (place.memory / f"{name}.md").read_bytes() for name in ENCODED} == written


@pytest.mark.parametrize(
    "text", [FRENCH, GERMAN, SPANISH, "a naïve café\n"], ids=["french", "german", "spanish", "short"]
)
def test_a_text_whose_encoding_nobody_can_tell_for_sure_is_not_lost(place, session, text):
    """case encoding-02: letters that are not sure are right or marked as wrong; the rest is there and is found."""
    place.write("memory/umlaut.md", text.encode("latin-1"))
    memory = session()
    marked = "".join(char if char.isascii() else "\ufffd" for char in text)
    assert memory.read("memory/umlaut.md")["text"] in (text, marked)
    plain = next(word for word in text.split() if word.isascii())
    assert memory.paths(plain) == ["memory/umlaut.md"]


def test_a_few_wrong_bytes_cost_themselves_alone(place, session):
    """case encoding-02: bytes that are none in their encoding become U+FFFD, and never fail the file."""
    place.write("memory/tail.md", b"good start " * 800 + b"and then \xff\xfe broken, with a walrus after\n")
    place.write("memory/nul.md", b"text " * 2000 + b"\0 and a narwhal after\n")
    place.write("memory/odd.md", codecs.BOM_UTF16_LE + "an otter".encode("utf-16-le") + b"!")
    memory = session().settled()
    assert memory.paths("walrus narwhal otter") == ["memory/odd.md", "memory/nul.md", "memory/tail.md"]
    assert memory.read("memory/tail.md")["text"].endswith("and then \ufffd\ufffd broken, with a walrus after\n")
    assert memory.read("memory/nul.md")["text"].endswith("\ufffd and a narwhal after\n")
    assert memory.read("memory/odd.md")["text"] == "an otter\ufffd"


def test_what_is_no_text_is_no_document(place, session):
    place.write("memory/photo.dat", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR zebra")
    place.write("memory/zebra.bin", b"zebra")
    place.write("memory/real.md", "a zebra\n")
    memory = session()
    assert memory.paths("zebra") == ["memory/real.md"]
    assert [entry["path"] for entry in memory.list()["documents"]] == ["memory/real.md"]
    assert "no text" in memory.refused("read", path="memory/photo.dat")


def test_a_file_whose_name_is_not_utf_8_is_left_out_and_said(place, session):
    """case unicode-04: under a name that can be shown; the others are as they would be without it."""
    folder = os.fsencode(place.memory)
    try:
        for name in (b"caf\xe9.md", b"\xff\xfe.md"):
            with open(folder + b"/" + name, "w") as file:
                file.write("a walrus\n")
    except OSError as error:
        pytest.skip(f"this disk takes no name that is not UTF-8 ({error}): such names were not checked")
    place.write("memory/good.md", "a walrus\n")
    memory = session()
    assert memory.paths("walrus") == ["memory/good.md"]
    assert {entry["path"]: entry.get("left_out") for entry in memory.list()["documents"]} == {
        "memory/caf\\xe9.md": "its name is not UTF-8",
        "memory/\\xff\\xfe.md": "its name is not UTF-8",
        "memory/good.md": None,
    }
    assert "its name is not UTF-8" in memory.refused("read", path="memory/caf\\xe9.md")


def test_an_empty_file_is_found_by_its_title(place, session):
    place.write("memory/Boat insurance.md", "")
    place.write("memory/blank.md", " \n\n\t\n")
    memory = session()
    assert memory.paths("boat insurance") == ["memory/Boat insurance.md"]
    found = memory.read("memory/Boat insurance.md")
    assert (found["text"], found["lines"], found["of"]) == ("", [0, 0], 0)
    assert memory.paths("blank") == ["memory/blank.md"]


MARKS = st.sampled_from([b"", b"plain ", codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF32_BE])
BYTES = st.binary(max_size=400) | st.text(max_size=200).map(lambda text: text.encode("utf-16-le", "surrogatepass"))


@given(st.builds(bytes.__add__, MARKS, BYTES))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_read_or_left_out(data):
    text = decode(data)
    if text is not None:
        assert "\0" not in text
        assert text.encode().decode() == text


# ---------------------------------------------------------------- titles

TITLED = {
    "heading.md": ("# Garden plan\n\nroses\n", "Garden plan"),
    "mark.md": (codecs.BOM_UTF8 + b"# Marked\n", "Marked"),
    "closed.md": ("# Closed ##\n", "Closed"),
    "crlf.md": ("# With returns\r\n\r\ntext\r\n", "With returns"),
    "underlined.md": ("Underlined\n==========\n", "Underlined"),
    "dressed.md": ("# **Bold** `code` [[page|alias]] [text](target.md)\n", "Bold code alias text"),
    "front.md": ("---\ntitle: In front\n---\n# Heading\n", "In front"),
    "front-mark.md": (codecs.BOM_UTF8 + b"---\ntitle: T\n---\nx\n", "T"),
    "front-crlf.md": ("---\r\ntitle: Returns in front\r\ntags: [a]\r\n---\r\n# Heading\r\n", "Returns in front"),
    "front-dots.md": ("---\nTitle: Dots below\n...\n# Heading\n", "Dots below"),
    "front-twice.md": ("---\ntitle: First\ntags: x\ntitle: Second\n---\n", "First"),
    "front-colon.md": ("---\ntitle: Foo: bar\n---\n", "Foo: bar"),
    "front-quoted.md": ("---\ntitle: \"Foo: 'bar'\"\n---\n", "Foo: 'bar'"),
    "front-broken.md": ("---\ntitle: Still: [read\n  - {x\n---\n# Heading\n", "Still: [read"),
    "front-unclosed.md": ("---\ntitle: Nowhere\n\n# Heading of unclosed\n", "Heading of unclosed"),
    "front-blank.md": ("---\ntitle:\n---\n# Heading below\n", "Heading below"),
    "front-none.md": ("---\nsubtitle: Not this\n---\n# Heading after\n", "Heading after"),
    "line50.md": ("\n" * 49 + "# On line fifty\n", "On line fifty"),
    "line51.md": ("\n" * 50 + "# On line fifty-one\n", "line51"),
    "second-level.md": ("## Second level\n", "second-level"),
    "hashtag.md": ("#garden roses\n", "hashtag"),
    "fenced.md": ("```\n# a comment\n```\n# Real\n", "Real"),
    "controls.md": ("# One\u2028two\tthree\u202efour\x07five\n", "One two three four five"),
    "note.org": ("#+TITLE: An org file\n* Heading\n", "An org file"),
    "guide.adoc": ("= A guide\n\ntext\n", "A guide"),
    "page.html": ("<html><head><title>A &amp; B</title></head><body><h1>Head</h1></body></html>", "A & B"),
    "page.htm": ("<p>before<h1>Only <i>a</i> heading</h1>", "Only a heading"),
    "Shopping list.csv": ("milk,2\n", "Shopping list"),
    "README": ("text\n", "README"),
    "old.backup.txt": ("text\n", "old.backup"),
    "🐘.md": ("text\n", "🐘"),
    "long.md": ("# " + "word " * 100 + "\n", ("word " * 100)[:199] + "…"),
}


def test_each_rule_gives_a_document_its_title(place, session):
    """cases encoding-01, encoding-05: front matter, a heading of the first 50 lines, the file's name."""
    for name, (text, _) in TITLED.items():
        place.write(f"memory/{name}", text)
    place.write("chats/link-main/conversation.md", "hello\n\n## 2026-05-19 18:40 · Ana\n\nGood evening.\n")
    place.write("chats/link-attic/conversation.md", "no heading at all\n")
    place.write("chats/link-named/conversation.md", "## first\n\n# The plan\n")
    expected = {f"memory/{name}": title for name, (_, title) in TITLED.items()} | {
        "chats/link-main/conversation.md": "2026-05-19 18:40 · Ana",
        "chats/link-attic/conversation.md": "link-attic",
        "chats/link-named/conversation.md": "The plan",
    }
    memory = session().settled()
    assert {entry["path"]: entry["title"] for entry in memory.list(tokens=50_000)["documents"]} == expected
    assert memory.paths("garden plan")[0] == "memory/heading.md"


@pytest.mark.requirement("SIZE-5")
def test_a_title_is_at_most_200_characters_wherever_it_comes_from(place, session):
    long = "ü" * 120
    place.write("memory/heading.md", f"# {'x' * 5000}\n")
    place.write("memory/front.md", f"---\ntitle: {'y ' * 3000}\n---\n")
    place.write("memory/page.html", f"<title>{'z' * 100_000}</title><p>text")
    place.write(f"memory/{long}.md", "text\n")
    place.write("chats/link-a/conversation.md", f"## {'w' * 900}\n")
    memory = session().settled()
    titles = {entry["path"]: entry["title"] for entry in memory.list(tokens=50_000)["documents"]}
    assert {path: len(title) for path, title in titles.items()} == {
        "memory/heading.md": 200,
        "memory/front.md": 200,
        "memory/page.html": 200,
        f"memory/{long}.md": 120,
        "chats/link-a/conversation.md": 200,
    }
    assert memory.read("memory/heading.md", tokens=50_000)["title"] == "x" * 199 + "…"
    assert memory.search("text", path="memory/page.html")["results"][0]["title"] == "z" * 199 + "…"


@given(st.text(max_size=600) | st.text(alphabet="#*_`[]()|\\=-: \tab\u202e\n", max_size=300))
@settings(max_examples=300, deadline=None)
def test_a_title_is_one_line_that_can_be_shown(text):
    for title in (title_of(text), clean_title(text)):
        assert title is None or (0 < len(title) <= TITLE_CHARS and title.isprintable() and title == title.strip())


# ---------------------------------------------------------------- HTML

TAGS = "<p> </p> <title> </title> <script> </script> <!-- --> <![ <! <? ]]> &#x &amp <a/b=' text".split()


def test_a_page_is_read_by_what_its_reader_sees(place, session):
    place.write(
        "memory/page.html",
        "<!doctype html><html><head><title>Bread</title><style>p { color: unseen }</style>"
        "<script>var unseen = '<p>';</script></head><body><h1>How to bake</h1><p>Flour &amp;  water<br>and salt."
        "<ul><li>Knead<li>Rest</ul><template>unseen</template><table><tr><td>1<td>2</table><p>Caf&eacute;</body>",
    )
    memory = session()
    assert memory.read("memory/page.html")["text"] == (
        "# How to bake\n\nFlour & water\nand salt.\n\nKnead\nRest\n\n1\n2\n\nCafé\n"
    )
    assert memory.paths("flour salt") == ["memory/page.html"]
    assert memory.paths("unseen color") == []


def test_a_reference_to_a_character_of_thousands_of_digits_is_none():
    text, title = html_text(f"<title>A &#{'9' * 5000}; B</title><p>&#65; and &#{'1' * 5000} &amp; more")
    assert (text, title) == ("A and \ufffd & more\n", "A \ufffd B")


@given(
    st.text(alphabet="<>!-[]/?&;#=\"' adpx\n", max_size=200) | st.lists(st.sampled_from(TAGS), max_size=30).map("".join)
)
@settings(max_examples=300, deadline=None)
def test_any_page_has_a_text(markup):
    text, title = html_text(markup)
    assert text == "" or text.endswith("\n")
    assert title is None or title.strip() == title != ""


# ---------------------------------------------------------------- parts


def test_a_text_is_split_at_its_headings():
    text = "before\n\n# One\n\nalpha\n\n## Two\n\nbeta\n\n# Three\n### Four\n\ngamma\n"
    assert chunks(text) == [
        Chunk(1, "before\n\n"),
        Chunk(3, "# One\n\nalpha\n\n"),
        Chunk(7, "## Two\n\nbeta\n\n"),
        Chunk(11, "# Three\n### Four\n\ngamma\n"),
    ]


def test_a_long_section_is_split_at_its_blank_lines():
    paragraphs = [f"paragraph {number} " + "word " * 100 + "\n\n" for number in range(7)]
    assert [chunk.text for chunk in chunks("".join(paragraphs))] == [
        "".join(paragraphs[:2]),
        "".join(paragraphs[2:4]),
        "".join(paragraphs[4:6]),
        paragraphs[6],
    ]


def test_a_fenced_block_stays_whole_where_it_fits():
    block = "```python\n" + "".join(f"step({number})\n\n# not a heading\n\n" for number in range(30)) + "```\n"
    text = "# Code\n\n" + "intro word " * 90 + "\n\n" + block + "\nafter\n\n# Next\n\nmore\n"
    parts = [chunk.text for chunk in chunks(text)]
    assert len(block) < CHUNK_CHARS
    assert sum(block in part for part in parts) == 1
    assert parts[-1] == "# Next\n\nmore\n"


def test_a_fenced_block_that_is_never_closed_hides_no_text():
    text = "# One\n\n```\ncode\n" + "line of text\n\n" * 400
    assert "".join(chunk.text for chunk in chunks(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "word " * 12_000,
        "x" * 60_000,
        "字" * 60_000,
        "a line without a blank one below it\n" * 1_700,
        "one|two|three;" * 4_500,
        "# h\n" + "é" * 60_000,
    ],
    ids=["words", "letters", "chinese", "lines", "no-space", "under-a-heading"],
)
def test_60_kb_without_a_blank_line_are_parts_of_1500_characters(text):
    """case chunk-02: split at a line end, a space or a character; nothing lost."""
    found = chunks(text)
    assert "".join(chunk.text for chunk in found) == text
    assert max(len(chunk.text) for chunk in found) <= CHUNK_CHARS
    assert len(found) <= 2 * len(text) / CHUNK_CHARS + 1
    if text.startswith(("word ", "a line ")):
        assert {chunk.text[-1] for chunk in found} <= {" ", "\n"}


STRUCTURE = [
    "# h\n",
    "## h ##\n",
    "\n\n",
    " \t\n",
    "```\n",
    "~~~~\n",
    "```py\n",
    "---\n",
    "title: t\n",
    "=====\n",
    "- a\n",
]
CONTENT = ["text ", "word " * 80, "x" * 700, "字" * 400, "a\n" * 300, "\n", "\r\n", "\r", "\u2028", "    code\n", "\0"]
PIECES = st.sampled_from(STRUCTURE + CONTENT)


@given(st.lists(PIECES, max_size=60).map("".join) | st.text())
@settings(max_examples=400, deadline=None)
def test_the_parts_of_a_text_put_together_are_the_text(text):
    found = chunks(text)
    assert "".join(chunk.text for chunk in found) == text
    assert all(0 < len(chunk.text) <= CHUNK_CHARS for chunk in found)
    lines = [1, *(1 + text.count("\n", 0, at) for at in itertools.accumulate(len(chunk.text) for chunk in found))]
    assert [chunk.first_line for chunk in found] == lines[: len(found)]


@given(st.lists(PIECES, max_size=60).map("".join) | st.text(), st.sampled_from(["memory/a.md", "memory/a.html"]))
@settings(max_examples=300, deadline=None)
def test_any_text_is_indexed_whole(path, text):
    found = parse(path, "document", text.encode())
    read = html_text(text)[0] if path.endswith("html") else text.replace("\0", "\ufffd").removeprefix("\ufeff")
    if found.left_out is None:
        assert "".join(chunk.text for chunk in found.chunks) == read
        assert len(found.rows) == len(found.chunks) > 0


# ---------------------------------------------------------------- nothing is half read


def _unique(number: int) -> str:
    """A word without an ending of English, which the index takes off: "markbe" and "markb" are one word to it."""
    return "mark" + "".join(chr(ord("a") + int(digit)) for digit in str(number)) + "q"


def test_every_part_of_a_long_document_is_found_at_its_line(place, session):
    """case index-11: 200 KB, a word of its own at every 1,000 characters; read from the hit's line gives it."""
    lines = [f"{_unique(number)} " + "filler " * 140 + "\n" for number in range(200)]
    place.write("memory/long.md", "# Long\n\n" + "\n".join(lines))
    memory = session().settled()
    for number in range(0, 200, 7):
        (hit,) = memory.search(_unique(number))["results"]
        first, last = hit["lines"]
        line = 3 + 2 * number
        assert first <= line <= last
        assert hit["text"].split("\n")[line - first] == lines[number].rstrip("\n")
        assert memory.read("memory/long.md", line=line, tokens=300)["text"].startswith(_unique(number) + " ")


@pytest.mark.requirement("INDEX-5")
def test_a_document_is_indexed_whole_up_to_2_mib_and_left_out_whole_above(place, session):
    """case chunk-05: a word of its own in each 10 KB of 1.9 MiB is found; one byte over the limit leaves all out."""
    blocks = [f"{_unique(number)}\n" + "filler text of it\n" * 568 + "\n" for number in range(195)]
    text = "".join(blocks)
    assert 1.9 * 2**20 < len(text) < TEXT_BYTES
    place.write("memory/long.txt", text)
    place.write("memory/full.txt", "walrus " + "x" * (TEXT_BYTES - 7))
    place.write("memory/over.txt", "walrus " + "x" * (TEXT_BYTES - 6))
    place.write("memory/wide.txt", "walrus " + "字" * (TEXT_BYTES // 3))
    large = place.write("memory/large.txt", "walrus\n")
    with large.open("r+b") as file:
        file.truncate(FILE_BYTES + 1)
    memory = session().settled()
    assert [number for number in range(195) if memory.paths(_unique(number)) != ["memory/long.txt"]] == []
    assert memory.paths("walrus") == ["memory/full.txt"]
    entries = {entry["path"]: entry.get("left_out") for entry in memory.list()["documents"]}
    assert entries == {
        "memory/full.txt": None,
        "memory/large.txt": "it is over 32 MiB",
        "memory/long.txt": None,
        "memory/over.txt": "its text is over 2 MiB",
        "memory/wide.txt": "its text is over 2 MiB",
    }
    assert "over 2 MiB" in memory.refused("read", path="memory/over.txt")
    assert "over 32 MiB" in memory.refused("read", path="memory/large.txt")
    place.write("memory/over.txt", "walrus cut short\n")
    assert set(memory.paths("walrus")) == {"memory/full.txt", "memory/over.txt"}


# ---------------------------------------------------------------- lines


def test_a_line_is_what_lf_ends_and_nothing_else(place, session):
    """case notes-14, for documents: U+2028, vertical tab, form feed, NEL and CR stand inside a line."""
    lines = ["one\u2028still one", "two\x0bstill", "three\x0cstill", "four\x85still", "five\rstill", "six\u2029walrus"]
    text = "\n".join(lines) + "\n\n[[target]] after\n"
    place.write("memory/odd.md", text)
    place.write("memory/target.md", "x\n")
    memory = session().settled()
    whole = memory.read("memory/odd.md")
    assert (whole["text"], whole["lines"], whole["of"]) == (text, [1, 8], 8)
    for number, line in enumerate(lines, 1):
        one = memory.read("memory/odd.md", line=number)
        assert one["text"] == text[text.index(line) :]
        assert one["lines"] == [number, 8]
    (hit,) = memory.search("walrus")["results"]
    assert (hit["lines"], hit["text"]) == ([1, 8], text.rstrip("\n"))
    assert memory.links("memory/odd.md")["to"][0]["line"] == 8


def test_a_text_without_a_last_line_end_has_its_last_line(place, session):
    place.write("memory/a.md", "one\r\ntwo\r\nthree")
    found = session().read("memory/a.md")
    assert (found["text"], found["lines"], found["of"]) == ("one\r\ntwo\r\nthree", [1, 3], 3)


# ---------------------------------------------------------------- texts made to do harm

SIZE = TEXT_BYTES
HOSTILE = {
    "open-brackets.md": "'[[' * (SIZE // 2)",
    "headings.md": "'# a\\n' * (SIZE // 4)",
    "open-links.md": "'[a](' * (SIZE // 4)",
    "backticks.md": "'`' * SIZE",
    "camel.md": "'aB1_' * (SIZE // 4)",
    "hashes.md": "'#' * SIZE",
    "digits.md": "'1' * SIZE",
    "marks.md": "'a' + '\\u0301' * (SIZE // 2 - 1)",
    "wiki-links.md": "'[[a]]' * (SIZE // 5)",
    "definitions.md": "'[a]: b\\n' * (SIZE // 7)",
    "fences.md": "'```\\n' * (SIZE // 4)",
    "blank-lines.md": "'\\n ' * (SIZE // 2)",
    "tick-after-link.md": "'[x] a' + '`' * (SIZE - 5)",
    "tick-runs.md": "'[x] ' + 'x'.join('`' * n for n in range(2000, 0, -1))",
    "few-tick-runs.md": "'[x] ' + 'x'.join('`' * n for n in range(14, 0, -1))",
    "heading-spaces.md": "'# a' + ' ' * 60_000 + 'x'",
    "adoc-spaces.adoc": "'= a' + ' ' * 60_000 + 'x'",
    "org-spaces.org": "'#+title: a' + ' ' * 60_000 + 'x'",
    "front-spaces.md": "'---\\ntitle: a' + ' ' * 16000 + 'x\\n---\\n'",
    "many-spaces.md": "('# ' + ' ' * 1000) * (SIZE // 1002)",
    "open-tags.html": "'<a ' * (SIZE // 3)",
    "open-values.html": "'<a b=\"' * (SIZE // 6)",
    "open-comments.html": "'<!--' * (SIZE // 4)",
    "open-ends.html": "'</' * (SIZE // 2)",
    "open-orders.html": "'<?' * (SIZE // 2)",
    "open-sections.html": "'<![' * (SIZE // 3)",
    "divs.html": "'<div>' * (SIZE // 5)",
}
MAKE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_DATA, (300 << 20, 300 << 20))
from lnk.memory.parse import parse
SIZE = 2 << 20
found = parse("memory/" + sys.argv[1], "document", eval(sys.argv[2]).encode())
print(len(found.chunks), found.left_out)
"""
HUNG_S = 30  # not a measure of speed: what is squared in its length takes hours


@pytest.mark.parametrize("name", HOSTILE)
def test_a_text_made_to_do_harm_costs_no_more_than_its_size(name):
    """case index-27: 2 MiB of one thing. It ends, in less than 300 MB: what is squared in the length would not."""
    try:
        child = subprocess.run(
            [sys.executable, "-c", MAKE, name, HOSTILE[name]],
            capture_output=True,
            text=True,
            timeout=HUNG_S,
        )
    except subprocess.TimeoutExpired:
        pytest.fail(f"{name} was not read within {HUNG_S} s")
    assert child.returncode == 0, child.stderr
    count, left_out = child.stdout.split(maxsplit=1)
    assert left_out.strip() in ("None", "its text is over 2 MiB")
    assert int(count) <= 2 * SIZE / CHUNK_CHARS + 1_000


def test_a_file_that_cannot_be_parsed_costs_no_other_file(place, session):
    """A fault in one file's content is that file's alone: the others are found, and memory goes on."""
    place.write("memory/bad.html", "<![" * 100)
    place.write("memory/worse.html", "<!DOCTYPE [<!" * 100 + "<![x[")
    place.write("memory/good.md", "a walrus\n")
    memory = session().settled()
    assert memory.paths("walrus") == ["memory/good.md"]
    place.write("memory/later.md", "a narwhal\n")
    assert memory.paths("narwhal") == ["memory/later.md"]
