"""How much an answer holds, what is left out of it, and that going on from there gives everything once."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import Place, Session
from lnk.memory.budget import Budget, cut_to, measure
from lnk.memory.reading import part_of

OLD = 1_600_000_000.0
BYTES = 32 * 1024  # what a harness keeps of an answer
CHARS = 24_000  # 6,000 tokens of four characters
SMALL = st.integers(50, 600)


def _text(session: Session, call: str, **arguments: object) -> tuple[str, dict]:
    answer = session.call(call, arguments)
    assert not answer.failed, answer.text
    return answer.text, answer.structured


def _in_size(text: str) -> bool:
    return len(text) <= CHARS and len(text.encode()) < BYTES


# ---------------------------------------------------------------- the default size, whatever the script

SCRIPTS = {
    "latin": "words of a line that goes on for a while",
    "quotes": '"\\"\\"\\"\\"\\"\\"\\"\\"\\"\\"\\"\\"\\"\\"\\"\\"\\"\\"\\"\\"\\"',
    "controls": "\x01\x02\x1f\x7f" * 10,
    "chinese": "今天我们修好了自行车的后轮明天打算去山上骑车",
    "emoji": "🐘🪴🎉👋🏽" * 6,
    "thai": "เมื่อวานฝนตกหนักมากจนเราไม่ได้ออกไปไหน",
}


@pytest.mark.requirement("SIZE-1")
@pytest.mark.parametrize("script", SCRIPTS)
def test_an_answer_is_under_24000_characters_and_32_kib_in_any_script(place, session, script):
    """case read-02: after JSON has written out control characters and quotes."""
    line = SCRIPTS[script]
    place.write("memory/long.md", "walrus\n" + (line + "\n") * 8_000)
    for number in range(60):
        place.write(f"memory/{line[:12].encode().hex()}{number}.md", f"walrus {number}\n" + (line + "\n") * 30, at=OLD)
        place.write(f"memory/{number}.md", f"# {line} {number}\n\n" + f"[[{line}]] [[long]]\n" * 60)
    memory = session().settled()
    calls = {
        "read": ("read", {"path": "memory/long.md"}),
        "search": ("search", {"query": "walrus"}),
        "newest": ("search", {"query": "", "path": "memory"}),
        "list": ("list", {}),
        "since": ("list", {"since": "2020-01-01"}),
        "links": ("links", {"path": "memory/7.md"}),
        "linked": ("links", {"path": "memory/long.md"}),
    }
    answers = {name: _text(memory, call, **arguments) for name, (call, arguments) in calls.items()}
    assert [name for name, (text, _) in answers.items() if not _in_size(text)] == []
    assert answers["read"][1]["next"] > 100
    assert answers["linked"][1]["left"] > 0
    halves = [len(text) > CHARS / 2 or len(text.encode()) > BYTES / 2 for text, _ in answers.values()]
    assert sum(halves) >= 4  # and no answer is small where there is more to say


@pytest.mark.requirement("SIZE-1")
def test_a_call_or_the_spec_asks_for_another_size(place, session):
    place.write("memory/a.md", "a line of text, forty characters long..\n" * 20_000)
    memory = session().settled()
    small, _ = _text(memory, "read", path="memory/a.md", tokens=100)
    large, _ = _text(memory, "read", path="memory/a.md", tokens=50_000)
    assert 300 < len(small) <= 400
    assert 190_000 < len(large) <= 200_000
    by_spec = session("--spec", '{"tokens": 200}').settled()
    assert 600 < len(_text(by_spec, "read", path="memory/a.md")[0]) <= 800
    assert 300 < len(_text(by_spec, "read", path="memory/a.md", tokens=100)[0]) <= 400


@pytest.mark.requirement("SIZE-1")
def test_a_size_out_of_range_is_the_nearest_one_and_a_negative_one_is_refused(place, session):
    """case read-02: 10^9, 1, 0 and -1."""
    place.write("memory/a.md", "a line of text, forty characters long..\n" * 20_000)
    memory = session().settled()
    assert _text(memory, "read", path="memory/a.md", tokens=10**9) == _text(
        memory, "read", path="memory/a.md", tokens=50_000
    )
    assert _text(memory, "read", path="memory/a.md", tokens=1) == _text(memory, "read", path="memory/a.md", tokens=50)
    assert _text(memory, "read", path="memory/a.md", tokens=0) == _text(memory, "read", path="memory/a.md")
    for call in ({"path": "memory/a.md"}, {"query": "line"}, {}):
        name = "read" if "path" in call else "search" if "query" in call else "list"
        assert "tokens is -1; give a number from 50 to 50,000" in memory.refused(name, tokens=-1, **call)


# ---------------------------------------------------------------- read


@pytest.mark.requirement("SIZE-2", "SIZE-3")
def test_a_document_is_read_to_its_end_in_whole_lines(place, session):
    """case read-02: a file of 20,000 lines."""
    text = "".join(f"line {number}\n" for number in range(1, 20_001))
    place.write("memory/a.md", text)
    memory = session().settled()
    parts, line = [], 1
    while line:
        part = memory.read("memory/a.md", line=line)
        assert part["lines"] == [line, line + part["text"].count("\n") - 1]
        assert part["text"].endswith("\n")
        assert "cut" not in part
        parts.append(part["text"])
        line = part.get("next")
    assert "".join(parts) == text
    assert 5 < len(parts) < 15


@pytest.mark.requirement("SIZE-3")
def test_only_a_line_longer_than_the_size_is_cut_and_the_read_says_so(place, session):
    """case read-02: one line of 100 KB among others; the next call goes on after it."""
    place.write("memory/a.md", "before\n" + "字" * 34_000 + "\nafter\n")
    memory = session().settled()
    first = memory.read("memory/a.md")
    assert (first["text"], first["lines"], first["next"], first.get("cut")) == ("before\n", [1, 1], 2, None)
    text, second = _text(memory, "read", path="memory/a.md", line=2)
    assert set(second["text"]) == {"字"}
    assert (second["lines"], second["of"], second["next"], second["cut"]) == ([2, 2], 3, 3, True)
    assert _in_size(text)
    assert len(text.encode()) > BYTES - 1000
    third = memory.read("memory/a.md", line=3)
    assert (third["text"], third["lines"], third.get("next"), third.get("cut")) == ("after\n", [3, 3], None, None)


@pytest.mark.requirement("SIZE-2")
def test_a_line_that_is_not_there_is_refused_with_those_that_are(place, session):
    place.write("memory/a.md", "one\ntwo\n")
    place.write("memory/one.md", "one")
    memory = session().settled()
    assert memory.refused("read", path="memory/a.md", line=3) == (
        "line is 3, and the document has 2 lines; give a line from 1 to 2."
    )
    assert "line is -1" in memory.refused("read", path="memory/a.md", line=-1)
    assert "has 1 line; give a line from 1 to 1" in memory.refused("read", path="memory/one.md", line=10**15)
    assert memory.read("memory/a.md", line=0) == memory.read("memory/a.md")


LINES = st.lists(st.text(alphabet='ab "\\字🐘\x01\u2028\r', max_size=60), max_size=40)


@pytest.mark.requirement("SIZE-2", "SIZE-3")
@given(LINES, st.booleans(), st.randoms(), SMALL)
@settings(max_examples=300, deadline=None)
def test_reading_on_gives_every_line_once_whatever_the_size(lines, ended, chance, tokens):
    text = "\n".join(lines) + ("\n" if ended else "")
    of = text.count("\n") + (1 if text and not text.endswith("\n") else 0)
    pieces = [text[at : at + 7] for at in range(0, len(text), 7)]
    read, line = "", 1
    while line:
        part = part_of(pieces, 1, line, of, Budget(tokens, None))
        assert (part.first, part.last) == ((line, part.last) if of else (0, 0))
        assert measure(part.text)[0] <= max(4 * tokens - 158, 8)
        whole = "".join(each + "\n" for each in text.split("\n")[line - 1 : part.last])
        if part.cut:
            assert whole.startswith(part.text) and part.first == part.last
        elif of:
            assert part.text == (whole if text.endswith("\n") or part.last < of else whole[:-1])
        assert part.next == (part.last + 1 if part.last < of else None)
        read, line = read + whole, part.next
    assert read.rstrip("\n") == text.rstrip("\n")


@given(st.text(alphabet='ab"\\字🐘\x01', min_size=1, max_size=300), SMALL)
@settings(max_examples=200, deadline=None)
def test_a_cut_line_is_as_long_as_fits_and_no_longer(line, tokens):
    kept = cut_to(line, Budget(tokens, None))
    assert kept and line.startswith(kept)
    room = 4 * tokens - 160
    assert measure(kept)[0] <= room or len(kept) == 1
    if kept != line:
        assert measure(line[: len(kept) + 1])[0] > room


# ---------------------------------------------------------------- whole entries, and all of them once


@pytest.fixture(scope="module")
def shelf_place(tmp_path_factory):
    """Documents of all sizes, with short and long paths, in several scripts."""
    place = Place(tmp_path_factory.mktemp("shelf"))
    for number in range(48):
        folder = "/".join(["a folder", "日本", "x" * 90][: number % 4])
        place.write(
            f"memory/{folder}/note {number}.md" if folder else f"memory/note {number}.md",
            f"# {'A title ' * (number % 9)}{number}\n\nwalrus {number} " + f"own{number} 字 🐘 " * (number * 3),
            at=OLD + number % 7,
        )
    return place


@pytest.fixture(scope="module")
def shelf(shelf_place):
    """A session with them."""
    with Session(shelf_place.argv()) as session:
        session.open()
        yield session.settled()


def _chain(session: Session, call: str, chance, entries: str, **arguments: object) -> list[str]:
    """The paths that a chain of calls gives, each call of a size by chance; each answer is held to its size."""
    paths: list[str] = []
    following = None
    for _ in range(100):
        tokens = chance.choice([50, 50, 80, 120, 200, 400, 900, 6000])
        text, answer = _text(session, call, tokens=tokens, next=following, **arguments)
        given_now = answer[entries]
        assert given_now or not following
        # Where not even one entry fits, one is given whole.
        assert len(text) <= 4 * tokens or len(given_now) == 1, (tokens, len(text), [each["path"] for each in given_now])
        paths += [entry["path"] for entry in given_now]
        following = answer.get("next")
        if following is None:
            break
    return paths


CHAIN = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.requirement("SIZE-2")
@given(st.randoms())
@CHAIN
def test_going_on_with_a_search_gives_each_result_once_whatever_the_sizes(shelf, chance):
    whole = [hit["path"] for hit in shelf.search("walrus", tokens=50_000)["results"]]
    assert len(whole) == 48
    assert _chain(shelf, "search", chance, "results", query="walrus") == whole


@pytest.mark.requirement("SIZE-1", "SIZE-2")
def test_what_says_where_to_go_on_counts_too_in_a_large_folder(place, session):
    """Documents of high numbers: the last pages carry what forty others were."""
    for number in range(300):
        place.write(f"memory/other {number}.md", f"something else {number}\n", at=OLD)
    for number in range(48):
        place.write(f"memory/later/{number}.md", f"walrus own{number}\n", at=OLD)
    memory = session().settled()
    over = []
    for tokens in range(120, 260, 3):
        following, paths = None, []
        for _ in range(100):
            text, answer = _text(memory, "search", query="walrus", tokens=tokens, next=following)
            paths += [hit["path"] for hit in answer["results"]]
            following = answer.get("next")
            if len(text) > 4 * tokens and len(answer["results"]) > 1:
                over.append((tokens, len(text)))
            if not following:
                break
        assert sorted(paths) == sorted(f"memory/later/{number}.md" for number in range(48))
    assert over == []


@pytest.mark.requirement("SIZE-2")
@given(st.randoms())
@CHAIN
def test_going_on_with_a_listing_by_newest_gives_each_document_once(shelf, chance):
    whole = [hit["path"] for hit in shelf.search("", path="memory", tokens=50_000)["results"]]
    assert len(set(whole)) == 48
    assert _chain(shelf, "search", chance, "results", query="", path="memory") == whole


@pytest.mark.requirement("SIZE-4")
@given(st.randoms(), st.sampled_from([None, "2020-01-01"]))
@CHAIN
def test_going_on_with_a_list_gives_each_entry_once(shelf, chance, since):
    whole = [entry["path"] for entry in shelf.list(tokens=50_000, since=since)["documents"]]
    assert len(set(whole)) == 48
    assert _chain(shelf, "list", chance, "documents", since=since) == whole


@pytest.mark.requirement("SIZE-2")
@given(st.randoms())
@CHAIN
def test_going_on_with_a_read_gives_the_text(shelf_place, shelf, chance):
    path = chance.choice([entry["path"] for entry in shelf.list(tokens=50_000)["documents"]])
    text, line = "", 1
    while line:
        tokens = chance.choice([400, 900, 6000])
        answer, part = _text(shelf, "read", path=path, line=line, tokens=tokens)
        assert len(answer) <= 4 * tokens
        text, line = text + part["text"] + ("…\n" if part.get("cut") else ""), part.get("next")
    written = (shelf_place.home / path).read_text().split("\n")
    read = text.removesuffix("…\n").split("\n")
    assert len(read) == len(written)
    assert all(line.startswith(kept.removesuffix("…")) for line, kept in zip(written, read, strict=True))


@pytest.mark.requirement("SIZE-4")
def test_a_list_says_how_many_entries_are_left_and_goes_on(shelf):
    text, first = _text(shelf, "list", tokens=300)
    assert len(text) <= 1200
    assert first["left"] == 48 - len(first["documents"])
    assert "left" not in shelf.list(tokens=50_000)


@pytest.mark.requirement("SIZE-4")
def test_links_leave_out_whole_entries_and_say_how_many(place, session):
    place.write("memory/hub.md", "".join(f"[[note {number}]]\n" for number in range(300)))
    for number in range(300):
        place.write(f"memory/note {number}.md", f"# Note {number}\n\n[[hub]]\n")
    memory = session().settled()
    for tokens in (50, 100, 500, 2000, 20_000):
        text, answer = _text(memory, "links", path="memory/hub.md", tokens=tokens)
        assert len(text) <= 4 * tokens
        assert len(answer["to"]) + len(answer["from"]) + answer.get("left", 0) == 600
        assert [link["as"] for link in answer["to"]] == [f"note {number}" for number in range(len(answer["to"]))]
    assert "left" not in answer


@pytest.mark.requirement("SIZE-4")
def test_links_of_a_document_with_a_long_path_keep_the_size_too(place, session):
    path = "memory/" + "/".join(["a rather long folder name" * 4] * 6) + "/hub.md"
    place.write(path, "".join(f"[[note {number}]]\n" for number in range(300)))
    memory = session().settled()
    for tokens in (300, 400, 1000):
        text, answer = _text(memory, "links", path=path, tokens=tokens)
        assert len(text) <= 4 * tokens, (tokens, len(text))
        assert len(answer["to"]) + answer["left"] == 300
