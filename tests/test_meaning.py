"""Search by meaning through the real program: what is embedded, which vectors are used, and which model serves.

The model is `ends.model_server`: its vectors are sums of its words' vectors, and `SAME` makes words mean the same.
"""

import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import ENGINE, Place, Session
from ends.faults import soon
from ends.meanings import DIMS, SAME, SPEC, Held, complete, first, found, read, rows, texts, told, wrong_rows
from ends.model_server import BEHAVIOURS, Asked, ModelServer, Part
from lnk.contract.embedding import parse_address
from lnk.folder import Folder
from lnk.memory import meaning
from lnk.memory.embedding import HEADROOM, PROBE, inputs, question_of, tokens_of
from lnk.memory.endpoint import Endpoint
from lnk.memory.index import Index
from lnk.memory.meaning import BATCH_CHUNKS, Meaning, Pair

Memory = Callable[..., Session]
OLD: Final = 1_600_000_000.0


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(dims=DIMS, same=SAME) as model:
        yield model


@pytest.fixture
def memory(place: Place, open_session: Callable[..., Session], server: ModelServer) -> Memory:
    """Starts a session over `place` whose model is the server's."""

    def start(spec: str = SPEC, url: str | None = None, **more: object) -> Session:
        return open_session(place.argv("--spec", spec), env=told(server.url if url is None else url), **more)

    return start


# ------------------------------------------------------------ one search


@pytest.mark.requirement("RANK-1", "RANK-3")
def test_what_says_it_in_other_words_is_found_and_each_hit_says_by_what(place, memory, server):
    place.write("memory/garage.md", "# Garage\n\nThe car was fixed in May.\n")
    place.write("memory/hedge.md", "# Hedge\n\nThe bush was cut in June.\n")
    session = complete(memory())
    assert first(session, "auto repaired") == ("memory/garage.md", ["meaning"])
    assert first(session, "shrub") == ("memory/hedge.md", ["meaning"])
    assert first(session, "car repaired") == ("memory/garage.md", ["words", "meaning"])
    hit = session.search("auto repaired")["results"][0]
    assert (hit["text"], hit["lines"]) == ("# Garage\n\nThe car was fixed in May.", [1, 3])
    assert [each.texts for each in server.asked].count(["auto repaired"]) == 1, "it is known the second time"


@pytest.mark.requirement("RANK-9")
def test_filters_leave_out_before_the_best_by_meaning_are_cut(place, memory):
    """One document has more chunks that are nearer than are looked up at once; each filter asks for another."""
    sections = "".join(f"## Part {number}\n\nThe car number {number}.\n\n" for number in range(450))
    place.write("memory/cars.md", f"# Cars\n\n{sections}", at=OLD + 10)
    for number in range(60):
        place.write(f"memory/car {number}.md", f"# Car {number}\n\nThe car.\n", at=OLD + 10)
    place.write("memory/deep/hedge.md", "# Hedge\n\nIt was cut.\n", at=OLD)
    place.write("chats/link-main/conversation.md", "# Talk\n\nOf the weather.\n", at=OLD)
    session = complete(memory())
    everything = found(session, "auto", tokens=50_000)
    assert "memory/deep/hedge.md" not in everything
    assert found(session, "auto", path="memory/deep") == {"memory/deep/hedge.md": ["meaning"]}
    assert found(session, "auto", kind="conversation") == {"chats/link-main/conversation.md": ["meaning"]}
    now = session.list()["now"]
    place.write("memory/late.md", "# Late\n\nIt rains.\n", at=OLD)
    complete(session)
    assert found(session, "auto", since=now) == {"memory/late.md": ["meaning"]}


@pytest.mark.requirement("RANK-7", "RANK-9")
def test_copies_that_are_found_by_meaning_come_once(place, memory):
    text = "# Garage\n\nThe car was fixed in May, and " + " ".join(f"word{number}" for number in range(30)) + ".\n"
    place.write("memory/garage.md", text, at=OLD)
    place.write("memory/archive/garage of then.md", text, at=OLD + 5)
    session = complete(memory())
    (hit,) = session.search("auto repaired")["results"]
    assert (hit["path"], hit["copies"]) == ("memory/garage.md", ["memory/archive/garage of then.md"])
    assert found(session, "auto repaired", path="memory/archive") == {"memory/archive/garage of then.md": ["meaning"]}


@pytest.mark.requirement("RANK-3")
def test_the_title_stands_before_each_part_of_its_document(place, memory, server):
    place.write("memory/a.md", "# Garage\n\nThe car.\n\n## Tools\n\nA hammer.\n")
    place.write("chats/link-main/conversation.md", "## Owner\n\nWhere is the hammer?\n")
    complete(memory())
    assert sorted(texts(server)) == [
        "Garage\n\n# Garage\n\nThe car.",
        "Garage\n\n## Tools\n\nA hammer.",
        "Owner\n\n## Owner\n\nWhere is the hammer?",
    ]


