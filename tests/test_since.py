"""Catching up: what is new, changed or removed since a moment, on the index's own clock or the owner's calendar."""

import os
import random
import subprocess
import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import ENGINE
from lnk.errors import Invalid
from lnk.folder import Folder
from lnk.memory.index import Found, Index
from lnk.memory.parse import parse
from lnk.memory.times import format_time, parse_since

OLD = 1_600_000_000.0  # 2020-09-13T12:26:40Z
DAY = 86_400


def _states(answer: dict) -> dict[str, str | None]:
    """path -> new, changed or removed."""
    found = {entry["path"]: entry.get("state") for entry in answer["documents"]}
    gone = {entry["path"]: "removed" for entry in answer.get("removed", [])}
    assert not found.keys() & gone.keys()
    return found | gone


# ---------------------------------------------------------------- what happened


@pytest.mark.requirement("SINCE-1", "SINCE-5")
def test_a_list_since_gives_what_is_new_changed_and_removed(place, session):
    for name in ("stays", "changes", "goes", "moves"):
        place.write(f"memory/{name}.md", f"# {name.title()}\n", at=OLD)
    memory = session().settled()
    now = memory.list()["now"]
    assert memory.list(since=now) == {"documents": [], "now": now}
    place.write("memory/comes.md", "# Comes\n", at=OLD + 1)
    place.write("memory/changes.md", "# Changed\n", at=OLD + 2)
    (place.memory / "goes.md").unlink()
    (place.memory / "moves.md").rename(place.memory / "moved.md")
    answer = memory.list(since=now)
    size = {"comes": 8, "changes": 10, "moved": 8}
    assert sorted(answer["documents"], key=lambda entry: entry["path"]) == [
        {
            "path": f"memory/{name}.md",
            "title": title,
            "kind": "document",
            "changed": changed,
            "bytes": size[name],
            "state": state,
        }
        for name, title, changed, state in (
            ("changes", "Changed", "2020-09-13T12:26:42Z", "changed"),
            ("comes", "Comes", "2020-09-13T12:26:41Z", "new"),
            ("moved", "Moves", "2020-09-13T12:26:40Z", "new"),
        )
    ]
    assert sorted((gone["path"], gone["title"]) for gone in answer["removed"]) == [
        ("memory/goes.md", "Goes"),
        ("memory/moves.md", "Moves"),
    ]
    assert answer["now"] > now
    assert memory.list(since=answer["now"])["documents"] == []
    assert set(memory.paths("changed comes moves", since=now)) == {f"memory/{name}.md" for name in size}


@pytest.mark.requirement("SINCE-1")
def test_a_list_since_takes_a_path_and_a_kind_too(place, session):
    place.write("memory/a/one.md", "one\n")
    place.write("memory/b/two.md", "two\n")
    memory = session().settled()
    now = memory.list()["now"]
    for path in ("memory/a/one.md", "memory/b/two.md"):
        (place.home / path).unlink()
    place.write("memory/a/three.md", "three\n")
    place.write("chats/link-main/conversation.md", "## Ana\n")
    assert _states(memory.list(since=now, path="memory/a")) == {
        "memory/a/one.md": "removed",
        "memory/a/three.md": "new",
    }
    assert _states(memory.list(since=now, kind="conversation")) == {"chats/link-main/conversation.md": "new"}


@pytest.mark.requirement("SINCE-2")
def test_a_file_copied_in_with_an_old_date_is_new(place, session):
    """case time-04: by a number and by a date."""
    place.write("memory/before.md", "before\n", at=OLD)
    memory = session().settled()
    now = memory.list()["now"]
    place.write("memory/copied.md", "from 2019\n", at=OLD - 300 * DAY)
    assert _states(memory.list(since=now)) == {"memory/copied.md": "new"}
    yesterday = (datetime.now() - timedelta(days=1)).strftime("%Y-%m-%d")
    assert _states(memory.list(since=yesterday)) == {"memory/copied.md": "new"}
    assert memory.paths("2019", since=yesterday) == ["memory/copied.md"]


@pytest.mark.requirement("SINCE-2")
def test_a_folder_moved_in_is_new_though_its_files_are_as_they_were(place, session):
    """The move touches the folder alone: what counts is when the index first saw the files."""
    outside = place.home / "elsewhere"
    outside.mkdir()
    (outside / "a.md").write_text("# A\n")
    memory = session().settled()
    moment = datetime.now(UTC).isoformat()
    outside.rename(place.memory / "moved")
    assert _states(memory.list(since=moment)) == {"memory/moved/a.md": "new"}


