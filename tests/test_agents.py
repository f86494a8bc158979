"""Agents and their folders: made, listed, removed, taken up again and moved, by `lnk`'s real program; and which
program of an engine's Link starts for one."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import Person
from lnk.agent.engine import program_of
from lnk.agent.folders import Agent, Agents
from lnk.agent.memory import Memory
from lnk.contract.memory import Serve
from lnk.errors import Missing, Refused
from lnk.sandbox.ways import best

INVALID, REFUSED, MISSING, CONFLICT, CORRUPT = 10, 11, 12, 13, 16
ID = r"a_[a-z2-7]{12}"


class Owner(Person):
    """Someone who has agents: every command is one of `lnk agent`."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.agents = self.link / "Agents"

    def lnk(self, *argv: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
        """`lnk agent argv`."""
        return super().lnk("agent", *argv, **more)

    def json(self, *argv: str | Path) -> Any:
        """What it prints with `--json`."""
        return json.loads(self.shows(*argv, "--json"))


def everything(folder: Path) -> dict[str, bytes | str]:
    """Every file's bytes, and where every link leads."""
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


@pytest.fixture
def person(tmp_path: Path) -> Owner:
    return Owner(tmp_path)


# ---------------------------------------------------------------- made and shown


def test_a_new_agent_has_its_folders_with_their_modes(person):
    before = os.umask(0o022)
    try:
        shown = person.shows("new", "max")
    finally:
        os.umask(before)
    folder = person.agents / "max"
    modes = {
        str(path.relative_to(folder)): oct(stat.S_IMODE(path.stat().st_mode)) for path in sorted(folder.rglob("*"))
    }
    assert modes == {
        "Agent": "0o711",
        "Agent/agent.toml": "0o600",
        "Agent/chats": "0o700",
        "Agent/instructions": "0o700",
        "Agent/memory": "0o700",
        "Agent/skills": "0o700",
        "Home": "0o755",
        "Home/memory": "0o755",
    }
    assert re.search(rf"^Made the agent max \({ID}\)\.$", shown, re.M)
    assert f"{folder}/Home/memory" in shown


def test_an_agent_is_told_by_its_file(person):
    agent = person.json("new", "max")
    assert re.fullmatch(ID, agent["id"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", agent["created"])
    text = (person.agents / "max/Agent/agent.toml").read_text()
    assert text.splitlines() == [f'{key} = "{agent[key]}"' for key in ("id", "name", "owner", "created")]
    assert person.json("show", "max") == agent
    assert agent["id"] in person.shows("show", "max")


def test_ids_differ_and_agents_are_listed_by_name(person):
    assert person.json("list") == []
    assert "lnk agent new NAME" in person.shows("list")
    made = [person.json("new", name) for name in ("zoe", "max", "Ana.b-c_d", "0")]
    assert len({agent["id"] for agent in made}) == len(made)
    assert person.json("list") == sorted(made, key=lambda agent: agent["name"])
    table = person.shows("list").splitlines()
    assert table[0].split() == ["name", "id", "made", "documents"]
    assert [row.split()[0] for row in table[1:]] == ["0", "Ana.b-c_d", "max", "zoe"]


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "../up", "a b", "käse", "a\nb", "n" * 65, "/abs", "a\x1b"]
)
def test_a_name_that_is_no_folder_of_its_own_is_refused(person, name):
    assert "is no agent's name" in person.refused(INVALID, "new", name)
    assert not person.link.exists()


def test_the_longest_name_works(person):
    assert person.json("new", "n" * 64)["name"] == "n" * 64


def test_a_second_agent_of_a_name_is_refused_and_the_first_stays(person):
    person.shows("new", "max")
    before = everything(person.link)
    assert "lnk agent show max" in person.refused(CONFLICT, "new", "max")
    assert everything(person.link) == before


def test_documents_are_kept_by_their_real_absolute_path(person):
    person.write('My "Vault"\\/note.md', "A quark.\n")
    (person.root / "link").symlink_to('My "Vault"\\')
    folder = str(person.root / 'My "Vault"\\')
    assert person.json("new", "max", "--documents", "link")["documents"] == folder
    assert person.json("show", "max")["documents"] == folder
    assert folder in person.shows("show", "max") and folder in person.shows("list")
    assert person.json("memory", "search", "quark", "--agent", "max")["results"][0]["path"] == "memory/note.md"


def test_a_folder_of_documents_written_by_hand_may_start_with_the_home(person):
    person.write("person/Vault/note.md", "A quark.\n")
    person.shows("new", "max")
    file = person.agents / "max/Agent/agent.toml"
    file.write_text(file.read_text() + 'documents = "~/Vault"\n')
    assert person.json("memory", "search", "quark", "--agent", "max")["results"][0]["path"] == "memory/note.md"
    assert person.json("memory", "status", "--agent", "max")["folders"][0] == str(person.root / "person/Vault")


def test_no_agent_is_made_for_a_folder_that_is_not_there(person):
    person.write("file.md", "No folder.\n")
    assert "nowhere" in person.refused(MISSING, "new", "max", "--documents", "nowhere")
    assert "file.md" in person.refused(REFUSED, "new", "max", "--documents", "file.md")
    assert not (person.agents / "max").exists()


# ---------------------------------------------------------------- removed


def test_remove_keeps_the_files_but_the_index_and_new_takes_them_up_again(person):
    agent = person.json("new", "max")
    person.write("Link/Agents/max/Home/memory/lease.md", "The lease.\n")
    person.write("Link/Agents/max/Agent/memory/notes.md", "- Tea.\n")
    person.write("Link/Agents/max/Agent/chats/link-main/conversation.md", "A walrus.\n")
    person.write("Link/Agents/max/Agent/spec.toml", "[tool.memory]\ntokens = 500\n")
    before = everything(person.agents / "max")
    person.shows("memory", "search", "lease", "--agent", "max")
    shown = person.shows("remove", "max")
    assert str(person.agents / "max") in shown and "lnk agent new max" in shown
    assert person.json("list") == []
    assert "'max'" in person.refused(MISSING, "show", "max")
    kept = everything(person.agents / "max")
    assert not (person.agents / "max/Agent/memory/link").exists()
    for name in ("Home/memory/lease.md", "Agent/memory/notes.md", "Agent/chats/link-main/conversation.md"):
        assert kept[name] == before[name]
    assert person.json("new", "max") == agent
    assert everything(person.agents / "max") == before
    assert len(person.json("memory", "search", "lease walrus", "--agent", "max")["results"]) == 2


def test_an_agent_taken_up_again_has_its_documents_again(person):
    person.write("Vault/note.md", "A quark.\n")
    agent = person.json("new", "max", "--documents", "Vault")
    person.shows("remove", "max")
    assert person.json("new", "max") == agent
    person.shows("remove", "max")
    person.write("Other/note.md", "A lepton.\n")
    assert person.json("new", "max", "--documents", "Other")["documents"] == str(person.root / "Other")


def test_remove_with_files_deletes_all_but_nothing_outside(person):
    person.write("Vault/note.md", "A quark.\n")
    person.write("Elsewhere/own.md", "Mine.\n")
    person.shows("new", "other")
    person.shows("new", "max", "--documents", "Vault")
    folder = person.agents / "max"
    (folder / "Home/out").symlink_to(person.root / "Elsewhere")
    (folder / "Home/memory/file.md").symlink_to(person.root / "Elsewhere/own.md")
    (folder / "Agent/chats/link-x").symlink_to(person.root / "Elsewhere", target_is_directory=True)
    (folder / "Agent/chats/up").symlink_to("../../..")
    person.shows("memory", "search", "quark", "--agent", "max")
    vault, elsewhere = everything(person.root / "Vault"), everything(person.root / "Elsewhere")
    shown = person.shows("remove", "max", "--files")
    assert f"{person.root}/Vault are yours and stay" in shown
    assert not folder.exists()
    assert everything(person.root / "Vault") == vault and everything(person.root / "Elsewhere") == elsewhere
    assert [agent["name"] for agent in person.json("list")] == ["other"]
    assert person.json("new", "max")["documents"] is None


def test_an_agents_folder_that_is_a_link_is_not_deleted_through_it(person):
    person.shows("new", "max")
    (person.agents / "max").rename(person.root / "moved away")
    (person.agents / "max").symlink_to(person.root / "moved away")
    before = everything(person.root / "moved away")
    done = person.lnk("remove", "max", "--files")
    assert "Traceback" not in done.stderr and done.returncode != 0
    assert everything(person.root / "moved away") == before


def test_removing_does_not_say_that_documents_stay_which_it_deletes(person):
    person.shows("new", "max")
    inside = person.write("Link/Agents/max/Home/memory/notes/note.md", "Mine.\n").parent
    person.shows("remove", "max")
    done = person.lnk("new", "max", "--documents", inside)
    if done.returncode == 0:  # it may as well be refused: a folder of the agent's own is no folder elsewhere
        shown = person.shows("remove", "max", "--files")
        assert inside.exists() or "stay" not in shown


# ---------------------------------------------------------------- a bad file


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "does not describe an agent"),
        ("id = ", "not valid TOML"),
        ('id = "a_short"\nname = "max"\nowner = "me"\ncreated = "2026-01-01T00:00:00Z"\n', "a_short"),
        ('id = "a_abcdefgh2345"\nname = 3\nowner = "me"\ncreated = "2026-01-01T00:00:00Z"\n', "name"),
        ('id = "a_abcdefgh2345"\nname = "max"\nowner = "me"\ncreated = ""\ndocuments = []\n', "documents"),
        ('id = "a_abcdefgh2345"\nname = "max"\nowner = "me"\ncreated = ""\ndocument = "/x"\n', "`document`"),
    ],
)
def test_a_corrupt_file_of_an_agent_is_said_and_left_as_it_is(person, text, names):
    person.shows("new", "max")
    person.shows("new", "zoe")
    file = person.write("Link/Agents/max/Agent/agent.toml", text)
    for command in (["show", "max"], ["memory", "search", "x", "--agent", "max"], ["remove", "max", "--files"]):
        told = person.refused(CORRUPT, *command)
        assert str(file) in told and names in told
    assert file.read_text() == text
    assert "max" in person.refused(CONFLICT, "new", "max")