@pytest.mark.requirement("VECT-1")
def test_the_index_holds_a_vector_a_chunk_and_the_name_of_the_model_that_made_it(place, memory, server):
    place.write("memory/a.md", "# Garage\n\nThe car.\n\n## Tools\n\nA hammer.\n")
    complete(memory())
    assert [row.text for row in rows(place)] == ["# Garage\n\nThe car.\n\n", "## Tools\n\nA hammer.\n"]
    assert wrong_rows(place, server) == []
    ((model, name, dims),) = read(place, "SELECT id, name, dims FROM models")
    assert (name, dims) == ("test", DIMS)
    assert {row.model for row in rows(place)} == {model}


@pytest.mark.requirement("CONTRACT-15")
@pytest.mark.parametrize("spec", ['{"model": "none"}', SPEC])
def test_the_vectors_of_what_is_deleted_leave_the_index_where_no_model_is_there_any_more(
    place, open_session, server, spec
):
    note = place.write("memory/a.md", "# Garage\n\nThe car.\n")
    place.write("memory/b.md", "# Boat\n\nThe boat.\n")
    with complete(open_session(place.argv("--spec", SPEC), env=told(server.url))):
        assert len(read(place, "SELECT id FROM vectors")) == 2
    note.unlink()
    place.write("memory/c.md", "# Bridge\n\nThe bridge.\n")  # for which the model is asked, and is not there
    address = told(server.url)
    server.close()
    memory = open_session(place.argv("--spec", spec), env=address).settled()
    assert memory.paths("boat") == ["memory/b.md"]
    assert soon(lambda: len(read(place, "SELECT id FROM vectors")) == 1)


# ------------------------------------------------------------ titles


@pytest.mark.requirement("RANK-4")
def test_a_title_that_is_a_files_name_is_embedded_by_itself_where_it_tells_documents_apart(place, memory, server):
    place.write("memory/Torque values.md", "Tighten the stem to five.\n")
    place.write("memory/named.md", "# Not by its file\n\nBut by its heading.\n")
    place.write("memory/Report 1.md", "January.\n")
    place.write("memory/Report 2.md", "February.\n")
    place.write("memory/a/Dentist.md", "Monday.\n")
    place.write("memory/b/dentist.md", "Tuesday.\n")
    place.write("chats/link-main/conversation.md", "Hello.\n")
    complete(memory())
    assert sorted(texts(server)) == sorted(
        [
            *("Torque values", "Torque values\n\nTighten the stem to five."),
            "Not by its file\n\n# Not by its file\n\nBut by its heading.",
            *("Report 1\n\nJanuary.", "Report 2\n\nFebruary.", "Dentist\n\nMonday.", "dentist\n\nTuesday."),
            "link-main\n\nHello.",
        ]
    )


@pytest.mark.requirement("RANK-4")
def test_a_hit_through_its_title_shows_the_documents_beginning(place, memory):
    body = "\n\n".join(f"Paragraph {number} says this and that of bolts. " + "words " * 120 for number in range(6))
    place.write("memory/torque.md", body + "\n")
    place.write("memory/hedge.md", "# Hedge\n\nThe bush was cut in June.\n")
    hit = complete(memory()).search("spanner")["results"][0]
    assert (hit["path"], hit["matched"], hit["lines"][0]) == ("memory/torque.md", ["meaning"], 1)
    assert hit["text"].startswith("Paragraph 0 says")


@pytest.mark.requirement("RANK-4")
def test_a_title_that_comes_to_repeat_finds_its_document_no_more(place, memory):
    """Its vector was made while it told the document apart."""
    place.write("memory/a/torque.md", " ".join(f"other{number}" for number in range(30)))
    place.write("memory/bolt.md", "# Bolt\n\nThe torque of it is five.\n")
    session = complete(memory())
    assert first(session, "spanner")[0] == "memory/a/torque.md"
    place.write("memory/b/torque.md", " ".join(f"another{number}" for number in range(30)))
    complete(session)
    assert soon(lambda: first(session, "spanner")[0] == "memory/bolt.md")


# ------------------------------------------------------------ how far


@pytest.mark.requirement("VECT-5", "VECT-7")
def test_an_answer_says_how_far_the_model_got_and_words_answer_meanwhile(place, memory, server):
    for number in range(40):
        place.write(f"memory/n{number}.md", f"# Note {number}\n\nThe car number{number}x.\n", at=OLD + number)
    held = server.behave = Held(through=1)
    session = memory().settled()
    held.wait()
    answer = session.search("number7x")
    assert answer["embedded"] == {"done": BATCH_CHUNKS, "of": 40}
    assert first(session, "number7x") == ("memory/n7.md", ["words"])
    assert first(session, "number39x") == ("memory/n39.md", ["words", "meaning"])
    assert set(found(session, "auto")) == {f"memory/n{number}.md" for number in range(24, 40)}, "the newest are first"
    held.let()
    complete(session)
    assert len(found(session, "auto", tokens=50_000)) == 40


