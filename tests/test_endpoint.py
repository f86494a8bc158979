"""The client of an embedding model, against servers that are right, wrong, slow, hostile or gone, and a real llama.cpp.

Every answer here comes from a real server over a real socket: `ends.model_server`, told how to behave.
"""

import importlib.util
import json
import math
import os
import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ends.faults import skip_loudly
from ends.gguf import DIMS, TOKENS, llama_server
from ends.model_server import Asked, Entry, ModelServer, Part
from lnk.contract.embedding import Address, Facts, format_address, parse_address
from lnk.errors import Unavailable
from lnk.memory.endpoint import TEXTS_MAX, TROUBLE_BYTES_MAX, Endpoint

Open = Callable[..., Endpoint]
SERVER = Path(__file__).parent / "ends" / "model_server.py"
MODEL = "qwen3-embedding:0.6b"
TEXTS = ["the gate code", "plum cake", "the lease of the flat", "über 🙂"]
SHORT_S = 0.2  # a deadline that is meant to pass
WAIT_S = 20.0
SENT_BYTES_MAX = 32 << 20  # what a server gets rid of before it finds that nobody listens: sockets' buffers, mostly


@pytest.fixture
def ask() -> Iterator[Open]:
    """An endpoint of a server's, or of an address; all are closed after the test."""
    opened: list[Endpoint] = []

    def start(server: ModelServer | str, facts: Facts | None = None, **more: float) -> Endpoint:
        url = server if isinstance(server, str) else server.url
        address = parse_address(format_address(url, facts or Facts()))
        assert address
        opened.append(Endpoint(address, MODEL, **{"query_s": WAIT_S, "documents_s": WAIT_S, **more}))
        return opened[-1]

    yield start
    for endpoint in opened:
        endpoint.close()