def test_the_list_tells_of_an_agent_whose_file_is_corrupt(person):
    person.shows("new", "max")
    person.shows("new", "zoe")
    file = person.write("Link/Agents/max/Agent/agent.toml", "id = \n")
    done = person.lnk("list")
    assert done.returncode in (0, CORRUPT)
    assert re.search("^zoe ", done.stdout, re.M)
    assert str(file) in done.stdout + done.stderr


def test_what_is_no_agent_in_the_folder_of_agents_is_passed_over(person):
    person.shows("new", "max")
    person.write("Link/Agents/file.txt", "No agent.\n")
    (person.agents / "empty").mkdir()
    (person.agents / ".memory").mkdir()
    assert [agent["name"] for agent in person.json("list")] == ["max"]


# ---------------------------------------------------------------- moved


@pytest.mark.requirement("INDEX-10")
def test_an_agent_that_is_moved_whole_keeps_its_index_and_works_there(person):
    agent = person.json("new", "max")
    person.write("Link/Agents/max/Home/memory/lease.md", "The lease.\n")
    gone = person.write("Link/Agents/max/Home/memory/gone.md", "Gone.\n")
    person.shows("memory", "search", "lease", "--agent", "max")
    gone.unlink()
    person.shows("memory", "search", "lease", "--agent", "max")
    (state,) = (person.agents / "max/Agent/memory").glob("link")
    assert (state / "index.sqlite").is_file()
    person.environment["LNK_HOME"] = str(person.root / "new place")
    (person.root / "new place/Agents").mkdir(parents=True)
    (person.agents / "max").rename(person.root / "new place/Agents/max")
    assert person.json("show", "max")["id"] == agent["id"]
    found = person.json("memory", "search", "lease", "--agent", "max")
    assert [result["path"] for result in found["results"]] == ["memory/lease.md"]
    since = person.json("memory", "list", "--since", "2000-01-01", "--agent", "max")
    assert [each["path"] for each in since["removed"]] == ["memory/gone.md"]  # an index made again knows of none
    assert "made_again" not in person.json("memory", "status", "--agent", "max")
    assert list(person.agents.iterdir()) == []
    person.shows("remove", "max")
    assert not (person.root / "new place/Agents/max/Agent/memory/link").exists()