@pytest.mark.requirement("VECT-5", "VECT-7")
@pytest.mark.parametrize("url", ["", "dead"])
def test_without_its_model_a_session_says_so_and_answers_by_words(place, memory, server, url):
    place.write("memory/garage.md", "# Garage\n\nThe car was fixed in May.\n")
    if url:
        url = server.url
        server.close()
    session = memory(url=url)
    for _ in range(3):
        assert session.search("car")["embedded"] == {"done": 0, "of": 1}
        assert found(session, "car") == {"memory/garage.md": ["words"]}
        assert found(session, "auto") == {}


@pytest.mark.requirement("VECT-6")
def test_none_means_words_alone_and_nobody_is_asked(place, memory, server):
    place.write("memory/garage.md", "# Garage\n\nThe car was fixed in May.\n")
    session = memory(spec='{"model": "none"}')
    assert "embedded" not in session.search("car")
    assert found(session, "car") == {"memory/garage.md": ["words"]}
    assert session.search("auto")["results"] == []
    session.close()
    assert server.connections == 0


# ------------------------------------------------------------ what changed


@pytest.mark.requirement("VECT-4")
@pytest.mark.parametrize("by", ["itself", "another"])
@pytest.mark.parametrize("how", ["changed", "removed"])
def test_the_vector_of_what_is_no_more_there_finds_nothing(place, memory, server, session, by, how):
    """By this program or by another, which knows no model; the first has the vector in memory, and makes no new one."""
    file = place.write("memory/garage.md", "# Garage\n\nThe car was fixed in May.\n")
    place.write("memory/hedge.md", "# Hedge\n\nThe bush was cut in June.\n")
    own = complete(memory())
    assert first(own, "auto repaired") == ("memory/garage.md", ["meaning"])
    server.behave = Held()
    if how == "changed":
        file.write_text("# Garage\n\nIt is let to a neighbour.\n")
    else:
        file.unlink()
    if by == "another":
        session("--spec", '{"model": "none"}').settled()
    assert found(own, "auto repaired") == {"memory/hedge.md": ["meaning"]}
    assert wrong_rows(place, server) == []


@pytest.mark.requirement("VECT-3", "VECT-4")
def test_a_large_folders_vectors_are_found_by_a_new_session_and_those_that_are_no_more_there_are_not(
    place, memory, server, session
):
    """They are kept in a file beside the index, which two programs have mapped."""
    parts = [f"## Part {number}\n\nOf the weather{number}x.\n\n" for number in range(2200)]
    place.write("memory/long.md", "# Long\n\n" + "".join(parts))
    place.write("memory/garage.md", "# Garage\n\nThe car was fixed in May.\n")
    one = complete(memory())
    assert soon((place.state / "vectors-1.cache").exists)
    other = complete(memory())
    for each in (one, other):
        assert first(each, "auto repaired") == ("memory/garage.md", ["meaning"])
    server.behave = Held()
    place.write("memory/garage.md", "# Garage\n\nIt is let.\n")
    session("--spec", '{"model": "none"}').settled()
    for each in (one, other):
        assert found(each, "auto repaired") == {"memory/long.md": ["meaning"]}
    server.behave.let()
    for each in (one, other):
        complete(each)
        assert set(found(each, "auto repaired")) == {"memory/garage.md", "memory/long.md"}
    assert wrong_rows(place, server) == []


@pytest.mark.requirement("VECT-4", "VECT-5")
def test_what_another_program_changed_is_embedded_by_the_one_that_has_the_model(place, memory, server, session):
    place.write("memory/garage.md", "# Garage\n\nThe car was fixed in May.\n")
    own, other = complete(memory()), session("--spec", '{"model": "none"}')
    place.write("memory/garage.md", "# Garage\n\nThe bush was cut in June.\n")
    assert other.settled().paths("bush") == ["memory/garage.md"]
    complete(own)
    assert first(own, "shrub") == ("memory/garage.md", ["meaning"])
    assert wrong_rows(place, server) == []


@pytest.mark.requirement("VECT-4")
def test_what_changes_while_its_text_is_with_its_model_keeps_no_vector_of_it(place, memory, server):
    """The chunk has the same number before and after; what comes back is of what it was."""
    for number in range(5):
        place.write(f"memory/n{number}.md", f"# Note {number}\n\nThe car number{number}x.\n")
    held = server.behave = Held()
    session = memory().settled()
    held.wait()
    place.write("memory/n1.md", "# Note 1\n\nOf the weather.\n")
    (place.memory / "n2.md").unlink()
    place.write("memory/n3.md", "# Another 3\n\nThe car number3x.\n")
    assert found(session, "weather") == {"memory/n1.md": ["words"]}
    held.let(1)
    held.wait()
    assert wrong_rows(place, server) == []
    held.let()
    complete(session)
    assert wrong_rows(place, server) == []
    assert len(rows(place)) == 4


