"""The contract of a memory engine, through its real program: what `command` prints, and that serving it is that."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import ENGINE, Place, Session
from lnk.contract.memory import TYPES, Serve, Served, owners, parse_threads, schemas, thread_of
from lnk.contract.shape import format_value, parse
from lnk.contract.spec import Spec, format_size, parse_size, parse_spec
from lnk.errors import Invalid, Refused

BIN = Path(ENGINE).parent
CLEAN = {"PATH": f"{BIN}:/usr/bin:/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8"}
WAIT_S = 60
USAGE, INVALID, MISSING = 2, 10, 12
READS = ["search", "read", "list", "links"]


def _run(*argv: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """The engine's program with these arguments and `$LNK_MEMORY_…`, and nothing to read; never a traceback."""
    environment = CLEAN | {f"LNK_MEMORY_{name.upper()}": value for name, value in variables.items()}
    done = subprocess.run(
        [ENGINE, *argv],
        env=environment,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        timeout=WAIT_S,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def _command(*folders: str, **variables: str) -> Serve:
    """What `command` prints, read as the contract says."""
    done = _run("command", *folders, **variables)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert done.stdout.count("\n") == 1
    return parse(done.stdout, Serve, "what command printed")


def _refused(*argv: str, status: int, **variables: str) -> str:
    """The one line with which the program refuses."""
    done = _run(*argv, **variables)
    assert (done.returncode, done.stdout) == (status, ""), done
    assert done.stderr.startswith("lnk-link-memory: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


# ---------------------------------------------------------------- command


@pytest.mark.requirement("CONTRACT-2", "CONTRACT-4")
def test_command_prints_how_to_serve_an_agent():
    assert _command("/Home", "/state", "/Agent", notes="/Agent/memory/notes.md") == Serve(
        argv=["lnk-link-memory", "serve", "/Home", "/state", "/Agent", "--notes", "/Agent/memory/notes.md"],
        allow=[*READS, "remember"],
        models=True,
        model="qwen3-embedding",
        shared=True,
        programs=["link-documents"],
    )


@pytest.mark.requirement("CONTRACT-2")
def test_command_prints_every_variable_as_a_flag():
    """`argv` alone says what a session is, in one process or in many."""
    serve = _command(
        "/Home",
        "/state",
        "/Agent",
        spec='{"model": "none", "tokens": 500, "notes": "8 KB"}',
        notes="/Agent/memory/notes.md",
        documents="/My Vault",
        threads='["telegram-42", "mail"]',
        **{"from": "1"},
    )
    assert serve == Serve(
        argv=[
            *("lnk-link-memory", "serve", "/Home", "/state", "/Agent"),
            *("--spec", '{"model":"none","tokens":500,"notes":"8 KB"}', "--notes", "/Agent/memory/notes.md"),
            *("--documents", "/My Vault", "--from", "--threads", '["telegram-42", "mail"]'),
        ],
        allow=[*READS, "remember"],
        shared=True,
        programs=["link-documents"],
    )


@pytest.mark.requirement("CONTRACT-2", "CONTRACT-6", "VECT-6")
@pytest.mark.parametrize(
    ("spec", "model"),
    [
        ("", "qwen3-embedding"),
        ("  ", "qwen3-embedding"),
        ("{}", "qwen3-embedding"),
        ('{"model": "bge-m3"}', "bge-m3"),
        ('{"model": "hf.co/Org/Name-GGUF:Q4_K_M"}', "hf.co/Org/Name-GGUF:Q4_K_M"),
        ('{"model": "none"}', None),
        ('{"model": "builtin"}', None),  # the engine runs it itself
    ],
)
def test_command_asks_for_the_model_that_the_spec_names(spec, model):
    serve = _command("/Home", "/state", spec=spec)
    assert (serve.models, serve.model) == (True if model else None, model)


def test_command_without_a_value_in_a_variable_prints_no_flag():
    empty = dict.fromkeys(("spec", "notes", "documents", "threads", "from"), "")
    assert _command("/Home", "/state", **empty) == _command("/Home", "/state", **{"from": "0"}, threads="[]")
    assert _command("/Home", "/state").argv == ["lnk-link-memory", "serve", "/Home", "/state"]


def test_command_reads_and_makes_nothing(tmp_path):
    _command(str(tmp_path / "Home"), str(tmp_path / "state"), str(tmp_path / "Agent"), notes=str(tmp_path / "notes.md"))
    assert list(tmp_path.iterdir()) == []


def test_install_has_nothing_to_do_and_asks_nothing(tmp_path):
    done = _run("install")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.requirement("CONTRACT-10")
@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ('{"modle": "x"}', "modle"),
        ('{"model": "two words"}', "'two words', which is not a model's name"),
        ('{"model": "-x"}', "which is not a model's name"),
        ('{"model": "a:b:c"}', "which is not a model's name"),
        ('{"model": "a; rm -rf"}', "which is not a model's name"),
        ('{"model": ""}', "which is not a model's name"),
        ('{"model": "' + "a" * 121 + '"}', "which is not a model's name"),
        ('{"model": 5}', "model"),
        ('{"tokens": 49}', '"tokens" is 49; give a number from 50 to 50,000'),
        ('{"tokens": 50001}', '"tokens" is 50001; give a number from 50 to 50,000'),
        ('{"tokens": -1}', '"tokens" is -1'),
        ('{"tokens": "many"}', "tokens"),
        ('{"tokens": 1.5}', "tokens"),
        ('{"notes": "much"}', "\"notes\" is 'much'; give a size such as"),
        ('{"notes": "0 KB"}', "give a size such as"),
        ('{"notes": "2 MB"}', 'at most "1 MB"'),
        ('{"notes": "-4 KB"}', "give a size such as"),
        ('{"notes": 4096}', "notes"),
        ("[]", "object"),
        ("null", "object"),
        ("{", "not valid"),
        ("model = 'x'", "not valid"),
        ("[" * 100_000, "not valid"),
    ],
)
def test_a_spec_that_is_not_valid_is_refused_saying_why(spec, says, place):
    """By `command`, and by `serve` where the flag was written by hand."""
    assert says in _refused("command", "/Home", "/state", spec=spec, status=INVALID)
    assert says in _refused(*place.argv("--spec", spec)[1:], status=INVALID)
    assert not place.state.exists()