@pytest.fixture(params=["tcp", "unix"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """Where a server listens: a port, or a socket in the file system."""
    return None if request.param == "tcp" else tmp_path / "model.sock"


def numbers(vector: bytes | None) -> list[float]:
    """The numbers of a vector, which is there and of length 1."""
    assert vector
    found = list(struct.unpack(f"<{len(vector) // 4}f", vector))
    assert math.sqrt(sum(number * number for number in found)) == pytest.approx(1, abs=1e-6)
    return found


def right(server: ModelServer, text: str, dims: int | None = None) -> object:
    """What `numbers` gives for a text."""
    told = server.vector(text)[:dims]
    length = math.sqrt(sum(number * number for number in told))
    return pytest.approx([number / length for number in told], abs=1e-6)


def refused(endpoint: Endpoint, texts: list[str] = TEXTS, *, query: bool = False) -> str:
    """The one sentence of an encode that comes to nothing."""
    with pytest.raises(Unavailable) as caught:
        endpoint.encode(texts, query=query)
    said = str(caught.value)
    assert re.fullmatch(r"The embedding model at \S+ [^\n]+; [^\n;]+\.", said), said
    return said


# ------------------------------------------------------------ right answers


@pytest.mark.requirement("CONTRACT-6")
@pytest.mark.parametrize(
    "behave", ["right", "lists", "shuffled", "chunked", "old", "cookie", "hung-up-after", "hung-up-later", "surplus"]
)
def test_each_text_gets_its_own_vector_of_length_1_however_a_server_puts_it(
    behave: str, path: Path | None, ask: Open
) -> None:
    """Case embedding-03, where the server shuffles them."""
    with ModelServer(behave, path=path) as server:
        endpoint = ask(server)
        for _ in range(3):
            assert [numbers(each) for each in endpoint.encode(TEXTS)] == [right(server, text) for text in TEXTS]
        assert endpoint.wait_s == 0.0


@pytest.mark.requirement("VECT-7")
def test_a_request_holds_the_texts_and_the_model_and_neither_key_nor_cookie(
    ask: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    with ModelServer("cookie") as server:
        endpoint = ask(server)
        endpoint.encode(TEXTS)
        endpoint.encode(TEXTS)
        length = str(len(json.dumps(server.asked[0].body, separators=(",", ":"), ensure_ascii=False).encode()))
        headers = {
            "host": f"127.0.0.1:{server.port}",
            "accept": "application/json",
            "accept-encoding": "identity",
            "content-type": "application/json",
            "content-length": length,
        }
        body = {"model": MODEL, "input": TEXTS, "encoding_format": "base64"}
        assert server.asked == [Asked(1, "POST", "/v1/embeddings", headers, body)] * 2


def test_the_instruction_of_the_facts_stands_before_a_question_and_before_a_document(ask: Open) -> None:
    facts = Facts(query="Instruct: find\nQuery:", document="passage: ")
    with ModelServer() as server:
        endpoint = ask(server, facts)
        assert numbers(endpoint.encode(["plum"], query=True)[0]) == right(server, "Instruct: find\nQuery:plum")
        assert numbers(endpoint.encode(["plum"])[0]) == right(server, "passage: plum")


@pytest.mark.parametrize("behave", ["right", "lists"])
def test_a_vector_is_cut_to_the_numbers_that_are_kept_and_has_length_1_then(behave: str, ask: Open) -> None:
    with ModelServer(behave, dims=1024) as server:
        found = ask(server, Facts(dims=256)).encode(TEXTS)
        assert [numbers(each) for each in found] == [right(server, text, 256) for text in TEXTS]
        assert len(numbers(ask(server, Facts(dims=4096)).encode(TEXTS)[0])) == 1024


def test_more_texts_than_one_request_takes_are_asked_for_in_several(ask: Open) -> None:
    texts = [f"text {number}" for number in range(2 * TEXTS_MAX + 3)]
    with ModelServer() as server:
        found = ask(server).encode(texts)
        assert [numbers(each) for each in found] == [right(server, text) for text in texts]
        assert [len(asked.texts) for asked in server.asked] == [TEXTS_MAX, TEXTS_MAX, 3]


def test_no_text_asks_nobody(ask: Open) -> None:
    with ModelServer() as server:
        assert ask(server).encode([]) == []
        assert server.connections == 0


def test_half_a_surrogate_pair_is_sent_as_a_mark(ask: Open) -> None:
    with ModelServer() as server:
        assert numbers(ask(server).encode(["a\ud800b"])[0]) == right(server, "a?b")
        assert server.asked[0].texts == ["a?b"]


def test_threads_that_ask_at_once_get_each_its_own(ask: Open) -> None:
    texts = [f"text {number}" for number in range(40)]
    with ModelServer() as server, ThreadPoolExecutor(4) as pool:
        endpoint = ask(server)
        found = list(pool.map(lambda text: endpoint.encode([text])[0], texts))
        assert [numbers(each) for each in found] == [right(server, text) for text in texts]


def test_a_question_does_not_wait_for_the_documents_that_are_asked_for(ask: Open) -> None:
    with ModelServer("silent") as server, ThreadPoolExecutor(1) as pool:
        endpoint = ask(server)
        documents = pool.submit(refused, endpoint)
        server.wait_asked(1)
        server.behave = "right"
        assert numbers(endpoint.encode(["plum"], query=True)[0]) == right(server, "plum")
        endpoint.close()
        documents.result(WAIT_S)


# ------------------------------------------------------------ texts that are refused


@pytest.mark.parametrize("status", [400, 413, 422, 500])
@pytest.mark.parametrize("where", [(0,), (8,), (3, 4), (0, 5, 8)])
def test_a_text_that_the_server_refuses_takes_no_other_with_it(status: int, where: tuple[int, ...], ask: Open) -> None:
    texts = [("far too long " * 9 if number in where else f"text {number}") for number in range(9)]
    with ModelServer(over=20, status=status) as server:
        found = ask(server).encode(texts)
        assert [at for at, each in enumerate(found) if each is None] == list(where)
        assert [numbers(each) for each in found if each] == [right(server, text) for text in texts if len(text) < 20]
        assert {asked.connection for asked in server.asked} == {1}


def test_texts_that_are_all_refused_are_none_where_the_server_takes_another(path: Path | None, ask: Open) -> None:
    with ModelServer(over=20, path=path) as server:
        endpoint = ask(server)
        assert endpoint.encode(["far too long " * 9] * 2) == [None, None]
        assert endpoint.encode(["far too long " * 9], query=True) == [None]


def test_a_refusal_after_a_vector_needs_no_proof_that_the_server_works(ask: Open) -> None:
    with ModelServer(over=20) as server:
        found = ask(server).encode(["plum"] * TEXTS_MAX + ["far too long " * 9])
        assert (None in found[:-1], found[-1]) == (False, None)
        assert [len(asked.texts) for asked in server.asked] == [TEXTS_MAX, 1]


def test_a_text_at_which_the_server_failed_once_is_no_text_that_it_refuses(ask: Open) -> None:
    def fails_once(server: ModelServer, asked: Asked) -> Iterator[Part]:
        server.behave = "right"
        return iter((b"HTTP/1.1 500 told so\r\nContent-Length: 2\r\n\r\n{}",))

    with ModelServer(fails_once) as server:
        assert numbers(ask(server).encode(["plum"])[0]) == right(server, "plum")
        assert [asked.texts for asked in server.asked] == [["plum"], ["a"], ["plum"]]


@pytest.mark.parametrize("status", [400, 413, 422, 500])
def test_a_server_that_refuses_everything_is_asked_twice_and_unavailable(status: int, ask: Open) -> None:
    with ModelServer(f"says-{status}", words='model "x" not found,\n\x1b[31m try pulling it ' + "y" * 500) as server:
        said = refused(ask(server), TEXTS * 10)
        assert f'refuses every text: {status} \'model "x" not found, [31m try pulling it yyy' in said
        assert MODEL in said and len(said) < 400
        assert len(server.asked) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels may throw away an answer with the connection")
def test_a_server_may_refuse_a_request_that_it_has_not_read(path: Path | None, ask: Open) -> None:
    with ModelServer("early", over=1 << 20, path=path) as server:
        found = ask(server).encode(["x" * (16 << 20), "plum"])
        assert (found[0], numbers(found[1])) == (None, right(server, "plum"))


# ------------------------------------------------------------ servers that say no


@pytest.mark.requirement("VECT-7")
@pytest.mark.parametrize("status", [401, 403, 407])
def test_a_server_that_asks_for_a_key_gets_none(status: int, ask: Open) -> None:
    with ModelServer(f"says-{status}") as server:
        said = refused(ask(server))
        assert f"asks for a key, and none is ever sent: {status} 'no'; let it listen without one." in said
        assert len(server.asked) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_server_that_sends_elsewhere_is_not_followed(status: int, ask: Open) -> None:
    with ModelServer() as other, ModelServer(f"says-{status}", elsewhere=other.url) as server:
        assert f"sends elsewhere, which is not followed: {status}" in refused(ask(server))
        assert (len(server.asked), other.connections) == (1, 0)


@pytest.mark.requirement("VECT-7")
def test_a_proxy_of_the_environment_hears_nothing(ask: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    with ModelServer() as proxy, ModelServer() as server:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        ask(server).encode(TEXTS)
        assert (len(server.asked), proxy.connections) == (1, 0)


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_says_how_long_to_leave_it_alone(status: int, ask: Open) -> None:
    with ModelServer(f"says-{status}") as server:
        endpoint = ask(server)
        assert f"is busy: {status} 'no'; try again in 7 s." in refused(endpoint)
        assert (endpoint.wait_s, len(server.asked)) == (7.0, 1)
        server.behave = "right"
        endpoint.encode(TEXTS)
        assert endpoint.wait_s == 0.0


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (404, "has no such model or no embeddings there: 404 'no'; see that it has 'qwen3-embedding:0.6b'."),
        (201, "gave no vectors: 201"),
        (204, "gave no vectors: 204"),
        (402, "gave no vectors: 402"),
        (502, "gave no vectors: 502"),
        (999, "gave no vectors: 999"),
    ],
)
def test_any_other_status_is_no_answer_and_is_not_asked_for_again(status: int, said: str, ask: Open) -> None:
    with ModelServer(f"says-{status}") as server:
        assert said in refused(ask(server))
        assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error":"try pulling it"}', "404 'try pulling it'"),
        (b'{"detail":"Not Found"}', "404 'Not Found'"),
        (b'{"message":{"message":3}}', "404;"),
        (b"<html>Not Found</html>", "404;"),
        (b"[" * 10_000, "404;"),
        (b'"\xff"', "404;"),
        (b'"\\ud800"', "404;"),
    ],
)
def test_a_servers_own_words_are_told_where_it_has_any(body: bytes, said: str, ask: Open) -> None:
    def behave(server: ModelServer, asked: Asked) -> Iterator[Part]:
        yield b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

    with ModelServer(behave) as server:
        assert said in refused(ask(server))