def _sections(changed: int = -1) -> str:
    said = ["another" if number == changed else "one" for number in range(30)]
    parts = [f"## Part {number}\n\nIt says {each} thing{number}x." for number, each in enumerate(said)]
    return "\n\n".join(["# Long", *parts])


@pytest.mark.requirement("VECT-5")
def test_a_change_in_one_section_embeds_that_section_alone(place, memory, server):
    place.write("memory/long.md", _sections())
    session = complete(memory())
    asked = len(server.asked)
    assert len(texts(server)) == 30
    place.write("memory/long.md", _sections(changed=17))
    complete(session)
    assert texts(server, asked) == ["Long\n\n## Part 17\n\nIt says another thing17x."]
    assert wrong_rows(place, server) == []


@pytest.mark.requirement("VECT-5", "INDEX-12")
def test_what_is_the_same_is_embedded_once_whatever_becomes_of_its_file(place, memory, server):
    """Moved, moved back, touched, copied, indexed again, and served by a new session: nothing is asked again."""
    place.write("memory/long.md", _sections())
    place.write("memory/Torque values.md", "Tighten the stem to five.\n")
    session = complete(memory())
    asked = len(server.asked)
    (place.memory / "long.md").rename(place.memory / "longer.md")
    (place.memory / "deep").mkdir()
    (place.memory / "Torque values.md").rename(place.memory / "deep" / "Torque values.md")
    complete(session)
    (place.memory / "longer.md").rename(place.memory / "long.md")
    (place.memory / "deep" / "Torque values.md").touch()
    complete(session)
    place.write("memory/copy.md", _sections())
    complete(session)
    done = subprocess.run([ENGINE, "reindex", place.home, place.state, place.agent], stdout=subprocess.DEVNULL)
    assert done.returncode == 0
    complete(session)
    session.close()
    assert first(complete(memory()), "thing3x")[1] == ["words", "meaning"]
    assert texts(server, asked) == []
    assert wrong_rows(place, server) == []


@pytest.mark.requirement("VECT-5", "LINKS-2")
def test_a_folder_of_many_files_that_is_renamed_has_its_new_paths_its_links_and_no_old_ones(place, memory, server):
    """case watch-05: moved, moved back, and written with a capital; the vectors stay."""
    names = [f"n{number}.md" for number in range(500)]
    for number, name in enumerate(names):
        place.write(f"memory/one/{name}", f"# Note {number}\n\nThing{number}x, see [next](n{number + 1}.md).\n")
    place.write("memory/index.md", "[by its path](two/n7.md)\n")
    session = complete(memory())
    asked, last = len(server.asked), "one"
    for folder in ("two", "one", "One"):
        (place.memory / last).rename(place.memory / folder)
        last = folder
        assert session.paths("thing33x")[0] == f"memory/{folder}/n33.md"
        complete(session)
        paths = {path for (path,) in read(place, "SELECT path FROM documents")}
        assert paths == {"memory/index.md", *(f"memory/{folder}/{name}" for name in names)}
        assert [link["path"] for link in session.links(f"memory/{folder}/n33.md")["from"]] == [
            f"memory/{folder}/n32.md"
        ]
        assert [link["path"] for link in session.links(f"memory/{folder}/n33.md")["to"]] == [f"memory/{folder}/n34.md"]
        by_path = session.links("memory/index.md")["to"]
        assert [link.get("path") for link in by_path] == ["memory/two/n7.md" if folder == "two" else None]
    assert texts(server, asked) == []
    assert wrong_rows(place, server) == []


@pytest.mark.requirement("VECT-5", "INDEX-12")
def test_an_index_that_is_made_again_gets_its_own_vectors(place, memory, server):
    """What was held in memory is of rows that other chunks have by now."""
    for number in range(30):
        place.write(f"memory/n{number}.md", f"# Note {number}\n\nThe car number{number}x.\n", at=OLD + number)
    session = complete(memory())
    assert len(found(session, "auto", tokens=50_000)) == 30
    for number in range(30):
        place.write(f"memory/n{number}.md", f"# Note {number}\n\nOf weather{number}x.\n", at=OLD - number)
    place.write("memory/garage.md", "# Garage\n\nThe car was fixed in May.\n")
    for side in ("", "-wal", "-shm"):
        (place.state / f"index.sqlite{side}").unlink(missing_ok=True)
    complete(session)
    assert first(session, "auto repaired") == ("memory/garage.md", ["meaning"])
    assert wrong_rows(place, server) == []
    (place.memory / "garage.md").unlink()
    assert "memory/garage.md" not in found(session, "auto repaired", tokens=50_000)


# ------------------------------------------------------------ two programs