def test_an_agent_whose_folder_is_renamed_answers_to_its_new_name(person):
    person.shows("new", "max")
    person.write("Link/Agents/max/Home/memory/lease.md", "The lease.\n")
    (person.agents / "max").rename(person.agents / "moritz")
    assert person.json("memory", "search", "lease", "--agent", "moritz")["results"]
    shown = person.shows("memory", "setup", "cursor", "--agent", "moritz", "--print")
    entry = json.loads(shown.partition("\n")[2])["mcpServers"]
    tool = f"memory-{person.json('show', 'moritz')['id']}"  # what a client was told before still holds
    assert [each["args"][-1] for each in entry.values()] == [tool]
    assert [agent["name"] for agent in person.json("list")] == ["moritz"]


# ---------------------------------------------------------------- the engine's program


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the program of the engine `acme` stands, on the PATH."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    return tmp_path / "bin" / "lnk-acme"


def prints(engine: Path, text: str) -> None:
    """Makes the engine's program, which prints `text` whatever it is asked."""
    engine.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    engine.chmod(0o755)


def serve_of(agent: Agent, engine: str = "link", *, words_alone: bool = False) -> Serve:
    """What the engine's command prints for the agent, in the sandbox that this machine has."""
    its = Memory(agent, os.environ, engine=engine)
    return its.engine_as(best(os.environ), words_alone=words_alone).command()


