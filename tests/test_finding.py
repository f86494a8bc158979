"""What words find though they are not written as the question has them: endings, days, neighbours, small words."""

import os
import subprocess
from datetime import UTC, datetime

import pytest

from lnk.memory.index import _schema
from lnk.memory.lexical import _TOKENIZER


def _at(day: str) -> float:
    return datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()


@pytest.mark.requirement("RANK-2")
@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("The roof was insured against hail.", "insurance of roofs"),
        ("We are repairing the bicycles.", "repaired bicycle"),
        ("Компания арендовала два склада.", "аренда складов компании"),
        ("Evin kapıları yenilendi.", "kapısı yenilenen ev"),
        (
            "Die Versicherungen für das Gebäude sind gekündigt.",
            "Kündigung der Gebäudeversicherung, gekündigte Versicherung",
        ),
        ("المستأجر يدفع الإيجار في أول الشهر", "متى يدفع مستأجر إيجاره"),
        ("وبالسيارة سافرنا إلى البحر", "سيارة"),
        ("ผู้เช่าจ่ายค่าเช่าทุกเดือน", "จ่ายค่าเช่า"),
    ],
)
def test_a_word_is_found_whatever_its_ending(place, session, text, query):
    place.write("memory/found.md", f"# Note\n\n{text}\n")
    place.write("memory/other.md", "# Another\n\nNothing of all that.\n")
    assert session().settled().paths(query)[:1] == ["memory/found.md"]


@pytest.mark.requirement("RANK-2")
@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("Der Mietvertrag endet im Mai.", "Mietvertragsende"),
        ("The dishwasher needs descaling.", "dishwaser"),
        ("Restaurant Zur Krone, am See", "restaurnat"),
        ("Il contratto è stato rinnovato.", "rinnovazione del contratto"),
    ],
)
def test_a_word_that_is_hardly_there_is_found_by_what_is_most_like_it(place, session, text, query):
    place.write("memory/found.md", f"# Note\n\n{text}\n")
    place.write("memory/other.md", "# Another\n\nNothing of all that, dis and dat.\n")
    (found,) = session().settled().search(query)["results"]
    assert (found["path"], found["matched"]) == ("memory/found.md", ["words"])


@pytest.mark.requirement("RANK-2")
def test_what_is_like_a_word_never_passes_what_holds_it(place, session):
    for number in range(4):
        place.write(f"memory/like{number}.md", f"# Note {number}\n\nThe restoration and the restaurants of {number}.\n")
    place.write("memory/itself.md", "# Long\n\n" + "What else there is to say of it. " * 30 + "A restaurateur came.\n")
    assert session().settled().paths("restaurateur")[0] == "memory/itself.md"


@pytest.mark.requirement("RANK-2", "RANK-10")
def test_numbers_and_codes_are_found_as_they_are_written_alone(place, session):
    place.write("memory/one.md", "# One\n\nInvoice INV20417 for 18340 was paid.\n")
    memory = session().settled()
    assert memory.paths("INV20418") == memory.paths("18341") == []


@pytest.mark.requirement("RANK-2", "INDEX-12")
def test_what_is_like_a_word_is_gone_with_its_document(place, session):
    file = place.write("memory/one.md", "# One\n\nThe dishwasher needs descaling.\n")
    place.write("memory/two.md", "# Two\n\nNothing of all that.\n")
    memory = session().settled()
    assert memory.paths("dishwaser") == ["memory/one.md"]
    file.unlink()
    assert memory.paths("dishwaser") == []


_BOATS = {
    "2023-05-08": "a red boat with two sails, which Ana wants to buy",
    "2023-05-09": "the price of moorings and who pays them every year",
    "2022-05-08": "oars, ropes, and where to keep them all winter long",
    "2023-08-08": "fish that nobody has seen since the bridge was built",
}


@pytest.mark.requirement("RANK-2")
def test_a_day_in_words_finds_what_was_changed_then(place, session):
    for day in _BOATS:
        place.write(f"memory/{day}.txt", f"We met at the harbour and talked about {_BOATS[day]}.\n", at=_at(day))
    memory = session().settled()
    for query in ("what did we talk about on 8 May 2023", "harbour, May 8 2023"):
        assert memory.paths(query)[0] == "memory/2023-05-08.txt"