@pytest.mark.requirement("VECT-5")
def test_two_programs_over_one_index_embed_nothing_twice(place, memory, server):
    """Case embedding-10."""
    for number in range(60):
        place.write(f"memory/n{number}.md", f"# Note {number}\n\nThe car number{number}x.\n")
    held = server.behave = Held(through=1)
    one, other = memory().settled(), memory().settled()
    held.wait()
    for _ in range(20):
        assert "embedded" in other.search("auto")
    held.let()
    complete(one)
    complete(other)
    assert first(other, "auto")[1] == ["meaning"]
    assert max(Counter(texts(server)).values()) == 1
    assert len(texts(server)) == 60
    assert wrong_rows(place, server) == []


@pytest.mark.requirement("VECT-5")
def test_one_program_finds_by_what_the_other_has_embedded_so_far(place, memory, server):
    for number in range(40):
        place.write(f"memory/n{number}.md", f"# Note {number}\n\nThe car number{number}x.\n", at=OLD + number)
    held = server.behave = Held(through=1)
    one = memory().settled()
    held.wait()
    other = memory().settled()
    assert soon(lambda: len(found(other, "auto")) == BATCH_CHUNKS)
    assert other.search("auto")["embedded"] == {"done": BATCH_CHUNKS, "of": 40}
    held.let()
    complete(one)
    complete(other)
    assert max(Counter(texts(server)).values()) == 1


# ------------------------------------------------------------ models that are wrong

RIGHT: Final = "right lists shuffled chunked old cookie hung-up-after hung-up-later surplus early".split()
OTHERS: Final = ["other-model", "other-dims"]
NEVER: Final = ["slow", "silent"]
WRONG: Final = [name for name in BEHAVIOURS if name not in (*RIGHT, *OTHERS, *NEVER)]
WRONG += [f"says-{status}" for status in (301, 302, 400, 401, 404, 418, 429, 500, 503)]


def _models(place: Place) -> list[tuple]:
    return read(place, "SELECT name, dims FROM models ORDER BY id")


@pytest.mark.requirement("VECT-4", "VECT-7")
def test_whatever_a_model_comes_to_answer_words_find_it_and_no_wrong_vector_is_kept(place, memory, server):
    """After a good start. Each time that it is right again, all gets its vectors."""
    place.write("memory/garage.md", "# Garage\n\nThe car was fixed in May.\n")
    session = complete(memory())
    for number, behave in enumerate(WRONG):
        server.behave = behave
        asked = len(server.asked)
        place.write(f"memory/{behave}.md", f"# Note\n\nThe bush number{number}x.\n")
        assert first(session, f"number{number}x") == (f"memory/{behave}.md", ["words"]), behave
        server.wait_asked(asked + 2)
        assert session.search("car")["results"][0]["path"] == "memory/garage.md", behave
        assert wrong_rows(place, server) == [], behave
        server.behave = "right"
        complete(session)
        right = (f"memory/{behave}.md", ["words", "meaning"])
        assert soon(lambda query=f"shrub number{number}x", right=right: first(session, query) == right), behave
    assert wrong_rows(place, server) == []
    assert len(rows(place)) == len(WRONG) + 1
    assert _models(place)[0] == ("test", DIMS)


@pytest.mark.requirement("VECT-4", "VECT-7")
def test_a_model_that_was_never_right_leaves_no_vector_until_it_is(place, memory, server):
    place.write("memory/garage.md", "# Garage\n\nThe car was fixed in May.\n")
    place.write("memory/hedge.md", "# Hedge\n\nThe bush was cut in June.\n")
    server.behave = WRONG[0]
    session = memory()
    for behave in WRONG:
        server.behave = behave
        asked = len(server.asked)
        answer = session.search("car")
        assert [hit["path"] for hit in answer["results"]] == ["memory/garage.md"], behave
        assert answer["embedded"] == {"done": 0, "of": 2}, behave
        server.wait_asked(asked + 1)
        assert rows(place) == [], behave
    server.behave = "right"
    complete(session)
    assert soon(lambda: first(session, "auto repaired") == ("memory/garage.md", ["meaning"]))
    assert wrong_rows(place, server) == []


@pytest.mark.requirement("VECT-4", "VECT-6")
@pytest.mark.parametrize("behave", OTHERS)
def test_the_vectors_of_another_model_in_its_place_are_never_compared_with_its_own(place, memory, server, behave):
    """Case embedding-06: known by its vectors, since a server may name whatever it likes."""
    for number in range(20):
        place.write(f"memory/n{number}.md", f"# Note {number}\n\nThe car number{number}x.\n")
    session = complete(memory())
    assert len(found(session, "auto")) == 20
    asked, server.behave = len(server.asked), behave
    assert found(session, "repaired") == {}, "a question's vector is the other model's"
    complete(session)
    assert len(found(session, "auto")) == 20
    assert len(texts(server, asked)) == 20
    assert _models(place) == [("test", DIMS), ("test", DIMS + (behave == "other-dims"))]
    mine, others = ([row for row in rows(place) if row.model == model] for model in (1, 2))
    assert (len(mine), len(others)) == (20, 20)
    assert not [row for row in wrong_rows(place, server) if row.model == 1]
    if behave == "other-model":
        assert not [row for row in wrong_rows(place, server, f"not {server.model}") if row.model == 2]
    asked, server.behave = len(server.asked), "right"
    assert found(session, "fixed again") == {}
    complete(session)
    assert len(found(session, "fixed at last")) == 20
    assert texts(server, asked) == [], "its own vectors are still there"