# ------------------------------------------------------------ servers that are wrong


@pytest.mark.parametrize(
    ("behave", "said"),
    [
        ("nan", "a vector holds a number that is not finite"),
        ("nan-list", "its answer is not valid"),
        ("inf", "a vector holds a number that is not finite"),
        ("zeros", "a vector is all zero"),
        ("one-longer", "one vector has 8 numbers and another 9"),
        ("one-empty", "a vector has 0 bytes, and 1 to 8,192 numbers of 4 bytes are taken"),
        ("too-long", "a vector has 32,772 bytes"),
        ("odd-bytes", "a vector has 5 bytes"),
        ("not-base64", "invalid base64 encoded string"),
        ("null", "expected `float`, got `null`"),
        ("huge-numbers", "number out of range"),
        ("huge-exponent", "number out of range"),
        ("too-few", "3 vectors for 4 texts"),
        ("too-many", "5 vectors for 4 texts"),
        ("twice", "its vectors do not say which text each is of"),
        ("negative", "its vectors do not say which text each is of"),
        ("huge-index", "its vectors do not say which text each is of"),
        ("no-index", "missing required field `index`"),
        ("not-json", "its answer is not valid: JSON is malformed"),
        ("not-utf8", "its answer is not valid"),
        ("nested", "its answer is not valid: it is nested too deeply"),
        ("list", "its answer is not valid: expected `object`, got `array`"),
        ("nothing", "its answer is not valid"),
        ("gzip", "sends its answer as 'gzip', which it was not asked to"),
        ("bare", "does not answer in HTTP"),
        ("hung-up", "closed the connection without an answer"),
        ("broken", "broke off in the middle of an answer"),
        ("broken-chunk", "broke off in the middle of an answer"),
    ],
)
def test_a_wrong_answer_is_refused_whole_and_named(behave: str, said: str, ask: Open) -> None:
    with ModelServer(behave) as server:
        endpoint = ask(server)
        assert said.casefold() in refused(endpoint).casefold()
        assert len(server.asked) == 1
        server.behave = "right"
        assert numbers(endpoint.encode(["plum"])[0]) == right(server, "plum")