@pytest.mark.requirement("CONTRACT-10")
def test_the_spec_says_how_much_an_answer_and_the_notes_hold(place, open_session):
    place.write("memory/a.md", "a line of text\n" * 5000)
    spec = '{"tokens": 100, "notes": "1 KB"}'
    serve = _command(str(place.home), str(place.state), str(place.agent), spec=spec, notes=str(place.notes))
    memory = open_session([str(BIN / serve.argv[0]), *serve.argv[1:]], env=CLEAN)
    assert len(memory.call("read", {"path": "memory/a.md"}).text) <= 400
    assert memory.remember(note="short")["of"] == 1024
    assert "at most 1,024 bytes (1 KB)" in memory.refused("remember", note="x" * 1100)


# ---------------------------------------------------------------- what command printed, served


@pytest.mark.requirement("CONTRACT-2", "CONTRACT-4", "CONTRACT-11")
@pytest.mark.parametrize("notes", [True, False], ids=["notes", "no-notes"])
def test_what_command_printed_serves_the_calls_that_it_allows(place, open_session, notes):
    """The calls that do not ask are those that only read, and the one that writes the notes where they are named."""
    _fill(place)
    variables = {"notes": str(place.notes)} if notes else {}
    serve = _command(str(place.home), str(place.state), str(place.agent), **variables)
    memory = open_session([str(BIN / serve.argv[0]), *serve.argv[1:]], env=CLEAN)
    tools = {tool["name"]: tool["annotations"] for tool in memory.tools()}
    assert list(tools) == serve.allow
    assert [name for name, told in tools.items() if not told["readOnlyHint"]] == (["remember"] if notes else [])
    assert memory.paths("walrus") == ["memory/a.md"]
    before = _contents(place.root)
    if notes:
        assert memory.remember(note="the gate code is 4711")["notes"] == "- the gate code is 4711\n"
        assert _contents(place.root) == before | {"Agent/memory/notes.md": b"- the gate code is 4711\n"}
    else:
        with pytest.raises(Invalid, match="remember"):
            memory.call("remember", {"note": "x"})
        assert _contents(place.root) == before