def _longer_questions(server: ModelServer, asked: Asked) -> Iterator[Part]:
    """Right, but for questions, which get a number more."""
    return BEHAVIOURS["right" if PROBE in asked.texts else "other-dims"](server, asked)


def _stalls_at_the_fixed_sentence(server: ModelServer, asked: Asked) -> Iterator[Part]:
    if asked.texts == [PROBE]:
        server.ending.wait()
    yield from BEHAVIOURS["right"](server, asked)


@pytest.mark.requirement("VECT-7")
def test_a_model_that_stalls_at_the_fixed_sentence_holds_up_one_question_and_no_later_one(place, open_session):
    place.write("memory/garage.md", "# Garage\n\nThe car was fixed in May.\n")
    with ModelServer(dims=DIMS, same=SAME) as server:
        memory = complete(open_session(place.argv("--spec", SPEC), env=told(server.url)))
        server.behave = _stalls_at_the_fixed_sentence
        assert memory.paths("fixed car") == ["memory/garage.md"]
        server.behave = "right"
        assert soon(lambda: first(memory, "auto repaired") == ("memory/garage.md", ["meaning"]))


@pytest.mark.requirement("VECT-4", "VECT-7")
def test_a_questions_vector_of_another_length_is_compared_with_nothing(place, memory, server):
    place.write("memory/garage.md", "# Garage\n\nThe car was fixed in May.\n")
    session = complete(memory())
    server.behave = _longer_questions
    for query in ("car fixed", "May car"):
        assert found(session, query) == {"memory/garage.md": ["words"]}
    server.behave = "right"
    complete(session)
    assert soon(lambda: first(session, "auto repaired") == ("memory/garage.md", ["meaning"]))


@pytest.mark.requirement("VECT-4", "VECT-6")
def test_a_model_that_changes_while_it_embeds_mixes_nothing(place, memory, server):
    for number in range(50):
        place.write(f"memory/n{number}.md", f"# Note {number}\n\nThe car number{number}x.\n")
    held = server.behave = Held(through=1)
    session = memory().settled()
    held.wait()
    server.behave = "other-model"
    held.let()
    assert soon(lambda: len(_models(place)) == 2 or not session.search("auto")), _models(place)
    complete(session)
    assert not [row for row in wrong_rows(place, server) if row.model == 1]
    assert not [row for row in wrong_rows(place, server, f"not {server.model}") if row.model == 2]
    assert len([row for row in rows(place) if row.model == 2]) == 50


@pytest.mark.requirement("VECT-7")
def test_a_model_that_sends_elsewhere_is_not_followed(place, memory, server):
    place.write("memory/garage.md", "# Garage\n\nThe car was fixed in May.\n")
    with ModelServer(dims=DIMS, same=SAME) as target:
        server.elsewhere = target.url
        for status in (301, 302, 303, 307, 308):
            server.behave = f"says-{status}"
            asked = len(server.asked)
            session = memory()
            assert found(session, "car") == {"memory/garage.md": ["words"]}
            server.wait_asked(asked + 1)
            session.close()
        assert target.connections == 0


@pytest.mark.requirement("VECT-7")
@pytest.mark.parametrize("behave", NEVER)
def test_a_model_that_answers_too_late_is_not_waited_for_and_is_used_when_it_is_well_again(
    place, memory, server, behave
):
    place.write("memory/garage.md", "# Garage\n\nThe car was fixed in May.\n")
    session = complete(memory())
    server.behave, server.pause_s = behave, 3600
    place.write("memory/hedge.md", "# Hedge\n\nThe bush was cut in June.\n")
    for query in ("bush", "bush June", "cut bush"):
        assert found(session, query) == {"memory/hedge.md": ["words"]}
    assert wrong_rows(place, server) == []
    port = server.port
    server.close()
    with ModelServer(dims=DIMS, same=SAME, port=port):
        complete(session)
        assert soon(lambda: first(session, "shrub") == ("memory/hedge.md", ["meaning"]))