class Growing(ModelServer):
    """Its vectors have one number more with each request."""

    def entries(self, asked: Asked, model: str = "") -> list[Entry]:
        self.dims += 1
        return super().entries(asked, model)


def test_vectors_of_one_call_have_one_length_whatever_requests_they_came_by(ask: Open) -> None:
    with Growing() as server:
        endpoint = ask(server, Facts(dims=4))
        assert "one vector has 9 numbers and another 10" in refused(endpoint, ["x"] * (TEXTS_MAX + 1))
        assert len(numbers(endpoint.encode(TEXTS)[0])) == 4


def test_another_models_vectors_are_given_as_they_are(ask: Open) -> None:
    """Who asks knows what a model's vectors were before; the endpoint remembers none."""
    with ModelServer() as server:
        endpoint = ask(server)
        before = endpoint.encode(["plum"])
        server.behave = "other-model"
        other = endpoint.encode(["plum"])
        server.behave = "other-dims"
        assert [len(numbers(found[0])) for found in (before, other, endpoint.encode(["plum"]))] == [8, 8, 9]
        assert before != other


def _whole(server: ModelServer, asked: Asked) -> bytes:
    body = server.body(asked, server.entries(asked))
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nRetry-After: 1\r\n\r\n%b" % (len(body), body)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    at=st.floats(0, 1),
    cut=st.integers(0, 40),
    put=st.one_of(
        st.binary(max_size=8),
        st.sampled_from(
            [b"\r\n", b"\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"Transfer-Encoding: chunked\r\n", b"-1"]
        ),
    ),
)
def test_whatever_bytes_come_the_answer_is_vectors_or_unavailable(at: float, cut: int, put: bytes, ask: Open) -> None:
    def behave(server: ModelServer, asked: Asked) -> Iterator[Part]:
        answer = _whole(server, asked)
        begin = int(at * len(answer))
        yield answer[:begin] + put + answer[begin + cut :]
        yield None

    with ModelServer(behave, dims=2) as server:
        endpoint = ask(server)
        try:
            for found in endpoint.encode(TEXTS):
                numbers(found)
        except Unavailable as error:
            assert str(error).startswith(f"The embedding model at {server.url} ")


# ------------------------------------------------------------ servers without end