@pytest.mark.requirement("CONTRACT-11")
def test_an_engine_without_notes_writes_its_state_and_nothing_else(place, session, open_session):
    _fill(place)
    before = _contents(place.root)
    memory = open_session(place.argv(notes=False)).settled()
    memory.paths("walrus")
    memory.read("memory/a.md")
    memory.links("memory/a.md")
    memory.list(since="2020-01-01")
    memory.close()
    assert _contents(place.root) == before
    assert place.state.is_dir()


def _fill(place: Place) -> None:
    place.write("memory/a.md", "# A walrus\n\n[[b]]\n", at=1_600_000_000)
    place.write("chats/link-main/conversation.md", "## Ana\n\nhello\n", at=1_600_000_000)
    place.write("skills/swim/SKILL.md", "# Swim\n")


def _contents(root: Path) -> dict[str, bytes]:
    """Every file beneath but the engine's state, and what it holds."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "link" not in path.relative_to(root).parts
    }


@pytest.mark.requirement("CONTRACT-14")
def test_a_teams_folder_is_served_without_conversations_and_notes(place, open_session):
    """Of CONTRACT-14 the engine's half: without `<agent>` there is the folder's `memory/` alone."""
    _fill(place)
    serve = _command(str(place.home), str(place.root / "team state"))
    assert serve.argv == ["lnk-link-memory", "serve", str(place.home), str(place.root / "team state")]
    assert serve.allow == READS
    memory = open_session([str(BIN / serve.argv[0]), *serve.argv[1:]], env=CLEAN).settled()
    assert [tool["name"] for tool in memory.tools()] == READS
    assert [entry["path"] for entry in memory.list()["documents"]] == ["memory/a.md"]
    assert memory.paths("hello") == []
    assert "There are no notes here" in memory.refused("read", path="notes.md")
    assert "There is no 'skills/swim/SKILL.md'" in memory.refused("read", path="skills/swim/SKILL.md")
    assert memory.list(kind="skill")["documents"] == []


# ---------------------------------------------------------------- the values

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SERVES = st.builds(
    Serve,
    argv=st.lists(NAMES, max_size=5),
    allow=st.none() | st.lists(NAMES, max_size=3),
    models=st.none() | st.booleans(),
    model=st.none() | NAMES,
    shared=st.none() | st.booleans(),
    programs=st.none() | st.lists(NAMES, max_size=3),
)


@pytest.mark.requirement("CONTRACT-2")
@given(SERVES, st.none() | st.dictionaries(NAMES, NAMES, max_size=3))
@settings(max_examples=200, deadline=None)
def test_what_is_written_of_the_contract_reads_as_what_it_was(serve, env):
    assert parse(format_value(serve), Serve, "Serve") == serve
    served = {"a_abc": Served(argv=serve.argv, env=env)}
    assert parse(format_value(served), TYPES["Agents"], "the agents") == served
    assert "null" not in format_value(Serve(argv=["x"]))


@pytest.mark.parametrize(
    "text", ["{}", '{"argv": "x"}', '{"argv": [1]}', '{"argv": [], "allows": []}', "[]", "", "\ud800"]
)
def test_what_is_no_serve_is_refused_in_one_sentence(text):
    with pytest.raises(Invalid, match=r"^Serve is not valid: .*\.$"):
        parse(text, Serve, "Serve")


@given(st.text(max_size=60) | st.sampled_from(['{"tokens": 9e999}', '{"notes": "4 KB ", "model": null}', "[" * 9999]))
@settings(max_examples=200, deadline=None)
def test_any_text_is_a_spec_or_refused(text):
    try:
        spec = parse_spec(text)
    except Invalid as error:
        assert str(error).endswith(".")
    else:
        assert isinstance(spec, Spec)


def test_a_size_is_read_and_written_as_a_person_writes_it():
    written = {"4 KB": 4096, "4KB": 4096, "100": 100, "100 B": 100, " 1 MB ": 1 << 20}
    assert {text: parse_size(text) for text in written} == written
    assert [format_size(size) for size in (1, 100, 4096, 4608, 1 << 20)] == [
        "1 byte",
        "100 bytes",
        "4 KB",
        "4.5 KB",
        "1 MB",
    ]
    for bad in ("", "KB", "4 kB", "4 GB", "4.5 KB", "0", "1e3", "99999999999"):
        with pytest.raises(Invalid):
            parse_size(bad)


@given(st.text(max_size=30) | st.from_regex(r"(link|task|agent|team)[:-][a-z:-]{0,8}\n?", fullmatch=True))
@settings(max_examples=300, deadline=None)
def test_a_thread_is_the_owners_only_as_link_names_one(thread):
    """Whatever stands there, it is decided by shape, and a list cannot make another agent's an owner's."""
    mine = owners(thread, frozenset([thread]))
    if thread.startswith(("agent-", "team-", "task-")):
        assert not mine
    if owners(thread, frozenset()):
        assert thread.startswith("link:") and thread == thread.strip() != "link:"
    try:
        assert thread_of({"link.local/thread": thread}) == thread
    except Refused:
        with pytest.raises(Invalid):
            parse_threads(json.dumps([thread]))
    else:
        assert parse_threads(json.dumps([thread])) == {thread}


# ---------------------------------------------------------------- schemas


@pytest.mark.requirement("CONTRACT-13")
def test_the_schema_of_every_type_of_the_contract_is_printed():
    everything = json.loads(_run("schema").stdout)
    assert list(everything) == ["Serve", "Served", "Agents", "Spec"]
    for name in everything:
        done = _run("schema", name)
        assert (done.returncode, json.loads(done.stdout)) == (0, everything[name])
    assert everything["Serve"]["required"] == ["argv"]
    assert everything["Serve"]["additionalProperties"] is False
    assert list(everything["Spec"]["properties"]) == ["model", "tokens", "notes"]
    said = _refused("schema", "Nothing", status=INVALID)
    assert "There is no contract type 'Nothing'; there are Serve, Served, Agents, Spec." in said


def test_a_schema_takes_what_the_program_takes_and_refuses_what_it_refuses(place, open_session):
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed: no schema was checked with it")
    checks = {}
    for name, schema in schemas().items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert "$ref" not in format_value(schema)
        checks[name] = jsonschema.Draft202012Validator(schema)
    printed = json.loads(_run("command", "/Home", "/state", notes="/n").stdout)
    assert checks["Serve"].is_valid(printed)
    assert checks["Agents"].is_valid({"a_abc": {"argv": printed["argv"], "env": {"LNK_MEMORY_MODEL": ""}}})
    assert checks["Spec"].is_valid({"model": "x", "tokens": 100, "notes": "4 KB"})
    wrong = {
        "Serve": [{}, {"argv": "x"}, {"argv": [], "other": 1}, []],
        "Served": [{"argv": [], "env": {"a": 1}}],
        "Agents": [{"a": []}],
        "Spec": [{"modle": "x"}, {"tokens": "x"}],
    }
    assert [(name, each) for name, some in wrong.items() for each in some if checks[name].is_valid(each)] == []

    _fill(place)
    memory = open_session(place.argv())
    calls = {
        "search": {"query": "walrus"},
        "read": {"path": "memory/a.md"},
        "list": {"since": "2020-01-01"},
        "links": {"path": "memory/a.md"},
        "remember": {"note": "a"},
    }
    tools = {tool["name"]: tool for tool in memory.tools()}
    assert tools.keys() == calls.keys()
    for name, arguments in calls.items():
        for schema in (tools[name]["inputSchema"], tools[name]["outputSchema"]):
            jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate(arguments, tools[name]["inputSchema"])
        jsonschema.validate(memory.ask(name, **arguments), tools[name]["outputSchema"])


# ---------------------------------------------------------------- exit statuses


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "COMMAND"),
        (["serv"], "invalid choice: 'serv'"),
        (["serve"], "<folder>"),
        (["serve", "/Home"], "<state>"),
        (["serve", "/Home", "/state", "/Agent", "/more"], "unrecognized arguments: /more"),
        (["serve", "/Home", "/state", "--colour"], "unrecognized arguments: --colour"),
        (["serve", "/Home", "/state", "--notes"], "--notes"),
        (["command", "/Home"], "<state>"),
        (["command", "/Home", "/state", "--spec", "{}"], "unrecognized arguments"),
        (["check", "/Home"], "<state>"),
        (["schema", "Serve", "Spec"], "unrecognized arguments"),
        (["install", "x"], "unrecognized arguments"),
    ],
)
def test_a_command_line_that_is_wrong_ends_with_status_2_and_a_hint(argv, says):
    said = _refused(*argv, status=USAGE)
    assert says in said
    assert "--help` shows how it is used." in said


def test_what_is_not_there_ends_with_status_12(tmp_path):
    missing = str(tmp_path / "nothing here")
    for argv in (
        ["serve", missing, str(tmp_path)],
        ["check", missing, str(tmp_path)],
        ["status", missing, str(tmp_path)],
    ):
        assert f"{missing} is not there; check the path or make it first." in _refused(*argv, status=MISSING)


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"from": "yes"}, "$LNK_MEMORY_FROM is 'yes'; it is 1, or not set."),
        ({"threads": '["two words"]'}, "'two words', which is not a thread's name"),
        ({"threads": '{"a": 1}'}, "$LNK_MEMORY_THREADS"),
        ({"threads": "link:main"}, "$LNK_MEMORY_THREADS"),
    ],
)
def test_a_variable_that_is_not_valid_ends_with_status_10(variables, says):
    assert says in _refused("command", "/Home", "/state", **variables, status=INVALID)


def test_arguments_of_any_kind_bring_no_traceback(tmp_path):
    odd = ["", " ", "\n", "-", "--", "\udcff", "é", "a" * 5000, "/dev/null", "../..", "{}", "--help", "-x", "🦭"]
    deep = tmp_path / "a" / "b" / "c"  # so that nothing is made outside of this test's own folder
    deep.mkdir(parents=True)
    for one in odd:
        for argv in (["command", one, one], ["serve", one, "state"], ["check", ".", one], ["serve", ".", one, one]):
            done = _run(*argv, cwd=deep)
            assert done.returncode in (0, 1, 2, 10, 11, 12, 13, 14, 15, 16), (argv, done)
            assert (done.returncode in (0, 1)) == (done.stderr == ""), (argv, done)


@pytest.mark.parametrize("argv", [["serve", "", "s"], ["serve", ".", ""], ["check", ".", ""], ["command", "", "s"]])
def test_an_empty_name_is_no_folder(argv, tmp_path):
    """case isolation-03, for folders: a name that was lost on the way never means the folder one happens to be in."""
    done = _run(*argv, cwd=tmp_path)
    assert done.returncode in (USAGE, INVALID), done
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [[], ["serve"], ["command"], ["schema"], ["check"]])
def test_help_and_version_are_printed(command):
    done = _run(*command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: lnk-link-memory")
    assert _run("--version").stdout.startswith("Link Memory ")


# ---------------------------------------------------------------- an engine of folders, and of nothing else

NETWORK = (
    "socket",
    "ssl",
    "http",
    "http.client",
    "urllib.request",
    "asyncio",
    "httpx",
    "requests",
    "ftplib",
    "smtplib",
)
MODELS = ("numpy", "torch", "onnxruntime", "tensorflow", "transformers", "simsimd", "openai", "ollama", "llama_cpp")

EVERYTHING = """
import json, sys
import lnk.service.session
from lnk.memory.engine import Engine, Settings
from lnk.memory.tools import tools_for
home, state, agent, notes = sys.argv[1:]
engine = Engine(Settings(folder=home, state=state, agent=agent, notes=notes))
engine.start()
calls = {"search": {"query": "walrus"}, "read": {"path": "memory/page.html"}, "list": {},
         "links": {"path": "memory/a.md"}, "remember": {"note": "x"}}