@pytest.mark.requirement("SINCE-1")
def test_a_clock_that_was_set_back_hides_no_change(place, session):
    """The index's own clock never stands still or goes back: here the machine's was an hour ahead before."""
    place.write("memory/a.md", "a\n")
    session().settled().close()
    with Folder.open(str(place.state)) as state:
        index = Index(state)
        index.set_fact("clock", index.fact("clock") + 3_600_000_000)
        index.close()
    memory = session()
    now = memory.list()["now"]
    assert now > time.time() + 3000
    place.write("memory/b.md", "b\n")
    (place.memory / "a.md").unlink()
    answer = memory.list(since=now)
    assert _states(answer) == {"memory/a.md": "removed", "memory/b.md": "new"}
    assert _states(memory.list(since=answer["now"])) == {}


@pytest.mark.requirement("SINCE-4")
def test_what_was_there_at_the_first_start_is_not_new(place, session):
    """case time-05: 500 files, then one."""
    for number in range(500):
        place.write(f"memory/{number}.md", f"file {number}\n")
    place.write("chats/link-main/conversation.md", "## Ana\n")
    memory = session().settled()
    hour = time.time() - 3600
    assert _states(memory.list(since=hour, tokens=50_000)) == {}
    today = datetime.fromtimestamp(hour).strftime("%Y-%m-%dT%H:%M")
    states = memory.list(since=today, tokens=50_000)
    assert {entry["state"] for entry in states["documents"]} == {"changed"}  # written in the last hour, and not new
    place.write("memory/late.md", "late\n")
    place.write("chats/link-other/conversation.md", "## Ana\n")
    assert _states(memory.list(since=hour)) == {"memory/late.md": "new", "chats/link-other/conversation.md": "new"}


@pytest.mark.requirement("SINCE-4")
def test_an_index_that_is_made_again_makes_nothing_new_and_says_that_it_was(place, session):
    """case time-05: `reindex` keeps what it knew; a lost file is a first start again, and that is said."""
    place.write("memory/a.md", "a\n", at=OLD)
    memory = session().settled()
    now = memory.list()["now"]
    place.write("memory/b.md", "b\n", at=OLD)
    assert _states(memory.list(since=now)) == {"memory/b.md": "new"}
    memory.close()
    folders = [str(place.home), str(place.state), str(place.agent)]
    subprocess.run([ENGINE, "reindex", *folders], check=True, capture_output=True)
    assert _states(session().list(since=now)) == {"memory/b.md": "new"}
    (place.state / "index.sqlite").write_bytes(b"no index " * 1000)
    answer = session().settled().list(since=now)
    assert _states(answer) == {}
    assert datetime.fromisoformat(answer["remade"]).timestamp() > now - 1


def test_the_same_bytes_written_again_are_no_change(place, session):
    place.write("memory/a.md", "a\n", at=OLD)
    memory = session().settled()
    now = memory.list()["now"]
    place.write("memory/a.md", "a\n")
    os.utime(place.memory / "a.md")
    assert _states(memory.list(since=now)) == {}


# ---------------------------------------------------------------- a chain of calls


@pytest.mark.requirement("SINCE-1", "SINCE-5")
@pytest.mark.parametrize("seed", range(4))
def test_a_chain_of_calls_misses_nothing_and_repeats_nothing(place, session, seed):
    """20 rounds of changes, the engine started anew now and then; each call gives what came since the one before."""
    chance = random.Random(seed)
    texts: dict[str, str] = {}
    for number in range(6):
        texts[f"memory/{number}.md"] = place.write(f"memory/{number}.md", f"text {number}\n", at=OLD).read_text()
    memory = session().settled()
    now = memory.list()["now"]
    for step in range(20):
        before = dict(texts)
        for _ in range(chance.randrange(4)):
            _change(place, chance, texts, step)
        if chance.random() < 0.15:
            memory.close()
            memory = session()
        answer = memory.list(since=now)
        while "indexed" in answer:
            answer = memory.list(since=now)
        expected = {path: "removed" for path in before if path not in texts}
        expected |= {path: "new" for path in texts if path not in before}
        expected |= {path: "changed" for path in texts if path in before and texts[path] != before[path]}
        assert _states(answer) == expected, f"round {step}"
        now = answer["now"]
    assert {entry["path"] for entry in memory.list()["documents"]} == texts.keys()