@pytest.mark.parametrize(
    ("behave", "said"),
    [
        ("endless", "answers with more bytes than vectors can have"),
        ("endless-unsaid", "answers with more bytes than vectors can have"),
        ("endless-chunks", "answers with more bytes than vectors can have"),
        ("endless-headers", "does not answer in HTTP"),
        ("endless-header", "answers with more bytes than vectors can have"),
        ("endless-continue", "answers with more bytes than vectors can have"),
        ("endless-trouble", "refuses every text: 400"),
    ],
)
def test_an_answer_without_end_is_left_after_so_many_bytes(
    behave: str, said: str, path: Path | None, ask: Open
) -> None:
    """Case embedding-15."""
    with ModelServer(behave, path=path) as server:
        assert said in refused(ask(server))
        assert server.sent_bytes < SENT_BYTES_MAX


@pytest.mark.parametrize("behave", ["slow", "silent"])
@pytest.mark.parametrize("query", [True, False])
def test_an_answer_that_is_not_whole_in_time_is_left(behave: str, query: bool, path: Path | None, ask: Open) -> None:
    with ModelServer(behave, path=path, pause_s=SHORT_S / 10) as server:
        endpoint = ask(server, query_s=SHORT_S) if query else ask(server, documents_s=SHORT_S)
        assert f"did not answer within {SHORT_S} s" in refused(endpoint, query=query)
        assert len(server.wait_asked(1)) == 1


def test_a_question_has_one_deadline_for_all_that_is_asked_about_it(ask: Open) -> None:
    def behave(server: ModelServer, asked: Asked) -> Iterator[Part]:
        server.ending.wait(SHORT_S)
        yield from _no() if asked.texts == ["plum"] else [_whole(server, asked)]

    with ModelServer(behave) as server:
        assert ask(server, documents_s=WAIT_S).encode(["plum"]) == [None]
        assert "did not answer within" in refused(ask(server, query_s=1.5 * SHORT_S), ["plum"], query=True)


def _no() -> Iterator[Part]:
    yield b"HTTP/1.1 400 no\r\nContent-Length: 0\r\n\r\n"


def test_a_server_that_does_not_read_is_left(deaf: socket.socket, ask: Open) -> None:
    said = refused(ask(f"unix:{deaf.getsockname()}", documents_s=SHORT_S), ["x" * (32 << 20)])
    assert f"did not answer within {SHORT_S} s" in said


def _full(where: str) -> list[socket.socket]:
    """A Unix socket at `where` whose queue is full, and what fills it."""
    held = [socket.socket(socket.AF_UNIX)]
    held[0].bind(where)
    held[0].listen(0)
    while True:
        held.append(socket.socket(socket.AF_UNIX))
        held[-1].setblocking(False)
        try:
            held[-1].connect(where)
        except BlockingIOError:
            return held


