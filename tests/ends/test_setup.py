"""`lnk agent memory setup`: each client's own file, read as that client reads it, and the command in it really run."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import Person
from lnk.agent import run
from lnk.mcp.client import Program

INVALID, MISSING, CONFLICT, FULL, CORRUPT = 10, 12, 13, 14, 16

# Where each client looks, beneath HOME or the folder that its variable names, and under which key its servers stand.
VSCODE = "Library/Application Support" if sys.platform == "darwin" else ".config"
CLIENTS = {
    "claude-code": (".claude.json", "mcpServers"),
    "codex": (".codex/config.toml", "mcp_servers"),
    "cursor": (".cursor/mcp.json", "mcpServers"),
    "gemini-cli": (".gemini/settings.json", "mcpServers"),
    "vscode": (f"{VSCODE}/Code/User/mcp.json", "servers"),
}
JSON_CLIENTS = [name for name in CLIENTS if name != "codex"]

TOML = """\
# The model that I like.
model   =   "best"          # and why

[projects."/home/me/a.b"]
trust_level = "trusted"

  [mcp_servers.other]       # not ours
  command = 'other'
  args = [
    "one",  # first
  ]
[mcp_servers.link-memory-too]
command = "mine"
"""


class Attacher(Person):
    """Someone with notes and clients, whose Link folder is where it is when nothing says otherwise."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.link, self.notes = self.home / "Link", root / "Notes"
        del self.environment["LNK_HOME"]
        self.write("Notes/lease.md", "# Lease\n\nIt ends on 31 March.\n")

    def file(self, client: str) -> Path:
        """The file that the client reads."""
        return self.home / CLIENTS[client][0]

    def has(self, client: str, text: str | bytes) -> Path:
        """What stands in the client's file already."""
        file = self.file(client)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        return file

    def setup(self, client: str, *flags: str | Path) -> str:
        """What `lnk agent memory setup` shows when it works."""
        done = self.lnk("agent", "memory", "setup", client, *flags)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    def setup_refused(self, client: str, status: int, *flags: str | Path) -> str:
        """The one line that it says when it does not."""
        return self.refused(status, "agent", "memory", "setup", client, *flags)

    def servers(self, client: str, file: Path | None = None) -> dict[str, Any]:
        """The servers, as the client reads them."""
        return parsed(client, (file or self.file(client)).read_text("utf-8"))[CLIENTS[client][1]]


def parsed(client: str, text: str) -> Any:
    """A configuration as its client reads it."""
    return tomllib.loads(text) if client == "codex" else json.loads(text)


def identity(file: Path) -> tuple[int, int, int, bytes]:
    """Another inode or time means that it was written."""
    at = file.stat()
    return at.st_ino, at.st_mtime_ns, at.st_ctime_ns, file.read_bytes()


def start(entry: dict[str, Any], person: Attacher, cwd: Path) -> Program:
    """The server started as a client starts it: its command as written, in a folder and environment not ours."""
    environment = {"HOME": str(person.home), "PATH": "/usr/bin:/bin", **entry.get("env", {})}
    return Program(
        ["/bin/sh", "-c", 'cd "$0" && exec "$@"', str(cwd), entry["command"], *entry["args"]], env=environment
    )


@pytest.fixture
def person(tmp_path: Path) -> Attacher:
    return Attacher(tmp_path)


# ---------------------------------------------------------------- it works


@pytest.mark.parametrize("client", CLIENTS)
def test_what_is_written_starts_the_memory_from_anywhere(person, client, tmp_path):
    shown = person.setup(client, "--documents", person.notes)
    assert str(person.file(client)) in shown and str(person.notes) in shown
    (name, entry), *more = person.servers(client).items()
    assert (name, more) == ("link-memory", [])
    assert os.path.isabs(entry["command"]) and "env" not in entry
    assert entry.get("type", "stdio") == "stdio"
    hostile = tmp_path / "project"  # a folder of work that holds modules of our names
    hostile.mkdir()
    for module in ("lnk", "msgspec", "apsw", "argparse", "json"):
        (hostile / f"{module}.py").write_text("raise SystemExit('a module of the current folder was imported')\n")
    with start(entry, person, hostile) as program:
        program.open()
        assert [tool["name"] for tool in program.tools()] == ["search", "read", "list", "links", "remember"]
        found = program.call("search", {"query": "when does the lease end"})
        assert [result["path"] for result in found.structured["results"]] == ["memory/lease.md"]