def _change(place, chance: random.Random, texts: dict[str, str], step: int) -> None:
    """One change to the folder, and to `texts`, which holds what is in it."""
    path = chance.choice(sorted(texts)) if texts else "memory/new.md"
    fresh = f"memory/{chance.choice('xyz')}/{chance.randrange(8)}.md"
    match chance.choice(["write", "write", "make", "make", "remove", "rename", "touch"]):
        case "write":
            texts[path] = place.write(path, f"text of round {step}, {chance.random()}\n", at=OLD + step).read_text()
        case "make":
            texts[fresh] = place.write(fresh, f"text {step % 3}\n", at=OLD - step).read_text()
        case "remove" if texts:
            (place.home / path).unlink()
            del texts[path]
        case "rename" if texts and not (place.home / fresh).exists():
            (place.home / fresh).parent.mkdir(exist_ok=True)
            (place.home / path).rename(place.home / fresh)
            texts[fresh] = texts.pop(path)
        case "touch" if texts:
            os.utime(place.home / path)


@pytest.mark.requirement("SINCE-1")
def test_a_catching_up_of_many_entries_goes_on_where_it_stopped(place, session):
    """Documents first, then what was removed; in small answers everything comes once."""
    for number in range(40):
        place.write(f"memory/old{number}.md", f"old {number}\n")
    memory = session().settled()
    now = memory.list()["now"]
    for number in range(40):
        (place.memory / f"old{number}.md").unlink()
        place.write(f"memory/new{number}.md", f"new {number}\n")
    pages = [memory.list(since=now, tokens=150)]
    while (following := pages[-1].get("next")) and len(pages) < 100:
        assert pages[-1]["left"] == 80 - sum(_entries(page) for page in pages)
        pages.append(memory.list(since=now, tokens=150, next=following))
    assert len(pages) > 20
    assert "left" not in pages[-1]
    paths = [entry["path"] for page in pages for entry in [*page["documents"], *page.get("removed", [])]]
    assert sorted(paths) == sorted(f"memory/{age}{number}.md" for age in ("old", "new") for number in range(40))


def _entries(page: dict) -> int:
    return len(page["documents"]) + len(page.get("removed", []))


# ---------------------------------------------------------------- what was removed


