"""A folder that nobody promised to keep in order: nothing escapes, hangs or is lost, and what is left out is said."""

import json
import os
import random
import shutil
import socket
import stat
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from conftest import ENGINE, Place, Session
from ends.faults import (
    INDEXING,
    SEED,
    Trace,
    caseless_disk,
    check,
    everything,
    hits,
    needs_root,
    needs_strace,
    ordinary,
    settled,
    skip_loudly,
    small_disk,
    traced,
)
from lnk.folder import Folder
from lnk.memory.engine import Engine, Settings
from lnk.memory.values import SearchArguments

Open = Callable[..., Session]
TOO_LARGE: Final = "it is over 32 MiB"
NOT_UTF8: Final = "its name is not UTF-8"


def listed(session: Session, **more: object) -> dict[str, str | None]:
    """Each path that `list` gives, and why it is left out."""
    return {entry["path"]: entry.get("left_out") for entry in everything(session, **more)}


def fresh(place: Place, open_session: Open) -> Session:
    """A session over an index of its own, made from nothing."""
    state = place.root / f"state-{len(list(place.root.iterdir()))}"
    argv = [ENGINE, "serve", str(place.home), str(state), str(place.agent), "--notes", str(place.notes)]
    return settled(open_session(argv))


def same_as_fresh(session: Session, place: Place, open_session: Open) -> list[dict]:
    """Asserts that the index holds what one made from nothing holds; gives it."""
    found = everything(session)
    assert found == everything(fresh(place, open_session))
    return found


def raw(folder: Path, name: bytes) -> bytes:
    """The path of a file with a name of any bytes."""
    return os.fsencode(folder) + b"/" + name


# ------------------------------------------------------------ what is indexed at all


@pytest.mark.requirement("INDEX-1")
def test_of_home_and_the_agents_folder_only_documents_and_conversations_are_indexed(
    place: Place, session: Open
) -> None:
    place.write("memory/in.md", "needle\n")
    place.write("chats/main/conversation.md", "needle\n")
    for path in ("else.md", "memory.md", "projects/plan.md", "memory2/x.md", ".memory/x.md", "chats/x/conversation.md"):
        (place.home / path).parent.mkdir(parents=True, exist_ok=True)
        (place.home / path).write_text("needle\n")
    for path in ("agent.md", "skills/cook/SKILL.md", "instructions/instruction.md", "memory/x.md", "memory/notes.md"):
        (place.agent / path).parent.mkdir(parents=True, exist_ok=True)
        (place.agent / path).write_text("needle\n")
    opened = session()
    assert hits(opened, "needle") == ["chats/main/conversation.md", "memory/in.md"]
    assert listed(opened).keys() == {"chats/main/conversation.md", "memory/in.md"}
    for path in ("else.md", "../else.md", "memory/../else.md", "projects/plan.md", str(place.home / "else.md")):
        opened.refused("read", path=path)


@pytest.mark.requirement("INDEX-2")
def test_two_agents_folders_never_mix(tmp_path: Path, open_session: Open) -> None:
    places = [Place(tmp_path / name) for name in ("one", "two")]
    for number, place in enumerate(places):
        place.write("memory/same.md", f"needle of{number}x\n")
        place.write(f"chats/main{number}/conversation.md", f"needle said{number}x\n")
        place.notes.write_text(f"- note of {number}\n")
    (places[0].memory / "link").symlink_to(places[1].memory)
    sessions = [open_session(place.argv()) for place in places]
    for number, opened in enumerate(sessions):
        assert hits(opened, "needle") == [f"chats/main{number}/conversation.md", "memory/same.md"]
        assert hits(opened, f"of{1 - number}x") == hits(opened, f"said{1 - number}x") == []
        assert opened.read("memory/same.md")["text"] == f"needle of{number}x\n"
        assert opened.read("notes.md")["text"] == f"- note of {number}\n"
        for path in (
            f"chats/main{1 - number}/conversation.md",
            f"../../{['one', 'two'][1 - number]}/Home/memory/same.md",
        ):
            opened.refused("read", path=path)


@pytest.mark.requirement("INDEX-7")
def test_of_a_conversation_its_copy_alone_is_indexed_and_never_an_event(place: Place, session: Open) -> None:
    place.write("chats/main/conversation.md", "# Trip\n\nneedle in the copy\n")
    for path in (
        "chats/main/0000000001.json",
        "chats/main/window.json",
        "chats/main/other.md",
        "chats/main/deep/conversation.md",
        "chats/loose.md",
        "chats/conversation.md",
        "chats/.hidden/conversation.md",
        "chats/main/conversation.md.tmp",
    ):
        place.write(path, "needle\n")
    (place.chats / "empty").mkdir()
    (place.chats / "folder" / "conversation.md").mkdir(parents=True)
    (place.chats / "linked").mkdir()
    (place.chats / "linked" / "conversation.md").symlink_to(place.chats / "main" / "other.md")
    (place.chats / "link").symlink_to(place.chats / "main")
    opened = session()
    assert hits(opened, "needle") == ["chats/main/conversation.md"]
    assert opened.search("needle")["results"][0]["kind"] == "conversation"
    place.write("chats/main/0000000002.json", '{"text": "later needle"}')
    place.write("chats/late/0000000001.json", "needle\n")
    place.write("chats/late/deep/conversation.md", "needle\n")
    assert hits(opened, "needle") == ["chats/main/conversation.md"]
    place.write("chats/late/conversation.md", "a second needle\n")
    assert hits(opened, "needle") == ["chats/late/conversation.md", "chats/main/conversation.md"]
    (place.chats / "late").rename(place.chats / "renamed")
    assert hits(opened, "needle") == ["chats/main/conversation.md", "chats/renamed/conversation.md"]
    shutil.rmtree(place.chats / "main")
    assert hits(opened, "needle") == ["chats/renamed/conversation.md"]