@pytest.mark.parametrize(
    ("client", "variable", "file"),
    [
        ("claude-code", "CLAUDE_CONFIG_DIR", ".claude.json"),
        ("codex", "CODEX_HOME", "config.toml"),
        pytest.param(
            "vscode",
            "XDG_CONFIG_HOME",
            "Code/User/mcp.json",
            marks=pytest.mark.skipif(sys.platform == "darwin", reason="macOS has no XDG_CONFIG_HOME"),
        ),
    ],
)
def test_a_client_that_looks_elsewhere_is_written_to_there(person, client, variable, file):
    person.environment[variable] = str(person.root / "config of mine")
    person.setup(client)
    assert "link-memory" in person.servers(client, person.root / "config of mine" / file)
    assert not person.file(client).exists()


def test_the_link_folder_of_the_setup_is_the_one_that_is_served(person):
    person.environment["LNK_HOME"] = "Link of mine"  # relative: a client's folder is another
    for client in CLIENTS:
        person.setup(client, "--documents", person.notes)
        entry = person.servers(client)["link-memory"]
        assert entry["env"] == {"LNK_HOME": str(person.root / "Link of mine")}
    with start(entry, person, Path("/")) as program:
        program.open()
        assert program.call("read", {"path": "memory/lease.md"}).structured["title"] == "Lease"
    assert not person.link.exists()


def test_another_agent_stands_beside_main_under_its_own_name(person):
    (person.root / "Vault").mkdir()
    person.setup("cursor", "--documents", person.notes)
    person.setup("cursor", "--documents", "Vault", "--agent", "vault")
    servers = person.servers("cursor")
    assert list(servers) == ["link-memory", "link-memory-vault"]
    tools = [entry["args"][-4:] for entry in servers.values()]
    ids = [json.loads(person.shows("agent", "show", name, "--json"))["id"] for name in ("main", "vault")]
    assert tools == [["-I", "-S", run.__file__, f"memory-{each}"] for each in ids]
    person.setup("cursor", "--agent", "vault", "--remove")
    assert person.servers("cursor") == {"link-memory": servers["link-memory"]}


def test_a_second_folder_is_refused_with_what_to_do(person):
    (person.root / "Vault").mkdir()
    person.setup("cursor", "--documents", person.notes)
    before = identity(person.file("cursor"))
    told = person.setup_refused("cursor", CONFLICT, "--documents", "Vault")
    assert str(person.notes) in told and str(person.root / "Vault") in told and "--agent NAME" in told
    assert identity(person.file("cursor")) == before
    assert "Nothing to do" in person.setup("cursor", "--documents", person.notes)


def test_main_that_has_no_documents_yet_takes_a_folder_and_one_that_has_keeps_its_own(person):
    person.setup("cursor")
    person.setup("cursor", "--documents", person.notes)
    assert json.loads(person.lnk("agent", "show", "main", "--json").stdout)["documents"] == str(person.notes)
    assert person.lnk("agent", "new", "full").returncode == 0
    (person.link / "Agents/full/Home/memory/mine.md").write_text("Mine.\n")
    assert "Agents/full/Home/memory" in person.setup_refused(
        "cursor", CONFLICT, "--agent", "full", "--documents", "Notes"
    )


# ---------------------------------------------------------------- what stood there stays