@pytest.mark.requirement("NAME-1")
def test_an_engines_program_is_told_by_its_name_and_only_link_has_another(engine):
    prints(engine, "{}")
    assert program_of("acme") == str(engine)
    assert program_of("link") == program_of() == str(Path(sys.executable).parent / "lnk-link-memory")
    with pytest.raises(Missing, match="lnk-other is not installed"):
        program_of("other")


def test_words_alone_leave_the_rest_of_what_the_agents_spec_says(tmp_path):
    agent = Agents(str(tmp_path / "Link")).new("max")
    for spec, told in (
        ("", '{"model":"none"}'),
        ('[tool.memory]\nmodel = "bge-m3"\ntokens = 900\n', '{"model":"none","tokens":900}'),
    ):
        Path(agent.own, "spec.toml").write_text(spec)
        argv = serve_of(agent, words_alone=True).argv
        assert json.loads(argv[argv.index("--spec") + 1]) == json.loads(told)


@pytest.mark.requirement("CONTRACT-3")
def test_a_command_that_names_another_program_than_the_engines_is_refused(engine, tmp_path):
    agent = Agents(str(tmp_path / "Link")).new("max")
    prints(engine, '{"argv": ["lnk-acme", "serve", "--with", "it"], "allow": ["search"]}')
    assert serve_of(agent, "acme").argv == [str(engine), "serve", "--with", "it"]
    for argv in (["/bin/sh", "-c", "id"], ["lnk-link-memory", "serve"], ["lnk-acme-2"], ["../lnk-acme/x"], [""], []):
        prints(engine, json.dumps({"argv": argv}))
        with pytest.raises(Refused, match="another program"):
            serve_of(agent, "acme")
    prints(engine, '{"argv": ["/elsewhere/lnk-acme", "serve"]}')
    assert serve_of(agent, "acme").argv[0] == str(engine)  # ours, wherever it says that it lies


def test_what_an_engine_prints_that_is_no_command_is_refused(engine, tmp_path):
    agent = Agents(str(tmp_path / "Link")).new("max")
    for text in ("", "no json", "[]", "{}", '{"argv": "lnk-acme"}', '{"argv": ["lnk-acme"], "root": true}'):
        prints(engine, text)
        with pytest.raises(Exception, match="lnk-acme") as raised:
            serve_of(agent, "acme")
        assert getattr(raised.value, "status", 1) in (INVALID, REFUSED, CORRUPT)
    shutil.rmtree(tmp_path / "bin")