@pytest.mark.requirement("SINCE-3")
def test_the_latest_10000_removals_are_kept_and_what_is_made_again_is_not_among_them(tmp_path):
    """case time-06: 12,000 documents removed, in the index itself."""
    with Folder.open(str(tmp_path)) as state:
        index = Index(state)
        found = [
            Found(f"memory/{number:05}.md", "document", b"stamp", 5, 10**18, 10**18, None) for number in range(12_000)
        ]
        with index.writing():
            index.put([(one, parse(one.path, one.kind, b"# T\n")) for one in found], index.tick())
        times = []
        for start in range(0, 12_000, 250):
            with index.writing():
                times.append(index.tick())
                index.drop([one.path for one in found[start : start + 250]], times[-1])
        kept = index.rows("SELECT path, title, removed FROM removed ORDER BY path")
        assert kept == [(found[number].path, "T", times[number // 250]) for number in range(2_000, 12_000)]
        with index.writing():
            index.put([(found[-1], parse(found[-1].path, "document", b"# T\n"))], index.tick())
        assert index.value("SELECT count(*) FROM removed") == 9_999
        assert index.value("SELECT count(*) FROM removed WHERE path = ?", found[-1].path) == 0
        assert [index.value(f"SELECT count(*) FROM {table}") for table in ("documents", "chunks")] == [1, 1]
        index.close()


@pytest.mark.requirement("SINCE-3")
def test_a_file_that_is_made_again_is_no_longer_removed(place, session):
    place.write("memory/a.md", "# A\n")
    place.write("memory/b.md", "# B\n")
    memory = session().settled()
    now = memory.list()["now"]
    (place.memory / "a.md").unlink()
    (place.memory / "b.md").unlink()
    assert _states(memory.list(since=now)) == {"memory/a.md": "removed", "memory/b.md": "removed"}
    place.write("memory/a.md", "# Again\n")
    assert _states(memory.list(since=now)) == {"memory/a.md": "new", "memory/b.md": "removed"}
    assert [(gone["path"], gone["title"]) for gone in memory.list(since=now)["removed"]] == [("memory/b.md", "B")]


# ---------------------------------------------------------------- a day is the owner's day

ZONES = {"Pacific/Kiritimati": +14, "America/Los_Angeles": -7}  # hours from UTC in October


@pytest.mark.requirement("SINCE-5")
@pytest.mark.parametrize("zone", ZONES)
def test_a_day_begins_at_the_owners_midnight(place, open_session, zone):
    """case time-01: a file changed a quarter of an hour after midnight is of that day, one before is not."""
    if not Path("/usr/share/zoneinfo", zone).exists():
        pytest.skip(f"this machine does not know the zone {zone}: the owner's day was not checked")
    there = timezone(timedelta(hours=ZONES[zone]))
    midnight = datetime(2024, 10, 15, tzinfo=there)
    place.write("memory/after.md", "after\n", at=(midnight + timedelta(minutes=15)).timestamp())
    place.write("memory/noon.md", "noon\n", at=(midnight + timedelta(hours=12)).timestamp())
    place.write("memory/before.md", "before\n", at=(midnight - timedelta(minutes=15)).timestamp())
    memory = open_session(place.argv(), env={**os.environ, "TZ": zone}).settled()
    of_the_day = {"memory/after.md", "memory/noon.md"}
    assert set(_states(memory.list(since="2024-10-15"))) == of_the_day
    assert set(memory.paths("after noon before", since="2024-10-15")) == of_the_day
    assert set(_states(memory.list(since="2024-10-15T06:00"))) == {"memory/noon.md"}
    assert set(_states(memory.list(since="2024-10-14T23:40"))) == {*of_the_day, "memory/before.md"}
    in_utc = (midnight + timedelta(minutes=10)).astimezone(UTC)
    assert set(_states(memory.list(since=in_utc.strftime("%Y-%m-%dT%H:%M:%SZ")))) == of_the_day
    assert set(_states(memory.list(since=in_utc.isoformat()))) == of_the_day
    assert set(_states(memory.list(since=(midnight + timedelta(hours=1)).isoformat()))) == {"memory/noon.md"}
    changed = {entry["path"]: entry["changed"] for entry in memory.list()["documents"]}
    assert changed["memory/noon.md"] == (midnight + timedelta(hours=12)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.requirement("SINCE-5")
def test_since_is_a_date_or_a_number_and_all_else_is_refused_with_an_example(place, session):
    place.write("memory/a.md", "a\n", at=OLD)
    memory = session().settled()
    now = memory.list()["now"]
    place.write("memory/b.md", "b\n", at=OLD)
    assert _states(memory.list(since=now)) == _states(memory.list(since=str(now))) == {"memory/b.md": "new"}
    for date in ("2020-09-12", "2020-09-13T00:00", "2020-09-13T12:26:39+00:00", "20200912", " 2020-09-12 "):
        assert _states(memory.list(since=date)).keys() == {"memory/a.md", "memory/b.md"}, date
    for bad in (
        "yesterday",
        "02.11.2026",
        "2026-13-01",
        "2026-02-30",
        "nan",
        "inf",
        "-1",
        "1e30",
        "T",
        "2026-11-02T25:00",
    ):
        assert 'write a date such as "2026-11-02"' in memory.refused("list", since=bad), bad
    for bad in (-1, 1e30):
        assert 'write a date such as "2026-11-02"' in memory.refused("list", since=bad)
    with pytest.raises(Invalid, match="What list was given is not valid"):
        memory.call("list", {"since": [1]})


@given(st.text(max_size=40) | st.floats() | st.integers() | st.datetimes().map(str) | st.dates().map(str))
@settings(max_examples=300, deadline=None)
def test_any_since_is_a_moment_or_refused(value):
    try:
        since = parse_since(value)
    except Invalid as error:
        assert 'write a date such as "2026-11-02"' in str(error)
    else:
        assert isinstance(since.at, int)


@given(st.floats(min_value=0) | st.integers(min_value=0))
@settings(max_examples=200, deadline=None)
def test_any_time_can_be_written(seconds):
    assert datetime.fromisoformat(format_time(seconds)).tzinfo is not None