def before_of(client: str, indent: str | int | None = 4) -> str:
    """A configuration with much of its own in it, in its own order, and servers of others."""
    if client == "codex":
        return TOML
    key = CLIENTS[client][1]
    mine = {"command": "mine", "args": ["ä", "\u2028"], "env": {"A": "1"}, "disabled": True}
    value = {
        "zeta": [1, 2.5, -0.0, 1e-7, 12345678901234567890, None, True, {"deep": {"er": []}}],
        key: {"other": mine, "link-memory-too": {"url": "https://example.org/mcp?a=1&b=2"}},
        "alpha": 'Zürich 🪴 \\ " \x7f / </script>',
    }
    return json.dumps(value, indent=indent, ensure_ascii=False)


@pytest.mark.parametrize("client", CLIENTS)
def test_what_stood_there_stays_and_removing_gives_it_back(person, client):
    text = before_of(client)
    file, key = person.has(client, text), CLIENTS[client][1]
    file.chmod(0o640)
    person.setup(client)
    after = file.read_text("utf-8")
    found = parsed(client, after)
    assert list(found[key])[-1] == "link-memory"
    del found[key]["link-memory"]
    assert found == parsed(client, text)
    if client == "codex":
        assert after.startswith(text)
    else:
        assert list(found) == list(json.loads(text)) and list(found[key]) == list(json.loads(text)[key])
        assert after.startswith(text.partition('"link-memory-too"')[0])
        assert f'\n{" " * 4}"alpha": "Zürich 🪴' in after
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert "Took link-memory out" in person.setup(client, "--remove")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    if client == "codex":
        assert file.read_bytes() == text.encode()
    else:
        assert file.read_text("utf-8").rstrip("\n") == text
    assert [each.name for each in file.parent.iterdir() if each != person.link] == [file.name]


@pytest.mark.parametrize("indent", ["\t", 2])
def test_json_keeps_its_indentation(person, indent):
    text = before_of("cursor", indent)
    file = person.has("cursor", text)
    person.setup("cursor")
    person.setup("cursor", "--remove")
    assert file.read_text("utf-8").rstrip("\n") == text


@pytest.mark.parametrize("client", ["claude-code", "codex"])
def test_a_second_setup_and_a_second_removal_write_nothing(person, client):
    file = person.has(client, before_of(client))
    person.setup(client)
    before = identity(file)
    assert "Nothing to do" in person.setup(client)
    assert json.loads(person.setup(client, "--json"))["changed"] is False
    assert identity(file) == before
    person.setup(client, "--remove")
    before = identity(file)
    assert "Nothing to do" in person.setup(client, "--remove")
    assert identity(file) == before


@pytest.mark.parametrize("client", ["cursor", "codex"])
def test_removing_from_a_client_that_was_never_set_up_makes_nothing(person, client):
    person.lnk("agent", "new", "main")
    assert "Nothing to do" in person.setup(client, "--remove")
    assert not person.file(client).parent.exists()


@pytest.mark.parametrize("text", ["{}", '{"theme": "dark"}', '{"mcpServers": {}}'])
def test_removing_gives_back_the_same_json_where_there_were_no_servers(person, text):
    file = person.has("cursor", text)
    person.setup("cursor")
    person.setup("cursor", "--remove")
    found = json.loads(file.read_text())
    assert {**found, "mcpServers": found.get("mcpServers", {})} == {"mcpServers": {}, **json.loads(text)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a = 1\n",
        "# only a comment, and no line end",
        "a = 1\r\n# of Windows\r\n",
        '[mcp_servers]\nother = { command = "x" }\n',
        '[mcp_servers."link-memory-too"]\ncommand = "x"\n\n\n# the end\n',
        'mcp_servers.other.command = "x"\n',
    ],
)
def test_removing_gives_toml_back_byte_for_byte(person, text):
    file = person.has("codex", text)
    person.setup("codex")
    assert "link-memory" in person.servers("codex")
    person.setup("codex", "--remove")
    assert file.read_bytes() == (text if text.endswith("\n") or not text else text + "\n").encode()


def test_a_line_of_a_text_is_not_taken_for_our_table(person):
    text = 'a = """\n[mcp_servers.link-memory]\n"""\n'
    file = person.has("codex", text)
    for flags in ([], ["--remove"]):
        done = person.lnk("agent", "memory", "setup", "codex", *flags)
        assert done.returncode in (0, CORRUPT) and "Traceback" not in done.stderr, done
        assert file.read_text().startswith(text)