for tool in tools_for(engine):
    tool.make(engine, tool.parse(calls[tool.name]), None)
try:
    engine.read(tools_for(engine)[1].parse({"path": "memory/aa.md"}))
except Exception:
    pass
engine.stop(20)
print(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.requirement("NAME-5")
def test_the_engine_loads_nothing_of_networks_or_models(place):
    """After each of its calls, over HTML, another encoding and ignored files, whose libraries come late."""
    _fill(place)
    place.write("memory/page.html", "<h1>walrus</h1>")
    place.write("memory/old.txt", "Утром мы ехали вдоль реки и видели трёх цапель.".encode("cp1251"))
    place.write("memory/.memoryignore", "*.log\n")
    folders = [str(each) for each in (place.home, place.state, place.agent, place.notes)]
    place.state.mkdir(parents=True, exist_ok=True)
    child = subprocess.run([sys.executable, "-c", EVERYTHING, *folders], capture_output=True, text=True, timeout=WAIT_S)
    assert child.returncode == 0, child.stderr
    loaded = json.loads(child.stdout)
    assert {"chardet", "pathspec", "lnk.memory.engine"} <= set(loaded)
    assert [name for name in loaded if name in (*NETWORK, *MODELS)] == []
    assert [name for name in loaded if name.startswith(("lnk.agent", "lnk.cli", "lnk.harness", "lnk.models"))] == []


@pytest.mark.requirement("NAME-5")
def test_the_engine_opens_no_socket_and_starts_no_program(place, open_session, tmp_path):
    strace = shutil.which("strace")
    if not strace:
        pytest.skip("strace is not installed: that the engine opens no socket was not checked")
    _fill(place)
    place.write("memory/old.txt", "Утром мы ехали вдоль реки и видели трёх цапель.".encode("cp1251"))
    trace = tmp_path / "trace"
    argv = [strace, "-f", "-qq", "-e", "trace=%network,execve,fork,vfork", "-o", str(trace), *place.argv()]
    memory = open_session(argv).settled()
    memory.paths("walrus")
    memory.remember(note="x")
    memory.close()
    calls = [
        line.split(None, 1)[1] for line in trace.read_text().splitlines() if "+++" not in line and "---" not in line
    ]
    assert [call for call in calls if not call.startswith("execve(")] == []
    assert [call for call in calls if call.startswith("execve(") and " = 0" in call][1:] == []


@pytest.mark.requirement("NAME-5")
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="there is no /proc here: open files were not looked at")
def test_an_engine_at_work_holds_no_socket(place, session):
    _fill(place)
    memory: Session = session().settled()
    held = [os.readlink(path) for path in Path(f"/proc/{memory._process.pid}/fd").iterdir()]
    assert len(held) > 3
    assert [name for name in held if name.startswith("socket:")] == []


@pytest.mark.requirement("NAME-5")
def test_no_name_or_kind_of_note_means_anything_to_the_engine(place, session):
    """Two folders that differ in their files' and folders' names alone answer alike: none is a diary, inbox or task."""
    names = {"daily/2026-11-02.md": "x/1.md", "Inbox.md": "x/2.md", "MEMORY.md": "x/3.md", "templates/t.md": "x/4.md"}
    for name, plain in names.items():
        text = f"---\ntype: task\nstatus: done\n---\n# About {plain}\n\n- [ ] walrus #todo @{plain}\n"
        place.write(f"memory/{name}", text, at=1_600_000_000)
        place.write(f"memory/{plain}", text + "and other words\n", at=1_600_000_000)
    memory = session().settled()
    entries = memory.list()["documents"]
    assert {entry["path"] for entry in entries} == {f"memory/{name}" for pair in names.items() for name in pair}
    for name, plain in names.items():
        one, other = memory.read(f"memory/{name}"), memory.read(f"memory/{plain}")
        assert (one["title"], one["kind"]) == (other["title"], other["kind"]) == (f"About {plain}", "document")
    assert len(msgspec.json.encode(entries)) > 0