def test_hidden_and_temporary_names_are_left_out_at_first_and_later(
    place: Place, session: Open, open_session: Open
) -> None:
    names = [
        ".hidden.md",
        ".git/config.md",
        "deep/.obsidian/plugin.md",
        "~$letter.md",
        "letter.md~",
        ".#letter.md",
        ".letter.md.swp",
        "letter.md.tmp",
        "letter.md.part",
        "letter.crdownload",
        "node_modules/lib/readme.md",
        "src/__pycache__/x.md",
    ]
    place.write("memory/seen.md", "needle\n")
    for name in names[::2]:
        place.write(f"memory/{name}", "needle\n")
    opened = settled(session())
    for name in names[1::2]:
        place.write(f"memory/{name}", "needle\n")
    assert hits(opened, "needle") == ["memory/seen.md"]
    (place.memory / "seen.md").rename(place.memory / "seen.md~")
    assert hits(opened, "needle") == []
    (place.memory / "seen.md~").rename(place.memory / "seen.md")
    assert hits(opened, "needle") == ["memory/seen.md"]
    (place.memory / ".git").rename(place.memory / "git")
    assert hits(opened, "needle") == ["memory/git/config.md", "memory/seen.md"]
    (place.memory / "git").rename(place.memory / ".git")
    assert hits(opened, "needle") == ["memory/seen.md"]
    same_as_fresh(opened, place, open_session)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "..",
        ".",
        "/",
        "",
        "chats/../../secret.md",
        "memory/../../secret.md",
        "memory/../secret.md",
        "../secret.md",
        "secret.md",
        "memory//real.md",
        "./memory/real.md",
        "memory/real.md/",
        "memory/",
        "memory",
        "memory/link.md",
        "memory%2Freal.md",
        "memory/%2e%2e/secret.md",
        "memory/real.md\0",
        "\0",
        "file:///etc/passwd",
        "skills/../secret.md",
        "skills/../../Home/secret.md",
        "skills/cook/../../memory/notes.md",
        "skills//cook/SKILL.md",
        "skills/link/SKILL.md",
        "skills/cook/link.md",
        "skills/",
        "notes.md/../secret.md",
        "memory/" + "../" * 40 + "etc/passwd",
        "x" * 100_000,
    ],
)
def test_a_path_is_looked_up_and_never_opened(path: str, place: Place, session: Open) -> None:
    """Case paths-03: only what stands in the index is served; a skill's path is opened beneath its folder alone."""
    for secret in (place.home / "secret.md", place.agent / "secret.md", place.root / "secret.md"):
        secret.write_text("secret\n")
    place.notes.write_text("- secret\n")
    place.write("memory/real.md", "needle\n")
    place.write("skills/cook/SKILL.md", "# Cook\n")
    (place.memory / "link.md").symlink_to(place.home / "secret.md")
    (place.agent / "skills" / "cook" / "link.md").symlink_to(place.home / "secret.md")
    (place.agent / "skills" / "link").symlink_to(place.home)
    opened = session()
    answer = opened.call("read", {"path": path})
    assert answer.failed
    assert "secret\n" not in answer.text and "root:" not in answer.text
    assert len(answer.text) < 2000
    assert opened.read("memory/real.md")["text"] == "needle\n"


# ------------------------------------------------------------ links, and files that are none


@pytest.mark.requirement("INDEX-11")
def test_links_of_every_kind_are_left_out_at_first_and_later(place: Place, session: Open, open_session: Open) -> None:
    """Case index-18: to files and folders, inside and out, dangling, to itself, and in the place of a real one."""
    outside = place.root / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "secret.md").write_text("secret\n")
    (outside / "deep" / "secret.md").write_text("secret\n")
    place.write("memory/real.md", "needle\n")
    place.write("memory/folder/real.md", "needle\n")
    links = {
        "file.md": outside / "secret.md",
        "folder-link": outside,
        "inside.md": place.memory / "real.md",
        "relative.md": Path("real.md"),
        "up": Path(".."),
        "self.md": Path("self.md"),
        "loop": Path("."),
        "dangling.md": Path("nowhere.md"),
        "proc.md": Path("/proc/self/environ"),
        "folder/deep": outside / "deep",
    }
    for name, target in list(links.items())[::2]:
        (place.memory / name).symlink_to(target)
    opened = settled(session())
    for name, target in list(links.items())[1::2]:
        (place.memory / name).symlink_to(target)
    assert hits(opened, "needle") == ["memory/folder/real.md", "memory/real.md"]
    assert hits(opened, "secret") == []
    assert listed(opened).keys() == {"memory/folder/real.md", "memory/real.md"}
    (place.memory / "real.md").unlink()
    (place.memory / "real.md").symlink_to(outside / "secret.md")
    (place.memory / "folder").rename(place.root / "kept")
    (place.memory / "folder").symlink_to(outside)
    assert hits(opened, "needle") == hits(opened, "secret") == []
    assert listed(opened) == {}
    for path in ("memory/file.md", "memory/folder/secret.md", "memory/folder-link/secret.md", "memory/real.md"):
        opened.refused("read", path=path)
    (place.memory / "folder").unlink()
    (place.root / "kept").rename(place.memory / "folder")
    assert hits(opened, "needle") == ["memory/folder/real.md"]
    same_as_fresh(opened, place, open_session)


@pytest.mark.requirement("INDEX-11")
def test_fifos_sockets_and_devices_are_left_out_and_nothing_waits_for_them(place: Place, session: Open) -> None:
    """Case index-18: a FIFO of a note's name hung the whole scan for ever."""
    place.write("memory/real.md", "needle\n")

    def put(name: str) -> None:
        os.mkfifo(place.memory / f"fifo{name}.md")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(place.memory / f"socket{name}.md"))
        if os.geteuid() == 0:
            for kind, number in (("zero", 5), ("null", 3), ("full", 7)):
                os.mknod(place.memory / f"{kind}{name}.md", 0o666 | stat.S_IFCHR, os.makedev(1, number))

    put("1")
    opened = settled(session())
    assert listed(opened) == {"memory/real.md": None}
    put("2")
    (place.memory / "real.md").unlink()
    os.mkfifo(place.memory / "real.md")
    place.write("memory/late.md", "needle\n")
    assert hits(opened, "needle") == ["memory/late.md"]
    assert listed(opened) == {"memory/late.md": None}
    chat = place.chats / "main"
    chat.mkdir()
    os.mkfifo(chat / "conversation.md")
    assert hits(opened, "needle") == ["memory/late.md"]