def test_toml_keeps_the_comments_of_the_table_after_ours(person):
    person.setup("codex")
    file = person.file("codex")
    mine = "\n# This one is for work:\n[mcp_servers.work]\ncommand = 'w'\n"
    file.write_text(file.read_text() + mine)
    person.setup("codex", "--remove")
    assert file.read_text().strip() == mine.strip()


def test_an_older_entry_of_ours_is_replaced_and_what_a_person_added_to_it_stays(person):
    person.setup("codex")
    person.setup("gemini-cli")
    toml, settings = person.file("codex"), person.file("gemini-cli")
    toml.write_text(toml.read_text() + "startup_timeout_sec = 30\nenabled = false\n")
    value = json.loads(settings.read_text())
    value["mcpServers"]["link-memory"] |= {"timeout": 5000, "trust": True, "command": "/old/python"}
    settings.write_text(json.dumps(value))
    person.setup("codex")
    person.setup("gemini-cli")
    assert person.servers("codex")["link-memory"]["startup_timeout_sec"] == 30
    assert person.servers("codex")["link-memory"]["enabled"] is False
    entry = person.servers("gemini-cli")["link-memory"]
    assert (entry["timeout"], entry["trust"]) == (5000, True)
    assert entry["command"] != "/old/python"


def test_a_text_cut_inside_a_character_by_the_client_stays_so(person):
    file = person.has("claude-code", '{"history": ["\\ud83d"], "n": 1}')  # JavaScript cuts strings like that
    person.setup("claude-code")
    assert json.loads(file.read_text())["history"] == ["\ud83d"]
    assert "link-memory" in person.servers("claude-code")


def test_a_configuration_that_is_kept_elsewhere_and_linked_stays_a_link(person):
    for client in ("claude-code", "codex"):
        kept = person.root / "dotfiles" / client
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(before_of(client))
        person.file(client).parent.mkdir(exist_ok=True)
        person.file(client).symlink_to(f"../{'../' * (client == 'codex')}dotfiles/{client}")
        person.setup(client)
        assert person.file(client).is_symlink() and not kept.is_symlink()
        assert "link-memory" in person.servers(client, kept)
        assert sorted(each.name for each in kept.parent.iterdir()) == sorted({client, "claude-code"})


# ---------------------------------------------------------------- what is not touched


@pytest.mark.parametrize("client", CLIENTS)
def test_print_shows_what_works_and_writes_nothing_of_the_clients(person, client):
    file = person.has(client, before_of(client))
    before = identity(file)
    first, _, text = person.setup(client, "--documents", person.notes, "--print").partition("\n")
    assert str(file) in first
    shown = parsed(client, text)[CLIENTS[client][1]]["link-memory"]
    assert identity(file) == before
    person.setup(client)
    assert person.servers(client)["link-memory"] == shown


def test_the_command_that_is_printed_works_for_a_client_that_has_no_setup_of_its_own(person):
    shown = json.loads(person.setup("cursor", "--documents", person.notes, "--print").partition("\n")[2])
    with start(shown["mcpServers"]["link-memory"], person, Path("/")) as program:
        program.open()
        assert program.call("list", {}).structured["documents"][0]["path"] == "memory/lease.md"
    assert not person.file("cursor").exists()


def test_print_makes_no_file_where_there_is_none(person):
    for client in ("codex", "vscode"):
        person.setup(client, "--print")
    assert list(person.home.iterdir()) == [person.link]


@pytest.mark.parametrize(
    "text",
    [
        '// where my servers stand\n{\n  "servers": {}\n}\n',
        '{\n  "servers": {}, // none yet\n}\n',
        '{"servers": {},}',
        "{",
        "[]",
        "null",
        '{"servers": []}',
        b"\xff\xfe{\0}\0",
        b'{"servers": {"\xff": 1}}',
        "[" * 100_000,
    ],
    ids=lambda text: repr(text[:20]),
)
def test_what_is_no_plain_json_is_refused_with_a_way_out_and_not_touched(person, text):
    file = person.has("vscode", text)
    before = identity(file)
    told = person.setup_refused("vscode", CORRUPT)
    assert str(file) in told and re.search("--print|by hand|mend", told)
    assert identity(file) == before