@pytest.mark.requirement("RANK-2", "INDEX-12")
def test_a_file_that_is_only_touched_is_found_by_its_new_day_and_no_more_by_the_old_one(place, session):
    file = place.write("memory/a.txt", "We met at the harbour.\n", at=_at("2021-01-02"))
    place.write("memory/b.txt", "We met at the station.\n", at=_at("2024-06-02"))
    memory = session().settled()
    assert memory.paths("January 2021") == ["memory/a.txt"]
    os.utime(file, (_at("2022-03-04"),) * 2)
    assert memory.paths("March 2022") == ["memory/a.txt"]
    assert memory.paths("January 2021") == []
    file.unlink()
    assert memory.paths("March 2022") == []
    memory.close()
    engine = place.argv()[0]
    checked = [engine, "check", str(place.home), str(place.state), str(place.agent)]
    assert subprocess.run(checked, capture_output=True, check=False).returncode == 0


@pytest.mark.requirement("RANK-2")
def test_words_that_stand_side_by_side_as_in_the_question_come_first(place, session):
    place.write("memory/a.md", "# A\n\nThe garden has a wall, and a stone lies before its old door of oak.\n", at=5e8)
    place.write(
        "memory/b.md", "# B\n\nThe door has a stone wall, and a garden lies before its old oak of all.\n", at=4e8
    )
    place.write(
        "memory/c.md", "# C\n\nThe wall has an old oak, and a garden lies before its door of wood stone.\n", at=6e8
    )
    memory = session().settled()
    assert memory.paths("stone wall garden")[0] == "memory/b.md"
    assert memory.paths("old oak")[-1] == "memory/a.md"


@pytest.mark.requirement("RANK-2", "RANK-10")
def test_small_words_of_a_question_find_nothing_by_themselves_but_alone_they_do(place, session):
    place.write("memory/boiler.md", "# Boiler\n\nService every autumn; call Hansen about pressure.\n")
    small = (
        "What is it that you have there? This is what we had when they were here, and who did it is for us to say.\n"
    )
    place.write("memory/talk.md", "# Talk\n\n" + small * 3)
    memory = session().settled()
    assert memory.paths("who is it that we have to call when the boiler has no pressure")[0] == "memory/boiler.md"
    assert memory.paths("what is it") == ["memory/talk.md"]


@pytest.mark.requirement("RANK-2")
def test_a_sections_heading_counts_as_a_title_does(place, session):
    chapter = "We look at the tyres, the chain and the brakes.\n\n"
    place.write(
        "memory/bicycle.md", "# Bicycle\n\n" + chapter + "## Winter storage\n\n" + chapter + "## Lamps\n\n" + chapter
    )
    place.write(
        "memory/cellar.md", "# Cellar\n\nIn winter the storage of apples is in the cellar, for winter is long.\n"
    )
    assert session().settled().paths("winter storage") == ["memory/bicycle.md", "memory/cellar.md"]


@pytest.mark.requirement("RANK-3")
def test_turns_of_a_conversation_are_found_together_with_what_was_said_around_them(place, session):
    turns = [f"## 2026-02-0{day} 10:00 · {who}\n\n{said}\n" for day, who, said in (
        (1, "Ana", "Which paint did we take for the fence?"),
        (1, "Agent", "Larch oil, two coats."),
        (2, "Ana", "Good. Order five litres."),
    )]  # fmt: skip
    place.write("chats/link-main/conversation.md", "# Fence\n\n" + "\n".join(turns))
    (found,) = session().settled().search("how many litres of oil")["results"]
    assert all(said in found["text"] for said in ("Which paint", "Larch oil", "five litres"))


@pytest.mark.requirement("RANK-9")
def test_what_a_filter_left_out_is_counted_whatever_its_ending(place, session):
    place.write("memory/a/found.md", "Компания арендовала два склада.\n")
    place.write("memory/b/other.md", "Nothing of all that.\n")
    empty = session().settled().search("аренда складов компании", path="memory/b")
    assert empty["results"] == []
    assert "left out 1 document that match" in empty["empty"]


@pytest.mark.requirement("RANK-2")
def test_a_question_is_cut_into_words_as_the_index_is():
    """How common a word is, is looked up under the form that the index keeps."""
    told = " ".join(each if " " not in each else f"'{each}'" for each in _TOKENIZER)
    assert f'tokenize="{told}"' in _schema()