@pytest.mark.requirement("INDEX-11")
def test_devices_in_the_folder_are_left_out(place: Place, session: Open) -> None:
    """Case index-18: /dev/zero by mknod never ends."""
    needs_root("make a device")
    os.mknod(place.memory / "zero.md", 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    place.write("memory/real.md", "needle\n")
    assert hits(session(), "needle") == ["memory/real.md"]


_SWAPPER: Final = """\
import os, select, sys
folder, kept, link, left = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
while left > 0 or not select.select([0], [], [], 0)[0]:
    left -= 1
    os.rename(folder, kept); os.rename(link, folder)
    for _ in range(200):
        os.stat(folder)  # stays a link for about as long as it is none
    os.rename(folder, link); os.rename(kept, folder)
    for each in range(0, 40, 4):
        os.utime(f"{folder}/n{each}.md")  # to be read again
"""
LOOKS_MEANWHILE: Final = 11  # while it is swapped, at the least


@pytest.mark.requirement("INDEX-11")
def test_a_folder_swapped_for_a_link_between_listing_and_reading_is_not_followed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case sandbox-03: just before each file is opened, its folder becomes a link, and none after."""
    outside, kept, link = (place.root / name for name in ("outside", "kept", "link"))
    outside.mkdir()
    (outside / "a.md").write_text("secret\n")
    link.symlink_to(outside)
    folder = place.write("memory/deep/folder/a.md", "needle\n").parent
    open_file, swaps = Folder.open_file, []

    def swapped(self: Folder, path: str) -> tuple[int, os.stat_result]:
        swaps.append(path)
        folder.rename(kept)
        link.rename(folder)
        try:
            return open_file(self, path)
        finally:
            folder.rename(link)
            kept.rename(folder)

    monkeypatch.setattr(Folder, "open_file", swapped)
    engine = Engine(Settings(folder=str(place.home), state=str(place.state), agent=str(place.agent)))
    engine.start()
    for _ in range(3):
        assert engine.search(SearchArguments(query="secret")).results == []
    assert "deep/folder/a.md" in swaps
    monkeypatch.undo()
    place.write("memory/deep/folder/b.md", "thread\n")
    assert [result.path for result in engine.search(SearchArguments(query="thread")).results] == [
        "memory/deep/folder/b.md"
    ]
    assert engine.search(SearchArguments(query="secret")).results == []
    assert engine.stop(10)


@pytest.mark.parametrize("what", ["folder", "root"])
def test_a_folder_swapped_for_a_link_while_it_is_indexed_is_never_followed(
    what: str, place: Place, session: Open, open_session: Open
) -> None:
    """Case sandbox-03: another process swaps it for a link and back while it is listed and read."""
    outside = place.root / "outside"
    outside.mkdir()
    folder = place.memory if what == "root" else place.memory / "deep" / "folder"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(40):
        (outside / f"n{number}.md").write_text(f"secret {number}\n")
        (folder / f"n{number}.md").write_text(f"needle {number}\n")
    link, kept = place.root / "link", place.root / "kept"
    link.symlink_to(outside)
    opened = session()
    argv = [sys.executable, "-c", _SWAPPER, str(folder), str(kept), str(link), "600"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as swapper:
        for _ in range(LOOKS_MEANWHILE):
            assert hits(opened, "secret") == []
        assert swapper.stdin and swapper.poll() is None
        swapper.stdin.close()  # it ends after so many times
        while swapper.poll() is None:
            assert hits(opened, "secret") == []
    settled(opened)
    assert hits(opened, "secret") == []
    assert [path for path, reason in listed(opened).items() if reason] == []
    assert len(same_as_fresh(opened, place, open_session)) == 40


def test_folders_that_are_made_later_are_indexed_from_then_on(place: Place, session: Open) -> None:
    """Before somebody makes them there is nothing wrong."""
    place.memory.rmdir()
    place.chats.rmdir()
    opened = settled(session())
    assert opened.search("needle") == {"results": [], "empty": "There are no documents in memory yet."}
    place.write("memory/a.md", "needle\n")
    assert hits(opened, "needle") == ["memory/a.md"]
    place.write("chats/main/conversation.md", "a second needle\n")
    assert hits(opened, "needle") == ["chats/main/conversation.md", "memory/a.md"]


@pytest.mark.requirement("INDEX-11")
def test_a_root_that_is_a_link_is_not_followed_and_what_was_known_stays(place: Place, session: Open) -> None:
    place.write("memory/real.md", "needle\n")
    opened = settled(session())
    outside = place.root / "outside"
    outside.mkdir()
    (outside / "secret.md").write_text("secret\n")
    place.memory.rename(place.root / "kept")
    place.memory.symlink_to(outside)
    found = opened.search("needle")
    assert [result["path"] for result in found["results"]] == ["memory/real.md"]
    assert "link" in found["stale"]
    assert hits(opened, "secret") == []
    opened.close()
    again = session()
    assert hits(again, "needle") == ["memory/real.md"]
    assert hits(again, "secret") == []
    place.memory.unlink()
    (place.root / "kept").rename(place.memory)
    assert "stale" not in again.search("needle")


# ------------------------------------------------------------ names


ODD_NAMES: Final = (
    "a\nb.md",
    "a\tb.md",
    "a\rb.md",
    "a\x1b[31mb.md",
    "trailing space .md",
    "ends in a space.md ",
    "ends in a dot.md.",
    " begins with a space.md",
    "CON.md",
    "nul.md",
    "a:b.md",
    "a\\b.md",
    "100%.md",
    "%2e%2e%2fx.md",
    "a*b?.md",
    "[x].md",
    "{y}.md",
    "'quoted' \"twice\".md",
    "a;b|c&d$e`f`.md",
    "-rf.md",
    "#tag.md",
    "a\u2028b.md",
    "a\u202eb.md",
    "😀.md",
    "مرحبا.md",
    "…",
    "x" * 252 + ".md",
    "é" * 126 + ".md",
)


def test_odd_names_are_names_and_each_file_is_found_and_read_by_its_path(place: Place, session: Open) -> None:
    """Case paths-02: every name is taken as it is, and an answer stays one JSON line."""
    words = {name: f"word{number}x" for number, name in enumerate(ODD_NAMES)}
    for name, word in list(words.items())[::2]:
        place.write(f"memory/{name}", f"{word}\n")
    opened = settled(session())
    for name, word in list(words.items())[1::2]:
        place.write(f"memory/{name}", f"{word}\n")
    assert listed(opened) == {f"memory/{name}": None for name in words}
    for name, word in words.items():
        assert hits(opened, word) == [f"memory/{name}"]
        assert opened.read(f"memory/{name}")["text"] == f"{word}\n"
        assert "\n" not in opened.call("read", {"path": f"memory/{name}"}).text
        assert list(listed(opened, path=f"memory/{name}")) == [f"memory/{name}"]
    for name in words:
        (place.memory / name).unlink()
    assert listed(opened) == {}


def test_folders_named_like_patterns_are_folders(place: Place, session: Open) -> None:
    """Case index-25: a glob with a literal part pruned folders that it should have entered."""
    paths = [
        f"memory/{one}/b/{two}/d{number}.md"
        for number, (one, two) in enumerate(
            zip(
                ("a", "[x]", "*", "{y}", "?", "[!a]", "**", "a,b"),
                ("[x]", "*", "{y}", "**", "c", "[0-9]", "a", "!x"),
                strict=True,
            )
        )
    ]
    for number, path in enumerate(paths):
        place.write(path, f"needle{number}x\n")
    opened = session()
    assert listed(opened).keys() == set(paths)
    for number, path in enumerate(paths):
        assert hits(opened, f"needle{number}x") == [path]
        folder = path.rpartition("/")[0]
        assert listed(opened, path=folder).keys() == {path}
        assert hits(opened, f"needle{number}x", path=folder) == [path]


def test_composed_and_decomposed_twins_are_two_documents(place: Place, session: Open, open_session: Open) -> None:
    composed, decomposed = "Café.md", unicodedata.normalize("NFD", "Café.md")
    place.write(f"memory/{composed}", "one needle\n")
    place.write(f"memory/{decomposed}", "two needles and a needle\n")
    if len(os.listdir(place.memory)) == 1:
        skip_loudly("this disk takes both for one name")
    opened = session()
    assert hits(opened, "needle") == sorted([f"memory/{composed}", f"memory/{decomposed}"])
    assert opened.read(f"memory/{composed}")["text"] == "one needle\n"
    assert opened.read(f"memory/{decomposed}")["text"] == "two needles and a needle\n"
    (place.memory / composed).unlink()
    assert hits(opened, "needle") == [f"memory/{decomposed}"]
    assert opened.read(f"memory/{composed}")["path"] == f"memory/{decomposed}"
    same_as_fresh(opened, place, open_session)


@pytest.mark.parametrize("early", [True, False])
def test_names_that_are_not_utf8_are_left_out_and_said_while_they_are_there(
    early: bool, place: Place, session: Open, open_session: Open
) -> None:
    """Files and folders, there at first or later: the list is always that of a fresh index."""
    place.write("memory/real.md", "needle\n")
    opened = None if early else settled(session())
    file, folder = raw(place.memory, b"caf\xe9.md"), raw(place.memory, b"f\xff")
    with open(file, "wb") as opened_file:
        opened_file.write(b"needle\n")
    os.makedirs(folder + b"/deep")
    with open(folder + b"/deep/x.md", "wb") as opened_file:
        opened_file.write(b"needle\n")
    opened = opened or settled(session())
    assert hits(opened, "needle") == ["memory/real.md"]
    assert listed(opened) == {"memory/real.md": None, "memory/caf\\xe9.md": NOT_UTF8, "memory/f\\xff/": NOT_UTF8}
    same_as_fresh(opened, place, open_session)
    os.unlink(file)
    assert listed(opened) == {"memory/real.md": None, "memory/f\\xff/": NOT_UTF8}
    os.rename(folder, raw(place.memory, b"f"))
    assert listed(opened) == {"memory/real.md": None, "memory/f/deep/x.md": None}
    same_as_fresh(opened, place, open_session)


def test_a_name_that_is_not_utf8_and_one_that_spells_it_do_not_meet(place: Place, session: Open) -> None:
    """The file named `x\\xff.md` in seven letters is a document like any other, whatever stands beside it."""
    with open(raw(place.memory, b"x\xff.md"), "wb") as file:
        file.write(b"left out\n")
    place.write("memory/x\\xff.md", "needle\n")
    place.write("memory/real.md", "needle\n")
    opened = settled(session())
    assert hits(opened, "needle") == ["memory/real.md", "memory/x\\xff.md"]
    assert "stale" not in opened.search("needle")
    assert hits(opened, "needle") and check(place)["damage"] == []


def test_folders_in_folders_are_entered_to_a_depth_and_what_lies_deeper_is_said(
    place: Place, session: Open, open_session: Open
) -> None:
    """Case paths-02: 20 deep is found, 150 deep is left out and said, at first and when it comes later."""
    for number, depth in enumerate((20, 99, 150)):
        place.write(f"memory/{'/'.join(['d'] * depth)}/n{number}.md", f"word{number}x\n")
    opened = settled(session())
    assert hits(opened, "word0x") == [f"memory/{'d/' * 20}n0.md"]
    assert hits(opened, "word1x") == [f"memory/{'d/' * 99}n1.md"]
    assert hits(opened, "word2x") == []
    out = {path: reason for path, reason in listed(opened).items() if reason}
    assert len(out) == 1
    assert "folders deep" in next(iter(out.values()))
    assert next(iter(out)).startswith("memory/d/d/") and next(iter(out)).endswith("d/")
    late = "/".join(["l"] * 98)
    place.write(f"memory/{late}/x.md", "word3x\n")
    assert hits(opened, "word3x") == [f"memory/{late}/x.md"]
    place.write(f"memory/{late}/l/l/l/l/l/x.md", "word4x\n")
    place.write("memory/other/x.md", "word5x\n")
    assert hits(opened, "word5x") == ["memory/other/x.md"]
    assert hits(opened, "word4x") == []
    same_as_fresh(opened, place, open_session)
    assert opened.refused("read", path="memory/" + "d/" * 150 + "n2.md")


def test_a_path_longer_than_the_kernel_takes_at_once_is_left_out_and_said(place: Place, session: Open) -> None:
    """Case paths-02: 4,096 bytes and more, made by going down step by step."""
    place.write("memory/real.md", "needle\n")
    at = os.open(place.memory, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("n" * 250, dir_fd=at)
        step = os.open("n" * 250, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = step
    os.close(os.open("x.md", os.O_CREAT | os.O_WRONLY, dir_fd=at))
    os.close(at)
    opened = session()
    assert hits(opened, "needle") == ["memory/real.md"]
    out = [reason for reason in listed(opened).values() if reason]
    assert len(out) == 1 and "path is too long" in out[0]
    subprocess.run(["rm", "-rf", str(place.memory / ("n" * 250))], check=True)
    assert listed(opened) == {"memory/real.md": None}


# ------------------------------------------------------------ sizes and times


def test_files_too_large_are_left_out_unread_and_said(place: Place, session: Open, open_session: Open) -> None:
    """Case index-29: sparse files of a terabyte, and 33 MiB; and when they shrink they are documents."""
    place.write("memory/real.md", "needle\n")
    sizes = {"x.md": 1 << 40, "x.pdf": 1 << 40, "a.txt": (32 << 20) + 1, "b.docx": 33 << 20}
    try:
        for name, size in sizes.items():
            (place.memory / name).touch()
            os.truncate(place.memory / name, size)
    except OSError as error:
        skip_loudly(f"this disk takes no sparse file of a terabyte: {error.strerror}")
    opened = settled(session())
    assert hits(opened, "needle") == ["memory/real.md"]
    assert listed(opened) == {"memory/real.md": None} | {f"memory/{name}": TOO_LARGE for name in sizes}
    assert "over 32 MiB" in opened.refused("read", path="memory/x.md")
    place.write("memory/x.md", "needle now\n")
    os.truncate(place.memory / "real.md", 1 << 40)
    assert hits(opened, "needle") == ["memory/x.md"]
    same_as_fresh(opened, place, open_session)


def test_a_file_changed_within_its_size_and_time_is_read_again(place: Place, session: Open) -> None:
    """Case index-19: by its own name, by a new file in its place, and while no program looked."""
    file = place.write("memory/a.md", "aaaa\n", at=1_700_000_000)
    opened = settled(session())
    assert hits(opened, "aaaa") == ["memory/a.md"]
    place.write("memory/a.md", "bbbb\n", at=1_700_000_000)
    assert hits(opened, "bbbb") == ["memory/a.md"]
    place.write("memory/.tmp", "cccc\n", at=1_700_000_000).rename(file)
    assert hits(opened, "cccc") == ["memory/a.md"]
    opened.close()
    place.write("memory/a.md", "dddd\n", at=1_700_000_000)
    again = session()
    assert hits(again, "dddd") == ["memory/a.md"]
    assert hits(again, "aaaa") == hits(again, "bbbb") == hits(again, "cccc") == []


@pytest.mark.parametrize("at", [-1, -1e9, 0, 4_070_908_800, 32_503_680_000, 2**40])
def test_times_outside_sense_keep_no_document_from_being_found_again(at: float, place: Place, session: Open) -> None:
    """Case index-28: files of 1969 and of 2099: found, listed, and an edit of them too."""
    file = place.write("memory/a.md", "needle\n")
    place.write("memory/real.md", "needle and more\n")
    try:
        os.utime(file, (at, at))
    except (OSError, OverflowError) as error:
        skip_loudly(f"this disk takes no such time: {error}")
    opened = settled(session())
    assert hits(opened, "needle") == ["memory/a.md", "memory/real.md"]
    entries = {entry["path"]: entry for entry in everything(opened)}
    assert "1970" <= entries["memory/a.md"]["changed"][:4] <= entries["memory/real.md"]["changed"][:4]
    now = opened.list()["now"]
    file.write_text("edited\n")
    os.utime(file, (at, at))
    assert hits(opened, "edited") == ["memory/a.md"]
    assert [entry["path"] for entry in opened.list(since=now)["documents"]] == ["memory/a.md"]
    opened.close()
    file.write_text("again\n")
    os.utime(file, (at, at))
    assert hits(session(), "again") == ["memory/a.md"]


def test_a_time_that_no_calendar_has_costs_no_other_document(place: Place, session: Open) -> None:
    """tmpfs takes any: nanoseconds since 1970 that pass 64 bits."""
    with small_disk(place.memory, "1m"):
        os.utime(place.write("memory/a.md", "needle\n"), (2**40, 2**40))
        os.utime(place.write("memory/b.md", "needle\n"), (-(2**40), -(2**40)))
        place.write("memory/real.md", "needle\n")
        opened = settled(session())
        assert "memory/real.md" in [path for path, reason in listed(opened).items() if not reason]
        place.write("memory/late.md", "late\n")
        assert hits(opened, "late") == ["memory/late.md"]
        opened.close()


def test_an_index_whose_own_files_are_of_the_future_misses_no_edit(place: Place, session: Open) -> None:
    """Case index-28."""
    place.write("memory/a.md", "needle\n")
    settled(session()).close()
    for file in place.state.iterdir():
        os.utime(file, (4_070_908_800, 4_070_908_800))
    place.write("memory/a.md", "edited\n", at=1_600_000_000)
    assert hits(session(), "edited") == ["memory/a.md"]


def test_a_file_changed_under_a_name_outside_the_folder_is_found(place: Place, session: Open) -> None:
    """A hard link: the kernel tells nothing of it in the folder that is watched."""
    file = place.write("memory/a.md", "needle\n")
    other = place.root / "other.md"
    os.link(file, other)
    opened = settled(session())
    for number in range(3):
        other.write_text(f"edited{number}x\n")
        assert hits(opened, f"edited{number}x") == ["memory/a.md"]
    os.link(place.write("memory/late.md", "late\n"), place.root / "late.md")
    assert hits(opened, "late") == ["memory/late.md"]
    (place.root / "late.md").write_text("linked\n")
    assert hits(opened, "linked") == ["memory/late.md"]
    assert sorted(listed(opened)) == ["memory/a.md", "memory/late.md"]


def test_a_file_that_gets_a_second_name_in_the_folder_is_one_under_both(
    place: Place, session: Open, open_session: Open
) -> None:
    """A hard link made while it serves: what is written under the one name is found under the other."""
    file = place.write("memory/a.md", "needle\n")
    opened = settled(session())
    os.link(file, place.memory / "b.md")
    assert hits(opened, "needle") == ["memory/a.md", "memory/b.md"]
    (place.memory / "b.md").write_text("edited\n")
    assert hits(opened, "edited") == ["memory/a.md", "memory/b.md"]
    assert hits(opened, "needle") == []
    (place.memory / "b.md").unlink()
    assert hits(opened, "edited") == ["memory/a.md"]
    same_as_fresh(opened, place, open_session)


# ------------------------------------------------------------ what cannot be read


def gone_and_back(opened: Session, away: Callable[[], object], back: Callable[[], object]) -> None:
    """What was known stays known and `stale` says why while the folder is away, and all is found when it is back."""
    now = opened.list()["now"]
    away()
    for _ in range(2):
        found = opened.search("needle")
        assert [result["path"] for result in found["results"]] == ["memory/a.md"]
        assert found["stale"]
        assert "stale" in opened.list()
        assert {path for path, reason in listed(opened).items() if not reason} == {"memory/a.md", "memory/deep/b.md"}
        assert opened.read("memory/deep/b.md")["text"] == "thread\n"
    nothing = opened.search("nowhere")
    assert nothing["stale"] in nothing["empty"]
    back()
    found = opened.search("thread")
    assert [result["path"] for result in found["results"]] == ["memory/deep/b.md"]
    assert "stale" not in found
    assert listed(opened) == {"memory/a.md": None, "memory/deep/b.md": None}
    since = opened.list(since=now)
    assert since["documents"] == [] and "removed" not in since


@pytest.fixture
def two(place: Place) -> Place:
    """A place with two documents, one in a folder."""
    place.write("memory/a.md", "needle\n")
    place.write("memory/deep/b.md", "thread\n")
    return place


def test_a_root_moved_away_and_back_loses_nothing(two: Place, session: Open) -> None:
    """Case index-08."""
    moved = two.root / "moved"
    gone_and_back(settled(session()), lambda: two.memory.rename(moved), lambda: moved.rename(two.memory))


def test_a_root_that_may_not_be_read_loses_nothing(two: Place, open_session: Open) -> None:
    """Case index-08: taken away from a running program."""
    opened = settled(open_session(ordinary(two.argv())))
    gone_and_back(opened, lambda: two.memory.chmod(0), lambda: two.memory.chmod(0o755))


@pytest.mark.parametrize("mode", [0o000, 0o444, 0o111])
def test_a_root_that_may_not_be_read_at_the_start_loses_nothing(mode: int, two: Place, open_session: Open) -> None:
    """Case index-08: neither listed, nor entered, nor both."""
    settled(open_session(ordinary(two.argv()))).close()
    two.memory.chmod(mode)
    opened = open_session(ordinary(two.argv()))
    gone_and_back(opened, lambda: None, lambda: two.memory.chmod(0o755))


def test_an_empty_folder_in_the_place_of_the_root_removes_nothing(two: Place, session: Open) -> None:
    """Case index-08: a disk that is not mounted."""
    opened = settled(session())
    kept = two.root / "kept"

    def away() -> None:
        two.memory.rename(kept)
        two.memory.mkdir()

    def back() -> None:
        two.memory.rmdir()
        kept.rename(two.memory)

    gone_and_back(opened, away, back)


def test_a_disk_that_goes_away_and_comes_back_loses_nothing(place: Place, session: Open) -> None:
    """Case index-08: its mount goes, and leaves an empty folder."""
    needs_root("mount a folder")
    disk = place.root / "disk"
    (disk / "deep").mkdir(parents=True)
    (disk / "a.md").write_text("needle\n")
    (disk / "deep" / "b.md").write_text("thread\n")

    def back() -> None:
        mounted = subprocess.run(["mount", "--bind", str(disk), str(place.memory)], capture_output=True, check=False)
        if mounted.returncode:
            skip_loudly(f"no folder can be mounted: {mounted.stderr.decode().strip()}")

    def away() -> None:
        subprocess.run(["umount", "-l", str(place.memory)], check=True)

    back()
    try:
        gone_and_back(settled(session()), away, back)
    finally:
        away()


def test_what_is_one_name_to_the_disk_is_one_document_one_notes_file_and_one_index(
    tmp_path: Path, open_session: Open
) -> None:
    """Case paths-04: two engines, to each of which the folders were named in letters of another case."""
    with caseless_disk(tmp_path / "disk"):
        place = Place(tmp_path / "disk")
        place.write("memory/plan.md", "needle\n")
        root = str(place.root)
        shouted = [root + each[len(root) :].upper() if each.startswith(root) else each for each in place.argv()]
        sessions = [settled(open_session(argv)) for argv in (place.argv(), shouted)]
        for one, another in (sessions, sessions[::-1]):
            assert len(hits(one, "needle")) == 1
            place.write("memory/PLAN.md", f"needle {one is sessions[0]}\n")
            for each in (one, another):
                (path,) = hits(each, "needle")
                assert each.read(path)["text"] == f"needle {one is sessions[0]}\n"

        def note(session: Session) -> None:
            for number in range(20):
                session.remember(note=f"{id(session)} {number}")

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(note, sessions))
        assert sorted(place.notes.read_text().splitlines()) == sorted(
            f"- {id(session)} {number}" for session in sessions for number in range(20)
        )
        assert {name.lower() for name in os.listdir(place.notes.parent)} == {"notes.md", "link"}
        assert check(place)["differences"] == 0
        for each in sessions:
            each.close()


def test_a_root_emptied_in_its_place_is_empty(two: Place, session: Open) -> None:
    """Else nothing could ever be removed."""
    opened = settled(session())
    shutil.rmtree(two.memory / "deep")
    (two.memory / "a.md").unlink()
    found = opened.search("needle")
    assert found["results"] == [] and "stale" not in found
    assert listed(opened) == {}


@pytest.mark.parametrize("mode", [0o000, 0o444, 0o111])
@pytest.mark.parametrize("known", [True, False])
def test_a_folder_that_may_not_be_read_is_said_and_loses_nothing_and_is_found_when_it_may(
    mode: int, known: bool, two: Place, open_session: Open
) -> None:
    """Case index-08, in the middle of the tree: nothing is removed, the rest is indexed, and it heals by itself."""
    opened = settled(open_session(ordinary(two.argv()))) if known else None
    (two.memory / "deep").chmod(mode)
    opened = opened or settled(open_session(ordinary(two.argv())))
    two.write("memory/late.md", "late\n")
    assert hits(opened, "late") == ["memory/late.md"]
    assert hits(opened, "needle") == ["memory/a.md"]
    if known:
        assert hits(opened, "thread") == ["memory/deep/b.md"]
    said = json.dumps([opened.list(), everything(opened)])
    assert "memory/deep" in said and "Permission denied" in said
    (two.memory / "deep").chmod(0o755)
    found = opened.search("thread")
    assert [result["path"] for result in found["results"]] == ["memory/deep/b.md"]
    assert "stale" not in found
    assert listed(opened) == {"memory/a.md": None, "memory/deep/b.md": None, "memory/late.md": None}
    two.write("memory/deep/c.md", "afterwards still\n")
    assert hits(opened, "afterwards") == ["memory/deep/c.md"]
    assert "stale" not in opened.search("later")


@pytest.mark.parametrize("mode", [0o000, 0o444, 0o111])
def test_a_conversation_that_may_not_be_read_costs_no_other(mode: int, two: Place, open_session: Open) -> None:
    two.write("chats/shut/conversation.md", "needle\n")
    two.write("chats/open/conversation.md", "another thread\n")
    (two.chats / "shut").chmod(mode)
    opened = settled(open_session(ordinary(two.argv())))
    assert hits(opened, "another") == ["chats/open/conversation.md"]
    assert hits(opened, "needle", kind="document") == ["memory/a.md"]
    (two.chats / "shut").chmod(0o755)
    assert hits(opened, "needle") == ["chats/shut/conversation.md", "memory/a.md"]


def test_a_file_that_may_not_be_read_is_left_out_and_said_until_it_may(two: Place, open_session: Open) -> None:
    two.write("memory/shut.md", "secret\n").chmod(0)
    opened = settled(open_session(ordinary(two.argv())))
    out = listed(opened)
    assert out["memory/shut.md"] and "Permission denied" in out["memory/shut.md"]
    assert "Permission denied" in opened.refused("read", path="memory/shut.md")
    assert hits(opened, "needle") == ["memory/a.md"]
    (two.memory / "shut.md").chmod(0o644)
    assert hits(opened, "secret") == ["memory/shut.md"]
    assert listed(opened) == {"memory/a.md": None, "memory/deep/b.md": None, "memory/shut.md": None}


LOOKS: Final = "openat,openat2,getdents64,fcntl,dup,fstat,newfstatat,statx,read,close"
EVERY: Final = (
    "chats/main/conversation.md",
    "memory/a0/d.md",
    "memory/a1/d.md",
    "memory/a2/d.md",
    "memory/changing.md",
)


class Changing:
    """A session over a folder of which one file changes, again and again, and each time is to be found again."""

    def __init__(self, place: Place, rules: bool) -> None:
        self.place = place
        self.rules = rules  # whether the rules of what is left out change too, so that everything is listed
        self.rounds = 0
        self.wrong: list[str] = []
        for path in EVERY:
            place.write(path, f"{path}\n")
        self.begin()

    def begin(self) -> None:
        """A session of its own, and all of it indexed."""
        self.session = Session(self.place.argv())
        self.session.open()
        settled(self.session)
        assert hits(self.session, self.change())  # what is loaded once is loaded

    def change(self) -> str:
        """The file changes; the word that finds it."""
        self.rounds += 1
        if self.rules:
            self.place.write("memory/.memoryignore", f"# {self.rounds}\n")
        self.place.write("memory/changing.md", f"round{self.rounds}x\n")
        return f"round{self.rounds}x"

    def look(self, *faults: str) -> Trace:
        """One change and one search that has to look, with these faults; adds what is wrong to `wrong`."""
        self.wrong = []
        now = self.session.list(tokens=50)["now"]
        word = self.change()
        with traced(self.session, self.place.root / "trace", *faults, calls=LOOKS, thread=INDEXING) as met:
            during = self.session.search(word)
        self._see(bool(during["results"] or "stale" in during or listed(self.session)["memory/changing.md"]), during)
        after = self.session.search(word)
        self._see([result["path"] for result in after["results"]] == ["memory/changing.md"], after)
        self._see("stale" not in after, after)
        self._see(listed(self.session) == dict.fromkeys(EVERY), listed(self.session))
        self._see("removed" not in self.session.list(since=now, tokens=50_000), "removed")
        self._see(not faults or met.struck(), "no fault")
        return met

    def _see(self, right: bool, found: object) -> None:
        if not right:
            self.wrong.append(f"{found}")


@pytest.mark.parametrize("rules", [True, False])
def test_an_error_of_any_system_call_while_the_folder_is_looked_at_loses_nothing(rules: bool, place: Place) -> None:
    """Case index-08, at each call: what was known is said to be stale at the worst, and the next call is right.

    Once for a look at everything, once for a look at the one file that changed.
    """
    needs_strace()
    changing = Changing(place, rules)
    points = changing.look().points()
    assert changing.wrong == []
    points = [point for point in points if str(place.home) in point.line or str(place.chats) in point.line]
    assert len(points) > (30 if rules else 5)
    wrong = {}
    for point in points:
        for error in ("EIO",) if rules else ("EIO", "EACCES", "EMFILE"):
            fault = point.fault(f"error={error}")
            changing.look(fault)
            if changing.wrong:
                wrong[f"{fault} {point.line}"] = changing.wrong
                changing.session.close()
                changing.begin()
    changing.session.close()
    assert wrong == {}


# ------------------------------------------------------------ .memoryignore


def test_memoryignore_leaves_out_what_it_names_as_soon_as_it_does(
    place: Place, session: Open, open_session: Open
) -> None:
    for path in ("a.md", "secret.md", "private/x.md", "private/deep/y.md", "work/secret.md", "work/b.md", "log.txt"):
        place.write(f"memory/{path}", "needle\n")
    place.write("chats/secret/conversation.md", "needle\n")
    opened = settled(session())
    assert len(hits(opened, "needle")) == len(listed(opened)) == 8
    place.write("memory/.memoryignore", "# private\nsecret.md\n/private/\n*.txt\n")
    assert listed(opened).keys() == {"memory/a.md", "memory/work/b.md", "chats/secret/conversation.md"}
    same_as_fresh(opened, place, open_session)
    place.write("memory/private/late.md", "late\n")
    place.write("memory/secret.md", "late\n")
    assert hits(opened, "late") == []
    place.write("memory/.memoryignore", "*.md\n!a.md\n")
    assert listed(opened).keys() == {"memory/a.md", "memory/log.txt", "chats/secret/conversation.md"}
    (place.memory / ".memoryignore").unlink()
    assert len(listed(opened)) == 9
    assert len(same_as_fresh(opened, place, open_session)) == 9


@pytest.mark.parametrize(
    "line", ["!", "/", "//", "\\", "[z-a]", "a[", "***", "[", "a\\", "!!", "(", "**/**", "\ufeffx", "x" * 5000]
)
def test_a_line_of_memoryignore_that_is_no_pattern_costs_nothing_but_itself(
    line: str, place: Place, session: Open
) -> None:
    """Git leaves out a line that it cannot use, and takes the others."""
    place.write("memory/.memoryignore", f"secret.md\n{line}\nprivate/\n")
    for path in ("a.md", "secret.md", "private/x.md"):
        place.write(f"memory/{path}", "needle\n")
    opened = settled(session())
    kept = set() if line in ("***", "**/**") else {"memory/a.md"}
    assert listed(opened).keys() == kept
    place.write("memory/.memoryignore", "secret.md\n")
    assert listed(opened).keys() == {"memory/a.md", "memory/private/x.md"}


def test_a_memoryignore_that_is_no_file_is_none(place: Place, session: Open) -> None:
    (place.root / "rules").write_text("*\n")
    (place.memory / ".memoryignore").symlink_to(place.root / "rules")
    place.write("memory/a.md", "needle\n")
    opened = session()
    assert hits(opened, "needle") == ["memory/a.md"]
    (place.memory / ".memoryignore").unlink()
    os.mkfifo(place.memory / ".memoryignore")
    place.write("memory/b.md", "thread\n")
    assert hits(opened, "thread") == ["memory/b.md"]


# ------------------------------------------------------------ many at once, and without rest


def test_thousands_of_files_come_and_go_at_once(place: Place, session: Open, open_session: Open) -> None:
    """Case index-12: more than one statement can hold, in batches."""
    place.write("memory/stays.md", "needle\n")
    opened = settled(session())
    now = opened.list(tokens=50)["now"]
    for number in range(3000):
        place.write(f"memory/many/{number % 7}/n{number}.md", f"word{number}x\n")
    settled(opened)
    assert hits(opened, "word2999x") == ["memory/many/3/n2999.md"]
    assert len(listed(opened)) == 3001
    shutil.rmtree(place.memory / "many")
    assert hits(opened, "word1500x") == []
    assert listed(opened) == {"memory/stays.md": None}
    removed, following = 0, None
    while True:
        page = opened.list(since=now, tokens=50_000, **({"next": following} if following else {}))
        removed += len(page.get("removed", ()))
        following = page.get("next")
        if following is None:
            break
    assert removed == 3000
    opened.close()
    assert check(place)["differences"] == 0


def test_more_changes_than_the_kernel_keeps_are_found_all_the_same(
    place: Place, session: Open, open_session: Open
) -> None:
    """case watch-04: its queue holds 16,384 events; what is lost is found by looking at everything."""
    opened = settled(session())
    files = [place.write(f"memory/{name}.md", f"{name}\n") for name in "ab"]
    for number in range(20_000):
        os.utime(files[number % 2])
    place.write("memory/late.md", "needle\n")
    place.write("memory/deep/late.md", "thread\n")
    assert hits(opened, "needle") == ["memory/late.md"]
    assert hits(opened, "thread") == ["memory/deep/late.md"]
    (place.memory / "late.md").unlink()
    place.write("memory/deep/late.md", "other\n")
    assert hits(opened, "needle") == hits(opened, "thread") == []
    same_as_fresh(opened, place, open_session)


def test_on_a_disk_whose_changes_the_kernel_may_not_tell_each_call_looks(place: Place, session: Open) -> None:
    """As on a network disk, which another machine may change: here one of a kind that nobody vouches for."""
    needs_root("mount a disk")
    mounted = subprocess.run(["mount", "-t", "ramfs", "lnk-test", str(place.memory)], capture_output=True, check=False)
    if mounted.returncode:
        skip_loudly(f"no ramfs can be mounted: {mounted.stderr.decode().strip()}")
    try:
        opened = settled(session())
        for number in range(3):
            place.write("memory/a.md", f"word{number}x\n", at=1_700_000_000)
            place.write(f"memory/deep/{number}.md", f"own{number}x\n")
            assert hits(opened, f"word{number}x") == ["memory/a.md"]
            assert hits(opened, f"own{number}x") == [f"memory/deep/{number}.md"]
        shutil.rmtree(place.memory / "deep")
        assert listed(opened) == {"memory/a.md": None}
        opened.close()
    finally:
        subprocess.run(["umount", "-l", str(place.memory)], check=True)


_BURST: Final = """\
import os, random, sys
root, chance = sys.argv[1], random.Random(int(sys.argv[2]))
def some():
    folders = (chance.choice("abc") for _ in range(chance.randrange(3)))
    return os.path.join(root, *folders, chance.choice("uvwxyz") + ".md")
for number in range(int(sys.argv[3])):
    path, other = some(), some()
    try:
        match chance.randrange(9):
            case 0 | 1 | 2:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w") as file:
                    file.write(f"# {number}\\n\\nneedle word{number}x " + "padding " * chance.randrange(200))
            case 3:
                with open(path + ".tmp", "w") as file:
                    file.write(f"needle saved{number}x")
                os.rename(path + ".tmp", path)
            case 4:
                os.unlink(path)
            case 5:
                os.rename(path, other)
            case 6:
                os.rename(os.path.dirname(path), os.path.dirname(other))
            case 7:
                os.link(path, other)
            case 8:
                with open(path, "a") as file:
                    file.write(f" more{number}x")
    except OSError:
        pass
"""


def test_after_bursts_of_changes_the_index_is_what_a_fresh_one_is(
    place: Place, session: Open, open_session: Open
) -> None:
    """Another process writes, renames, links and deletes files and folders while this one searches; then all rests."""
    sys.stdout.write(f"LNK_SEED={SEED}\n")
    chance = random.Random(SEED)
    place.write("memory/stays.md", "# Stays\n\nneedle\n")
    opened, other = settled(session()), settled(session())
    for _ in range(3):
        argv = [sys.executable, "-c", _BURST, str(place.memory), str(chance.randrange(1 << 30)), "400"]
        with subprocess.Popen(argv) as burst:
            while burst.poll() is None:
                opened.search("needle")
                other.list(tokens=200)
        found = everything(settled(opened))
        assert found == everything(settled(other)) == everything(fresh(place, open_session)), f"LNK_SEED={SEED}"
        on_disk = {
            f"memory/{os.path.relpath(os.path.join(at, name), place.memory)}"
            for at, _, names in os.walk(place.memory)
            for name in names
        }
        assert {entry["path"] for entry in found} == on_disk, f"LNK_SEED={SEED}"
        for path in sorted(on_disk)[:40]:
            text = (place.home / path).read_text()
            assert opened.read(path, tokens=50_000)["text"] == text, f"LNK_SEED={SEED}"
    for each in (opened, other):
        each.close()
    with Session(place.argv()) as last:
        last.open()
        settled(last)
    assert check(place)["differences"] == 0