@pytest.mark.parametrize(("client", "text"), [("vscode", "// mine\n{}\n"), ("codex", "mcp_servers = {}\na = = 1\n")])
def test_the_lines_for_a_file_that_has_to_be_edited_by_hand_are_printed(person, client, text):
    file = person.has(client, text)
    before = identity(file)
    shown = person.setup(client, "--print").partition("\n")[2]
    assert "link-memory" in parsed(client, shown)[CLIENTS[client][1]]
    assert str(file) in person.setup_refused(client, CORRUPT, "--remove")
    assert identity(file) == before


def test_a_number_that_json_cannot_give_back_is_not_spoiled(person):
    file = person.has("cursor", '{"n": 1e400}')
    done = person.lnk("agent", "memory", "setup", "cursor")
    assert "Traceback" not in done.stderr
    assert "Infinity" not in file.read_text()


@pytest.mark.parametrize(
    "text",
    [
        "a = = 1\n",
        "mcp_servers = 3\n",
        'mcp_servers = { other = { command = "x" } }\n',
        '[mcp_servers]\nlink-memory = { command = "x" }\n',
        'mcp_servers.link-memory.command = "x"\n',
        b'a = "\xff"\n',
    ],
)
def test_toml_that_cannot_be_edited_is_refused_with_a_way_out_and_not_touched(person, text):
    file = person.has("codex", text)
    before = identity(file)
    told = person.setup_refused("codex", CORRUPT)
    assert str(file) in told and re.search("--print|by hand|mend", told)
    assert identity(file) == before


def test_a_client_is_cleaned_up_after_its_agent_is_gone(person):
    person.setup("cursor")
    assert person.lnk("agent", "remove", "main", "--files").returncode == 0
    person.setup("cursor", "--remove")
    assert "link-memory" not in json.loads(person.file("cursor").read_text()).get("mcpServers", {})
    assert not (person.link / "Agents/main").exists()


@pytest.mark.parametrize("kind", ["folder", "fifo", "loop"])
def test_a_configuration_that_is_no_file_is_refused_in_one_line(person, kind):
    file = person.file("cursor")
    file.parent.mkdir()
    {"folder": file.mkdir, "fifo": lambda: os.mkfifo(file), "loop": lambda: file.symlink_to(file)}[kind]()
    done = person.lnk("agent", "memory", "setup", "cursor")
    assert done.returncode in (INVALID, 11) and done.stderr.count("\n") == 1 and str(file) in done.stderr
    assert list(file.parent.iterdir()) == [file]


def test_a_client_that_is_not_known_is_told_which_are(person):
    assert "claude-code, codex, cursor, gemini-cli, vscode" in person.setup_refused("emacs", INVALID)
    assert list(person.home.iterdir()) == []


@pytest.fixture
def full_home(tmp_path: Path, person: Attacher) -> Iterator[Attacher]:
    """A person whose home is a disk on which not a byte is left, with a configuration on it."""
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(person.home)]
    if os.geteuid() != 0 or not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("NOT TESTED: a full disk; only root can mount a small one here")
    person.environment["LNK_HOME"] = str(tmp_path / "Link")
    person.has("cursor", before_of("cursor"))
    with open(person.home / "filler", "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            pass
    yield person
    subprocess.run(["umount", "--lazy", str(person.home)], check=True)


def test_a_disk_that_is_full_leaves_the_configuration_as_it_was(full_home):
    before = identity(full_home.file("cursor"))
    assert "No space left" in full_home.setup_refused("cursor", FULL)
    assert identity(full_home.file("cursor")) == before
    assert list(full_home.file("cursor").parent.iterdir()) == [full_home.file("cursor")]