@pytest.fixture
def deaf(tmp_path: Path) -> Iterator[socket.socket]:
    """A server that takes connections and does nothing with them."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "deaf.sock"))
        listening.listen()
        yield listening


@pytest.fixture
def full(tmp_path: Path) -> Iterator[str]:
    """The address of a server that takes no connections and refuses none."""
    if sys.platform != "linux":
        skip_loudly("only Linux lets a client wait for room in the queue of a Unix socket")
    where = str(tmp_path / "full.sock")
    held = _full(where)
    yield f"unix:{where}"
    for each in held:
        each.close()


def test_a_connection_that_is_not_taken_is_given_up_by_its_own_deadline(full: str, ask: Open) -> None:
    said = refused(ask(full, connect_s=SHORT_S, query_s=WAIT_S), query=True)
    assert f"is not there: no connection within {SHORT_S} s; start it, or see that this is where it listens." in said


# ------------------------------------------------------------ servers that are gone, and back


def test_a_server_that_is_not_there_is_unavailable(path: Path | None, ask: Open) -> None:
    with ModelServer(path=path) as server:
        endpoint = ask(server)
    assert "is not there: " in refused(endpoint)
    assert "is not there: " in refused(endpoint, query=True)


def test_a_path_longer_than_the_kernel_takes_is_unavailable(ask: Open, tmp_path: Path) -> None:
    assert "is not there: " in refused(ask(f"unix:{tmp_path}/{'x' * 200}"))


def test_a_server_that_ends_and_comes_back_is_found_again(path: Path | None, ask: Open) -> None:
    with ModelServer(path=path) as server:
        port = 0 if path else server.port
        endpoint = ask(server)
        endpoint.encode(TEXTS)
    refused(endpoint)
    with ModelServer(path=path, port=port) as server:
        assert numbers(endpoint.encode(["plum"])[0]) == right(server, "plum")


def test_a_connection_serves_many_calls(path: Path | None, ask: Open) -> None:
    with ModelServer(path=path) as server:
        endpoint = ask(server)
        for query in (True, False, True):
            endpoint.encode(TEXTS, query=query)
        assert [asked.connection for asked in server.asked] == [1, 1, 1]


def test_a_connection_that_was_closed_since_is_opened_anew(path: Path | None, ask: Open) -> None:
    with ModelServer("hung-up-later", path=path) as server:
        endpoint = ask(server)
        endpoint.encode(TEXTS)
        endpoint.encode(TEXTS)
        assert [asked.connection for asked in server.asked] == [1, 1, 2]
        server.behave = "hung-up"
        assert "closed the connection without an answer" in refused(endpoint)
        assert [asked.connection for asked in server.asked] == [1, 1, 2, 2, 3]


def test_a_connection_that_is_said_to_end_is_not_used_again(path: Path | None, ask: Open) -> None:
    def behave(server: ModelServer, asked: Asked) -> Iterator[Part]:
        yield _whole(server, asked).replace(b"Retry-After: 1", b"Connection: close")

    with ModelServer(behave, path=path) as server:
        endpoint = ask(server)
        endpoint.encode(TEXTS)
        endpoint.encode(TEXTS)
        assert [asked.connection for asked in server.asked] == [1, 2]


def test_a_connection_on_which_more_is_to_come_is_not_used_again(path: Path | None, ask: Open) -> None:
    def behave(server: ModelServer, asked: Asked) -> Iterator[Part]:
        head = b"HTTP/1.1 400 no\r\nContent-Length: %d\r\n\r\n" % (TROUBLE_BYTES_MAX + 9)
        yield head + bytes(TROUBLE_BYTES_MAX) if asked.texts == ["plum"] else _whole(server, asked)

    with ModelServer(behave, path=path) as server:
        assert ask(server).encode(["plum"]) == [None]
        assert [asked.connection for asked in server.asked] == [1, 2]


def test_what_is_sent_after_an_answer_is_not_taken_for_the_next(path: Path | None, ask: Open) -> None:
    with ModelServer("surplus", path=path) as server:
        endpoint = ask(server)
        for text in TEXTS:
            assert numbers(endpoint.encode([text])[0]) == right(server, text)


@contextmanager
def program(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The server as a program, and its address."""
    child = subprocess.Popen([sys.executable, str(SERVER), *arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout
        yield child, child.stdout.readline().strip()
    finally:
        child.kill()
        child.communicate()


def test_a_server_killed_while_it_is_waited_for_is_unavailable(ask: Open) -> None:
    with program("--port", "0", "--behave", "slow") as (child, url), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(refused, ask(url))
        child.kill()
        waiting.result(WAIT_S)


# ------------------------------------------------------------ where it is


def test_no_name_is_looked_up(ask: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    def lookup(*arguments: object, **more: object) -> list[object]:
        raise AssertionError(arguments)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    with ModelServer() as server:
        assert ask(f"http://localhost:{server.port}/v1").encode(TEXTS) == ask(server).encode(TEXTS)
    for host in ("127.999.1.1", "example.org"):
        endpoint = Endpoint(Address(host=host, port=80), MODEL)
        assert "is not there: illegal IP address" in refused(endpoint)


def test_a_server_on_ipv6_is_reached_by_its_address_and_as_localhost(ask: Open) -> None:
    try:
        server = ModelServer(host="::1")
    except OSError as error:
        skip_loudly(f"there is no IPv6 here: {error.strerror}")
    with server:
        for url in (server.url, f"http://localhost:{server.port}/v1"):
            assert numbers(ask(url).encode(["plum"])[0]) == right(server, "plum")
        assert {asked.headers["host"] for asked in server.asked} == {f"[::1]:{server.port}", f"localhost:{server.port}"}


def test_a_base_of_its_own_stands_before_the_call(ask: Open) -> None:
    with ModelServer() as server:
        ask(server.url.removesuffix("v1") + "api/openai").encode(["plum"])
        ask(server.url.removesuffix("/v1")).encode(["plum"])
        assert [asked.path for asked in server.asked] == ["/api/openai/embeddings", "/embeddings"]


def test_an_engine_without_a_model_loads_nothing_of_the_network() -> None:
    program = "import sys, lnk.memory.endpoint; print(*{'socket', 'ssl', 'http.client', 'numpy'} & sys.modules.keys())"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "\n"


# ------------------------------------------------------------ closed from another thread


@pytest.mark.parametrize("behave", ["silent", "slow"])
def test_closing_ends_an_encode_that_waits_for_an_answer(behave: str, path: Path | None, ask: Open) -> None:
    with ModelServer(behave, path=path) as server, ThreadPoolExecutor(1) as pool:
        endpoint = ask(server)
        waiting = pool.submit(refused, endpoint)
        server.wait_asked(1)
        endpoint.close()
        assert "is not asked any more; its endpoint was closed." in waiting.result(WAIT_S)
        server.behave = "right"
        assert "is not asked any more" in refused(endpoint)
        endpoint.close()
        assert len(server.asked) == 1


def test_closing_ends_an_encode_that_waits_for_a_connection(full: str, ask: Open) -> None:
    endpoint = ask(full, connect_s=1000.0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(refused, endpoint)
        endpoint.close()
        assert "is not asked any more" in waiting.result(WAIT_S)


def test_closing_ends_an_encode_that_the_server_does_not_read(deaf: socket.socket, ask: Open) -> None:
    endpoint = ask(f"unix:{deaf.getsockname()}")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(refused, endpoint, ["x" * (32 << 20)])
        connection, _ = deaf.accept()
        with connection:
            connection.recv(1)
            endpoint.close()
            assert "is not asked any more" in waiting.result(WAIT_S)


def test_closing_takes_every_connection_with_it(ask: Open) -> None:
    before, others = len(os.listdir("/dev/fd")), set(threading.enumerate())
    with ModelServer("silent") as server, ThreadPoolExecutor(3) as pool:
        endpoint = ask(server)
        waiting = [pool.submit(refused, endpoint) for _ in range(3)]
        server.wait_asked(3)
        endpoint.close()
        for each in waiting:
            assert "is not asked any more" in each.result(WAIT_S)
    for thread in set(threading.enumerate()) - others:
        if thread.daemon:
            thread.join(WAIT_S)
    assert len(os.listdir("/dev/fd")) == before


# ------------------------------------------------------------ the server that tests are run against


@pytest.mark.parametrize("where", ["--port", "--socket"])
def test_the_test_server_is_a_program_too(where: str, ask: Open, tmp_path: Path) -> None:
    told = [where, "0" if where == "--port" else str(tmp_path / "model.sock"), "--over", "20", "--status", "500"]
    with program(*told) as (_, url):
        found = ask(url).encode(["plum", "far too long " * 9])
    assert (len(numbers(found[0])), found[1]) == (8, None)


def test_the_test_server_puts_texts_about_the_same_near_each_other(ask: Open) -> None:
    with ModelServer(dims=64, same={"auto": "car"}) as server:
        found = [numbers(each) for each in ask(server).encode(["my car is red", "my auto is red", "plum cake for ten"])]
        near, far = (sum(a * b for a, b in zip(found[0], other, strict=True)) for other in found[1:])
        assert near == pytest.approx(1) and far < 0.5


# ------------------------------------------------------------ a real runtime


@pytest.mark.requirement("CONTRACT-6", "VECT-7")
def test_a_real_llama_cpp_server_is_understood(ask: Open, tmp_path: Path) -> None:
    if importlib.util.find_spec("xllamacpp") is None:
        skip_loudly("the wheel xllamacpp is not installed, so no real llama.cpp server was asked")
    with llama_server(tmp_path) as url:
        endpoint = ask(url, Facts(query="Query:"))
        texts = ["plum cake", "the gate code", "a " * 2 * TOKENS, "plum cake", "über 🙂 漢字"]
        found = endpoint.encode(texts)
        assert [each is None for each in found] == [False, False, True, False, False]
        assert [len(numbers(each)) for each in found if each] == [DIMS] * 4
        assert numbers(found[0]) == pytest.approx(numbers(found[3]), abs=1e-4)
        assert numbers(found[0]) != pytest.approx(numbers(found[1]), abs=1e-2)
        question = endpoint.encode(["plum cake"], query=True)[0]
        assert numbers(question) == pytest.approx(numbers(endpoint.encode(["Query:plum cake"])[0]), abs=1e-4)
        assert endpoint.encode(["a " * 2 * TOKENS], query=True) == [None]
        assert len(numbers(ask(url, Facts(dims=32)).encode(["plum cake"])[0])) == 32
    refused(endpoint)