@pytest.mark.requirement("VECT-5", "VECT-7")
def test_a_text_that_its_model_refuses_is_left_to_its_words_and_all_others_are_embedded(place, memory, server):
    """Case embedding-08: it is asked once, with the others and alone, and then no more."""
    server.over = 300
    for number in range(10):
        place.write(f"memory/n{number}.md", f"# Note {number}\n\nThe car number{number}x.\n")
    place.write("memory/long.md", "# Long\n\n" + "Bushes are green. " * 40)
    session = complete(memory())
    assert len(found(session, "auto")) == 10
    assert first(session, "green") == ("memory/long.md", ["words"])
    assert [row.vector for row in rows(place) if len(row.vector) != DIMS] == [b""]
    asked = len(server.asked)
    place.write("memory/late.md", "# Late\n\nIt rains.\n")
    complete(session)
    assert not [text for text in texts(server, asked) if text.startswith("Long")]


def _poisoned(server: ModelServer, asked: Asked) -> Iterator[Part]:
    """A number that is none for one text, whatever it is asked with."""
    return BEHAVIOURS["nan" if any("poison" in text for text in asked.texts) else "right"](server, asked)


@pytest.mark.requirement("VECT-5", "VECT-7")
def test_a_text_that_its_model_always_fails_at_keeps_no_other_from_its_vector(place, memory, server):
    """Case embedding-01."""
    server.behave = _poisoned
    for number in range(40):
        word = "poison" if number == 30 else "car"
        place.write(f"memory/n{number}.md", f"# Note {number}\n\nThe {word} number{number}x.\n", at=OLD + number)
    session = memory().settled()
    assert soon(lambda: session.search("auto").get("embedded") == {"done": 39, "of": 40})
    assert len(found(session, "auto", tokens=50_000)) == 39
    assert first(session, "number30x") == ("memory/n30.md", ["words"])
    assert wrong_rows(place, server) == []
    session.close()
    server.behave = "right"
    session = complete(memory())
    assert first(session, "number30x") == ("memory/n30.md", ["words", "meaning"])
    assert max(Counter(text for text in texts(server) if "poison" not in text).values()) <= 5, "halved, not repeated"


@pytest.mark.requirement("VECT-5")
def test_a_slow_model_takes_turns_with_another_until_one_has_enough_to_rank_by(place, session, server, monkeypatch):
    for number in range(8):
        place.write(f"memory/n{number}.md", f"# Note {number}\n\nThe car number{number}x.\n", at=OLD + number)
    session().settled().close()
    monkeypatch.setattr(meaning, "TURN_S", 0.0)  # each turn is one batch
    monkeypatch.setattr(meaning, "BATCH_CHUNKS", 2)
    with Folder.open(str(place.state)) as state, ModelServer(dims=DIMS, same=SAME) as quick:
        pairs = [Pair(*(Endpoint(parse_address(each.url), name) for _ in range(2))) for each, name in (
            (server, "asked"), (quick, "other"))]  # fmt: skip
        both = Meaning(lambda: Index(state), state, pairs)
        both.start()
        both.poke()
        assert soon(lambda: _names(place).count("asked") == 8)
        assert both.stop(10)
    assert _names(place)[:6] == ["asked", "asked", "other", "other", "asked", "asked"], "in turns"
    assert _names(place).count("other") == 2, "half is enough, and then the first has it to itself"


def _names(place: Place) -> list[str]:
    """The models that made the vectors, in the order in which they did."""
    sql = "SELECT models.name FROM vectors JOIN models ON models.id = model ORDER BY vectors.rowid"
    return [name for (name,) in read(place, sql)]


@pytest.mark.requirement("VECT-5", "VECT-7")
def test_a_model_that_fails_at_all_texts_but_one_at_once_is_not_taken_for_one_that_fails_at_a_text(
    place, memory, server
):
    """Else nothing would be tried again for long."""
    place.write("memory/garage.md", "# Garage\n\nThe car was fixed in May.\n")
    session = complete(memory())
    asked, server.behave = len(server.asked), "twice"
    place.write("memory/hedge.md", "# Hedge\n\nThe bush was cut in June.\n")
    assert soon(lambda: bool(session.search("bush")) and len(texts(server, asked)) > 2)
    session.search("bush")
    server.behave = "right"
    complete(session)
    assert soon(lambda: first(session, "shrub") == ("memory/hedge.md", ["meaning"]))


@pytest.mark.requirement("RANK-10", "VECT-7")
def test_any_question_can_be_asked_of_a_model(place, memory, server):
    place.write("memory/garage.md", "# Garage\n\nThe car was fixed in May.\n")
    session = complete(memory())
    for query in ("car " * 25_000, "\0", "🙂", "'\"*()", "\u200b", "c" * 100_000):
        session.call("search", {"query": query})
    assert first(session, "auto repaired") == ("memory/garage.md", ["meaning"])
    assert max(len(text) for asked in server.asked for text in asked.texts) < 2000


# ------------------------------------------------------------ which model


@pytest.mark.requirement("VECT-6")
def test_with_no_model_named_the_default_is_asked_for(place, memory, server):
    place.write("memory/garage.md", "# Garage\n\nThe car was fixed in May.\n")
    session = complete(memory(spec="{}"))
    assert first(session, "auto repaired") == ("memory/garage.md", ["meaning"])
    assert {asked.body["model"] for asked in server.asked} == {"qwen3-embedding"}
    assert _models(place) == [("qwen3-embedding", DIMS)]


def _only_test(server: ModelServer, asked: Asked) -> Iterator[Part]:
    """A runtime that has one model."""
    if asked.body["model"] == "test":
        yield from BEHAVIOURS["right"](server, asked)
    else:
        yield b"HTTP/1.1 404 none\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.requirement("VECT-6")
def test_a_model_that_was_named_is_never_replaced(place, memory, server):
    server.behave = _only_test
    place.write("memory/garage.md", "# Garage\n\nThe car was fixed in May.\n")
    complete(memory()).close()
    asked = len(server.asked)
    session = memory(spec='{"model": "missing"}')
    for _ in range(3):
        answer = session.search("car")
        assert [hit["matched"] for hit in answer["results"]] == [["words"]]
        assert answer["embedded"] == {"done": 0, "of": 1}
        assert session.search("auto")["results"] == []
    server.wait_asked(asked + 1)
    assert {each.body["model"] for each in server.asked[asked:]} == {"missing"}


@pytest.mark.requirement("VECT-6")
@pytest.mark.parametrize(
    "url", ["http://192.0.2.1:80/v1", "https://127.0.0.1:1/v1", "http://127.0.0.1.example:1/v1", "ollama"]
)
def test_an_address_of_another_machine_is_refused(place, url):
    done = subprocess.run(
        place.argv("--spec", SPEC), env=told(url), stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (10, "", 1)
    assert done.stderr.startswith("lnk-link-memory: $LNK_MEMORY_MODEL is ")


# ------------------------------------------------------------ what is embedded

SCRIPTS: Final = st.text("ab1 \n.äñЖя中文かな한글ไทยहिंدبא🙂\u0301\ufe0f", max_size=400)
TITLES: Final = st.one_of(st.just(""), SCRIPTS, st.text(max_size=300))


def _bare(text: str) -> str:
    return "".join(text.split())


@settings(max_examples=300, deadline=None)
@given(TITLES, st.one_of(SCRIPTS, st.text(max_size=3000)), st.sampled_from([16, 40, 512, 8192]))
def test_no_part_of_a_text_is_left_out_and_none_is_longer_than_its_model_takes(title, text, tokens):
    """Case embedding-08: by the estimate; each part has the title, or its beginning, in front."""
    parts = inputs(title, text, tokens)
    assert all(tokens_of(part) <= tokens * HEADROOM + 1e-6 for part in parts)
    head = inputs(title, "x", tokens)[0][:-1] if text.strip() else ""
    assert title.strip().startswith(head.strip()) and all(part.startswith(head.rstrip()) for part in parts)
    bodies = "".join(_bare(part[len(head) :]) for part in parts)
    assert bodies == _bare(text if text.strip() else title)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(["a", "bicycle", "Zürich", "in", "1987", "Größe", "über"]), max_size=400),
    st.sampled_from([64, 512]),
)
def test_a_text_is_parted_between_its_words(words, tokens):
    parts = inputs("Note", " ".join(words), tokens)
    assert Counter(" ".join(parts).split()) == Counter(words) + Counter({"Note": len(parts) if words else 1})


def test_what_is_short_enough_is_one_text():
    assert inputs("Garage", "\n# Garage\n\nThe car.\n", 512) == ["Garage\n\n# Garage\n\nThe car."]
    assert inputs("", "The car.", 512) == ["The car."]
    assert inputs("Garage", " \n", 512) == ["Garage"]
    assert inputs("", "", 512) == [""]
    assert len(inputs("Garage", "x" * 1400, 512)) == 1
    assert len(inputs("Garage", "x" * 1600, 512)) == 2
    assert len(inputs("车库", "修" * 500, 512)) == 1
    assert len(inputs("车库", "修" * 520, 512)) == 2


def test_a_title_takes_a_quarter_of_an_input_and_stands_whole_where_it_is_alone():
    title = " ".join(f"word{number}" for number in range(30))
    assert (
        inputs(title, "The car.", 100)[0]
        == "word0 word1 word2 word3 word4 word5 word6 word7 word8 word9 word10\n\nThe car."
    )
    alone = inputs(title, "", 100)
    assert " ".join(alone) == title


@given(st.text(max_size=3000), st.sampled_from([16, 512, 100_000]))
def test_a_question_is_embedded_from_its_beginning_as_far_as_a_model_takes_it(text, tokens):
    asked = question_of(text, tokens)
    assert text.startswith(asked)
    assert tokens_of(asked) <= min(tokens, 512) * HEADROOM + 1e-6
    assert asked == text or tokens_of(text) > min(tokens, 512) * HEADROOM
