"""MCP without I/O: lines in, answers and calls out; and the five tools as they are listed and answered."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from conftest import ENGINE, Place
from lnk.lines import TOO_LONG, Lines, clean, format_line
from lnk.mcp.client import Client
from lnk.mcp.protocol import CAPABILITIES_META, CLIENT_META, HANDSHAKE, MODERN, SERVER_META, SUPPORTED, VERSION_META
from lnk.mcp.server import Action, Call, Cancelled, Describe, Reply, Service, Session, Tool
from lnk.memory.engine import Engine, Settings
from lnk.service.session import Work, describe

META: dict[str, Any] = {
    VERSION_META: MODERN[0],
    CLIENT_META: {"name": "test", "version": "0"},
    CAPABILITIES_META: {},
}
INFO = {"name": "toy", "title": "A toy", "version": "0.1"}
OBJECT = {"type": "object"}


def tool(name: str) -> Tool:
    return Tool(
        name=name, title=name, description=name, input_schema=OBJECT, output_schema=OBJECT, annotations={"x": True}
    )


class Toy(Session):
    """A session that says of itself what `words` gives."""

    words = staticmethod(lambda: "Hi.")

    def receive(self, line: bytes) -> list[Action]:
        actions = super().receive(line)
        return [self.described(each, self.words()) if isinstance(each, Describe) else each for each in actions]


def toy(*names: str) -> Session:
    """A session that offers tools of these names and makes none of them."""
    return Toy(Service(**INFO, tools=[tool(name) for name in names or ("one", "two")]))


def request(method: str, params: dict[str, Any] | None = None, *, number: Any = 1) -> bytes:
    """A request of the handshake's era."""
    return format_line({"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}})


def modern(method: str, params: dict[str, Any] | None = None, *, number: Any = 1, meta: Any = META) -> bytes:
    """A request of the stateless era."""
    return request(method, {**(params or {}), "_meta": meta}, number=number)


def opened(session: Session) -> Session:
    session.receive(request("initialize", {"protocolVersion": HANDSHAKE[0]}, number="open"))
    return session


def said(actions: list[Action]) -> list[dict[str, Any]]:
    """What is written for these actions."""
    return [json.loads(action.line) for action in actions if isinstance(action, Reply)]


def answer(session: Session, line: bytes) -> dict[str, Any]:
    """The one thing written for `line`."""
    (only,) = said(session.receive(line))
    return only


def call(session: Session, line: bytes) -> Call:
    """The one call to make for `line`."""
    (only,) = session.receive(line)
    assert isinstance(only, Call)
    return only


def code(message: dict[str, Any]) -> int:
    return message["error"]["code"]


# ------------------------------------------------------------------ eras


def test_the_stateless_era_needs_no_word_before_its_first_request():
    found = answer(toy(), modern("tools/list"))
    assert [each["name"] for each in found["result"]["tools"]] == ["one", "two"]


def test_a_stateless_answer_says_that_it_is_whole_and_who_gave_it():
    session = toy()
    for method in ("server/discover", "tools/list"):
        result = answer(session, modern(method))["result"]
        assert result["resultType"] == "complete"
        assert result["_meta"] == {SERVER_META: INFO}
        assert result["cacheScope"] == "private" and result["ttlMs"] > 0
    made = call(session, modern("tools/call", {"name": "one"}))
    reply = session.result(made, "{}", {})
    assert reply and json.loads(reply.line)["result"] == {
        "resultType": "complete",
        "content": [{"type": "text", "text": "{}"}],
        "structuredContent": {},
        "_meta": {SERVER_META: INFO},
    }


def test_an_answer_of_the_handshakes_era_has_nothing_of_the_stateless_one():
    session = opened(toy())
    assert answer(session, request("tools/list"))["result"].keys() == {"tools"}
    made = call(session, request("tools/call", {"name": "one"}))
    reply = session.result(made, "{}", {})
    assert reply and json.loads(reply.line)["result"].keys() == {"content", "structuredContent"}


def test_discover_names_every_revision_newest_first_and_what_the_server_is():
    result = answer(toy(), modern("server/discover"))["result"]
    assert result["supportedVersions"] == [*MODERN, *HANDSHAKE] == list(SUPPORTED)
    assert result["supportedVersions"] == sorted(SUPPORTED, reverse=True)
    assert result["capabilities"] == {"tools": {"listChanged": False}}
    assert result["instructions"] == "Hi."


@pytest.mark.parametrize("version", HANDSHAKE)
def test_each_revision_of_the_handshake_is_taken_as_asked(version):
    result = answer(toy(), request("initialize", {"protocolVersion": version}))["result"]
    assert result == {
        "protocolVersion": version,
        "serverInfo": INFO,
        "capabilities": {"tools": {"listChanged": False}},
        "instructions": "Hi.",
    }


@pytest.mark.parametrize("version", ["1.0", "2026-07-28", "2099-01-01", "", None, 7, [], {}, "x" * 100_000])
def test_a_handshake_with_another_revision_is_offered_the_newest(version):
    """case mcp-06"""
    result = answer(toy(), request("initialize", {"protocolVersion": version}))["result"]
    assert result["protocolVersion"] == HANDSHAKE[0]


@pytest.mark.parametrize("version", ["2099-01-01", "2025-11-25", "", 7, [], {}, True, "x" * 500_000, [[[]]], 10**30])
def test_a_stateless_request_of_another_revision_is_told_which_there_are(version):
    """case mcp-06: and the answer is small, whatever was asked"""
    found = answer(toy(), modern("tools/list", meta={**META, VERSION_META: version}))
    assert code(found) == -32022
    assert found["error"]["data"]["supported"] == list(SUPPORTED)
    assert len(format_line(found)) < 2_000


@pytest.mark.parametrize("version", ["2099-01-01", "2025-11-25"])
def test_an_unknown_revision_is_repeated_in_the_refusal(version):
    found = answer(toy(), modern("tools/list", meta={**META, VERSION_META: version}))
    assert found["error"]["data"]["requested"] == version


@pytest.mark.parametrize(
    "meta",
    [None, {}, [], "x", {VERSION_META: MODERN[0]}, {VERSION_META: MODERN[0], CAPABILITIES_META: []}, {"a": 1}],
)
@pytest.mark.parametrize("method", ["tools/list", "tools/call", "server/discover"])
def test_a_request_without_its_meta_fields_is_refused_by_the_name_of_the_field(method, meta):
    """case mcp-06: also a call before initialize"""
    found = answer(toy(), modern(method, {"name": "one"}, meta=meta))
    assert code(found) == -32602
    assert "_meta field io.modelcontextprotocol/" in found["error"]["message"]


def test_the_clients_name_is_not_needed():
    meta = {VERSION_META: MODERN[0], CAPABILITIES_META: {}}
    assert "result" in answer(toy(), modern("tools/list", meta=meta))


def test_the_era_is_decided_request_by_request():
    """An opened handshake leaves stateless requests stateless, and a stateless one opens no handshake."""
    session = toy()
    assert "result" in answer(session, modern("tools/list"))
    assert code(answer(session, request("tools/list"))) == -32602
    opened(session)
    assert "resultType" in answer(session, modern("tools/list"))["result"]
    assert "resultType" not in answer(session, request("tools/list"))["result"]
    assert code(answer(session, modern("initialize"))) == code(answer(session, modern("ping"))) == -32601


def test_a_ping_is_answered_before_and_after_the_handshake():
    session = toy()
    assert answer(session, request("ping"))["result"] == {}
    assert answer(opened(session), request("ping"))["result"] == {}


def test_a_second_handshake_is_answered_and_keeps_the_calls_that_wait():
    """case mcp-06: double initialize"""
    session = opened(toy())
    made = call(session, request("tools/call", {"name": "one"}, number=7))
    found = answer(session, request("initialize", {"protocolVersion": "2024-11-05"}, number=8))
    assert found["result"]["protocolVersion"] == "2024-11-05"
    assert session.result(made, "{}", {})


def test_instructions_are_asked_each_time():
    texts = iter(["first", "second", "third"])
    session = Toy(Service(**INFO, tools=[]))
    session.words = lambda: next(texts)
    found = [
        answer(session, request("initialize"))["result"]["instructions"],
        answer(session, modern("server/discover"))["result"]["instructions"],
        answer(session, request("initialize"))["result"]["instructions"],
    ]
    assert found == ["first", "second", "third"]


@pytest.mark.parametrize(
    "method", ["prompts/list", "resources/list", "logging/setLevel", "tools", "", "x" * 10_000, "completion/complete"]
)
def test_a_method_that_there_is_not_is_named_in_a_short_refusal(method):
    for line in (modern(method), request(method)):
        found = answer(opened(toy()), line)
        assert code(found) == -32601
        assert len(format_line(found)) < 300


# ------------------------------------------------------------------ calls


def test_a_call_is_given_out_with_what_it_carries():
    meta = {**META, "progressToken": "p", "link.local/thread": "link:x"}
    made = call(toy(), modern("tools/call", {"name": "one", "arguments": {"a": [1]}}, number="n", meta=meta))
    assert (made.id, made.name, made.arguments, made.meta, made.modern) == ("n", "one", {"a": [1]}, meta, True)
    assert made.progress == "p"


def test_an_answered_call_waits_no_more():
    session = toy()
    made = call(session, modern("tools/call", {"name": "one"}))
    assert session.waiting == 1 and session.wants(made)
    assert session.result(made, "{}", {})
    assert session.waiting == 0 and not session.wants(made)
    assert session.result(made, "{}", {}) is None, "no call is answered twice"


def test_a_cancelled_call_is_never_answered():
    """case mcp-06"""
    session = toy()
    made = call(session, modern("tools/call", {"name": "one"}, number=5, meta={**META, "progressToken": 1}))
    other = call(session, modern("tools/call", {"name": "one"}, number="5", meta={**META, "progressToken": 1}))
    cancel = format_line({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}})
    assert session.receive(cancel) == [Cancelled(made)]
    assert session.progress(made, 1, 2, "") is None
    assert session.result(made, "{}", {}) is None
    assert session.error(made, -32603, "late") is None
    assert session.wants(other), 'the number 5 and the text "5" are two ids'
    assert session.result(other, "{}", {})


def test_a_new_call_may_take_the_id_of_a_cancelled_one_and_only_it_is_answered():
    session = toy()
    first = call(session, modern("tools/call", {"name": "one"}, number=5))
    session.receive(format_line({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}}))
    second = call(session, modern("tools/call", {"name": "two"}, number=5))
    assert session.result(first, '"late"', {}) is None
    reply = session.result(second, '"mine"', {})
    assert reply and json.loads(reply.line)["result"]["content"][0]["text"] == '"mine"'


@pytest.mark.parametrize("number", [99, "99", None, 1.5, True, [], {}, "x" * 100_000])
def test_a_cancel_of_nothing_is_left_alone(number):
    """case mcp-06: cancel of an unknown id"""
    session = toy()
    made = call(session, modern("tools/call", {"name": "one"}, number=1))
    line = format_line({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}})
    assert session.receive(line) == []
    assert session.wants(made)


def test_a_second_call_under_an_id_that_waits_is_refused():
    session = toy()
    made = call(session, modern("tools/call", {"name": "one"}, number=5))
    assert code(answer(session, modern("tools/call", {"name": "two"}, number=5))) == -32600
    assert session.result(made, "{}", {})


@pytest.mark.parametrize("name", ["three", "", None, 7, [], {}, "x" * 100_000, [[[[[]]]]]])
def test_a_tool_that_there_is_not_is_refused_and_the_tools_named(name):
    found = answer(toy(), modern("tools/call", {"name": name}))
    assert code(found) == -32602
    assert "one, two" in found["error"]["message"]
    assert len(format_line(found)) < 400


@pytest.mark.parametrize("arguments", [[], "text", 7, True, [{}], 1.5])
def test_arguments_that_are_no_object_are_refused(arguments):
    """case mcp-05"""
    assert code(answer(toy(), modern("tools/call", {"name": "one", "arguments": arguments}))) == -32602


@pytest.mark.parametrize(
    "params", [{"name": "one"}, {"name": "one", "arguments": None}, {"name": "one", "arguments": {}}]
)
def test_arguments_left_out_or_null_are_no_arguments(params):
    """case mcp-05"""
    assert call(toy(), modern("tools/call", params)).arguments == {}


@pytest.mark.parametrize("token", [None, True, 1.5, [], {}, "x" * 100_000])
def test_progress_is_not_told_without_a_token_that_is_one(token):
    session = toy()
    made = call(session, modern("tools/call", {"name": "one"}, meta={**META, "progressToken": token}))
    assert made.progress is None
    assert session.progress(made, 1, 2, "half") is None


@pytest.mark.parametrize("token", ["p", 0, 7, ""])
def test_progress_is_told_under_the_clients_token_until_the_answer(token):
    session = toy()
    made = call(session, modern("tools/call", {"name": "one"}, meta={**META, "progressToken": token}))
    word = session.progress(made, 1, 2, "half")
    assert word and json.loads(word.line) == {
        "jsonrpc": "2.0",
        "method": "notifications/progress",
        "params": {"progressToken": token, "progress": 1, "total": 2, "message": "half"},
    }
    session.result(made, "{}", {})
    assert session.progress(made, 2, 2, "all") is None


def test_what_a_tool_could_not_do_is_an_answer_and_what_it_was_not_given_right_is_an_error():
    session = toy()
    made = call(session, modern("tools/call", {"name": "one"}))
    reply = session.result(made, "There is no such file.", None, failed=True)
    assert reply and json.loads(reply.line)["result"] == {
        "resultType": "complete",
        "content": [{"type": "text", "text": "There is no such file."}],
        "isError": True,
        "_meta": {SERVER_META: INFO},
    }
    made = call(session, modern("tools/call", {"name": "one"}))
    refused = session.error(made, -32602, "That is no number.")
    assert refused and json.loads(refused.line) == {
        "jsonrpc": "2.0",
        "id": 1,
        "error": {"code": -32602, "message": "That is no number."},
    }


# ------------------------------------------------------------------ lines


@pytest.mark.parametrize(
    ("line", "right"),
    [
        (b"\xff\xfe", -32700),
        (b"hello", -32700),
        (b'{"jsonrpc":"2.0"', -32700),
        (b'{"x":' + b"1" * 5_000 + b"}", -32700),
        (b"[" * 100_000, -32700),
        (b'{"a":' * 100_000, -32700),
        pytest.param(TOO_LONG, -32600, id="too long"),
        (b"[]", -32600),
        (b"[" + b"1," * 100 + b"1]", -32600),
        (b"7", -32600),
        (b"null", -32600),
        (b'"text"', -32600),
        (b"{}", -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600),
        (b'{"jsonrpc":2.0,"id":1,"method":"ping"}', -32600),
        (b'{"id":1,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":[1],"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":99999999999999999999,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":"' + b"x" * 1_000_000 + b'","method":"ping"}', -32600),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_line_that_is_no_request_is_answered_with_what_is_wrong_and_no_id(line, right):
    """cases mcp-02, mcp-06"""
    session = toy()
    found = said(session.receive(line))
    assert len(found) == 1 and found[0]["id"] is None
    assert code(found[0]) == right
    assert len(format_line(found[0])) < 1_000
    assert answer(session, request("ping"))["result"] == {}


def test_a_line_that_is_not_utf_8_is_called_that():
    """case mcp-02"""
    (found,) = said(toy().receive(b'{"jsonrpc":"2.0","id":1,"method":"\xff"}'))
    assert found["error"]["message"] == "The line is not UTF-8."


@pytest.mark.parametrize(
    "rest", ['"id":1', '"id":1,"method":7', '"id":1,"method":"ping","params":[]', '"id":1,"method":null']
)
def test_a_request_of_the_wrong_shape_is_refused_under_its_id(rest):
    found = answer(toy(), b'{"jsonrpc":"2.0",' + rest.encode() + b"}")
    assert (found["id"], code(found)) == (1, -32600)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"  \t\r",
        b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
        b'{"jsonrpc":"2.0","method":"no/such/word","params":{"a":1}}',
        b'{"jsonrpc":"2.0","id":1,"result":{}}',
        b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":""}}',
    ],
)
def test_what_needs_no_answer_gets_none(line):
    assert toy().receive(line) == []


def test_a_line_may_end_with_cr():
    assert answer(toy(), b'{"jsonrpc":"2.0","id":1,"method":"ping"}\r')["result"] == {}


def test_each_message_of_a_batch_is_answered():
    """case mcp-06: batch, as the revision 2025-03-26 has it"""
    session = opened(toy())
    lines = [request("ping", number=1), b"7", request("tools/call", {"name": "one"}, number=2), request("x", number=3)]
    actions = session.receive(b"[" + b",".join(lines) + b"]")
    assert [message.get("id") for message in said(actions)] == [1, None, 3]
    (made,) = [action for action in actions if isinstance(action, Call)]
    assert made.id == 2


@pytest.mark.parametrize("escape", [b"\\ud83d", b"\\uD83D", b"\\udc00", b"\\udFFF x \\ud800"])
def test_half_a_surrogate_pair_is_replaced_once_at_the_edge(escape):
    """case unicode-01"""
    line = modern("tools/call", {"name": "one", "arguments": {"AT": ["AT"]}}).replace(b"AT", escape)
    made = call(toy(), line)
    ((key, (value,)),) = made.arguments.items()
    assert key == value and "\ufffd" in key
    key.encode()


def test_a_whole_surrogate_pair_stays():
    line = modern("tools/call", {"name": "one", "arguments": {"q": "AT"}}).replace(b"AT", b"\\ud83d\\ude00 \\\\ud83d")
    assert call(toy(), line).arguments == {"q": "\U0001f600 \\ud83d"}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(VALUES)
def test_cleaned_json_is_utf_8_and_otherwise_the_same(value):
    again = clean(value)
    format_line(again)
    assert again == value, "Hypothesis makes no surrogates by itself"
    assert clean({"\ud800": ["\udfff" + "a"]}) == {"\ufffd": ["\ufffda"]}


MESSAGES = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0")},
    optional={
        "id": st.none() | st.integers() | st.text() | VALUES,
        "method": st.sampled_from(
            ["initialize", "ping", "tools/list", "tools/call", "server/discover", "notifications/cancelled"]
        )
        | VALUES,
        "params": st.fixed_dictionaries(
            {},
            optional={
                "_meta": st.just(META) | st.dictionaries(st.sampled_from(sorted(META)), VALUES) | VALUES,
                "name": st.sampled_from(["one", "two"]) | VALUES,
                "arguments": VALUES,
                "protocolVersion": st.sampled_from(SUPPORTED) | VALUES,
                "requestId": VALUES,
            },
        )
        | VALUES,
        "result": VALUES,
    },
)


@settings(deadline=None)
@given(st.lists(st.one_of(st.binary(), VALUES, MESSAGES, st.lists(MESSAGES, max_size=3)), max_size=8))
def test_no_line_raises_and_every_answer_is_one_small_line_of_json_rpc(things):
    session = toy()
    for thing in things:
        line = thing if isinstance(thing, bytes) else json.dumps(thing).encode()
        for action in session.receive(line):
            if isinstance(action, Reply):
                assert action.line.endswith(b"\n") and action.line.count(b"\n") == 1
                message = json.loads(action.line)
                assert message["jsonrpc"] == "2.0" and ("result" in message) != ("error" in message)
    assert answer(session, request("ping", number="good"))["result"] == {}


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40).map(lambda part: part.replace(b"x", b"\n")), max_size=20), st.integers(0, 50))
def test_lines_are_the_same_however_the_stream_is_cut(parts, limit):
    data = b"".join(parts)
    lines = Lines(limit)
    found = [line for part in parts for line in lines.feed(part)]
    found += [rest] if (rest := lines.rest()) is not None else []
    whole = data.split(b"\n")
    wanted = [TOO_LONG if len(line) > limit else line for line in (whole if whole[-1] else whole[:-1])]
    assert found == wanted


def test_a_line_over_the_limit_is_dropped_and_the_next_one_read():
    lines = Lines(4)
    assert lines.feed(b"12345") == []
    assert lines.feed(b"6789\n1234\n12") == [TOO_LONG, b"1234"]
    assert lines.rest() == b"12"
    assert lines.rest() is None


def test_a_client_and_a_server_understand_each_other_in_both_eras():
    client, session = Client("test", "0"), toy()
    number, line = client.request("tools/list", {})
    assert answer(session, line)["id"] == number
    _, line = client.request("initialize", client.handshake())
    assert answer(session, line)["result"]["protocolVersion"] == HANDSHAKE[0]
    number, line = client.request("tools/call", {"name": "one", "arguments": {"a": 1}}, {"progressToken": "p"})
    made = call(session, line)
    assert (made.id, made.arguments, made.progress, made.modern) == (number, {"a": 1}, "p", False)


# ------------------------------------------------------------------ the real tools


@contextmanager
def engine_of(place: Place, *, notes: bool = True) -> Iterator[Engine]:
    engine = Engine(
        Settings(
            folder=str(place.home),
            state=str(place.state),
            agent=str(place.agent),
            notes=str(place.notes) if notes else None,
        )
    )
    engine.start()
    try:
        yield engine
    finally:
        assert engine.stop(10)


@pytest.fixture
def engine(place: Place) -> Iterator[Engine]:
    with engine_of(place) as made:
        yield made


@pytest.fixture
def ask(engine: Engine) -> Callable[..., dict[str, Any]]:
    """Makes a call as a session does, without the pipes: the result it answers with."""
    session, work = Session(describe(engine)), Work(engine)

    def make(name: str, **arguments: Any) -> dict[str, Any]:
        made = call(session, modern("tools/call", {"name": name, "arguments": arguments}))
        reply = work(made, session, lambda done, of, message: None)
        assert reply
        found = json.loads(reply.line)
        return found.get("result") or found

    return make


def listed(engine: Engine, line: bytes) -> list[dict[str, Any]]:
    return answer(opened(Session(describe(engine))), line)["result"]["tools"]


def test_the_list_of_tools_is_the_same_each_time_and_in_both_eras(place, engine):
    first = opened(Session(describe(engine))).receive(modern("tools/list"))
    place.write("memory/new.md", "# New\n")
    assert Session(describe(engine)).receive(modern("tools/list")) == first
    assert listed(engine, request("tools/list")) == listed(engine, modern("tools/list"))


def test_the_list_of_tools_is_under_6000_characters(engine):
    tools = listed(engine, modern("tools/list"))
    assert [each["name"] for each in tools] == ["search", "read", "list", "links", "remember"]
    assert len(json.dumps(tools, separators=(",", ":"), ensure_ascii=False)) < 6_000


def test_the_schemas_stand_alone_and_are_json_schema_of_objects(engine):
    for each in listed(engine, modern("tools/list")):
        for key in ("inputSchema", "outputSchema"):
            Draft202012Validator.check_schema(each[key])
            assert each[key]["type"] == "object"
            assert "$ref" not in json.dumps(each[key])


def test_the_tools_say_which_only_read_and_that_none_reaches_outside(engine):
    found = {each["name"]: each["annotations"] for each in listed(engine, modern("tools/list"))}
    reads = {"readOnlyHint": True, "openWorldHint": False}
    assert found == {
        "search": reads,
        "read": reads,
        "list": reads,
        "links": reads,
        "remember": {
            "readOnlyHint": False,
            "destructiveHint": False,
            "idempotentHint": False,
            "openWorldHint": False,
        },
    }


def test_every_tool_and_argument_has_words_for_a_model(engine):
    bare = [
        (each["name"], name)
        for each in listed(engine, modern("tools/list"))
        for name, field in each["inputSchema"]["properties"].items()
        if not field.get("description") and not field.get("enum") and (each["name"], name) != ("links", "path")
    ]
    assert bare == []
    assert all(each["title"] and each["description"] for each in listed(engine, modern("tools/list")))


def test_without_notes_there_is_no_remember(place):
    with engine_of(place, notes=False) as engine:
        assert [each["name"] for each in listed(engine, modern("tools/list"))] == ["search", "read", "list", "links"]
        session = Session(describe(engine))
        assert code(answer(session, modern("tools/call", {"name": "remember", "arguments": {"note": "x"}}))) == -32602


@pytest.mark.requirement("CONTRACT-4")
@pytest.mark.parametrize("notes", [True, False])
def test_allow_names_the_calls_that_only_read_and_the_one_that_writes_only_the_notes(place, notes):
    """What `command` prints is held against what the tools say of themselves."""
    environment = {"LNK_MEMORY_NOTES": str(place.notes)} if notes else {}
    printed = subprocess.run(
        [ENGINE, "command", str(place.home), str(place.state), str(place.agent)],
        env=environment,
        capture_output=True,
        check=True,
    )
    allowed = msgspec.json.decode(printed.stdout)["allow"]
    with engine_of(place, notes=notes) as engine:
        tools = {each["name"]: each["annotations"] for each in listed(engine, modern("tools/list"))}
    assert [name for name in allowed if tools[name]["readOnlyHint"]] == ["search", "read", "list", "links"]
    assert [name for name in allowed if not tools[name]["readOnlyHint"]] == (["remember"] if notes else [])
    assert set(allowed) == set(tools)


def test_every_answer_is_of_its_output_schema_and_its_text_the_same_json(place, engine, ask):
    place.write("memory/a.md", "# Alpha\n\nSee [[Beta]] and [[nowhere]].\n" + "alpha words here\n" * 2_000)
    place.write("memory/copy.md", "# Alpha\n\nSee [[Beta]] and [[nowhere]].\n" + "alpha words here\n" * 2_000)
    place.write("memory/b.md", "# Beta\n\n[back](a.md)\n")
    place.write("memory/long.md", "x" * 50_000)
    place.write("memory/broken.bin", b"\0\1\2" * 50)
    place.write("chats/2026-11-02/conversation.md", "# Talk\n\nalpha in a conversation\n")
    place.write("skills/cook/SKILL.md", "# Cook\n\nHow to cook.\n")
    (place.memory / "gone.md").write_text("# Gone\n\ngone words\n")
    while "indexed" in (first := ask("list"))["structuredContent"]:
        pass
    (place.memory / "gone.md").unlink()
    now = first["structuredContent"]["now"]
    calls: list[tuple[str, dict[str, Any], set[str]]] = [
        ("search", {"query": "alpha"}, {"results"}),
        ("search", {"query": "alpha", "tokens": 50}, {"results", "next"}),
        ("search", {"query": "nothinglikethis"}, {"results", "empty"}),
        ("search", {"query": "", "path": "memory", "tokens": 100}, {"results", "next"}),
        ("read", {"path": "memory/a.md"}, {"text", "next"}),
        ("read", {"path": "memory/long.md"}, {"text", "cut"}),
        ("read", {"path": "notes.md"}, {"text"}),
        ("read", {"path": "skills/cook/SKILL.md"}, {"text"}),
        ("list", {}, {"documents", "now"}),
        ("list", {"tokens": 80}, {"documents", "next", "left"}),
        ("list", {"since": now}, {"removed"}),
        ("list", {"kind": "skill"}, {"documents"}),
        ("links", {"path": "memory/a.md"}, {"to", "from"}),
        ("remember", {"note": "likes tea"}, {"notes", "bytes", "of"}),
        ("remember", {"note": "likes coffee", "replaces": "tea"}, {"notes"}),
        ("remember", {"forget": "coffee"}, {"notes"}),
    ]
    schemas = {each["name"]: each["outputSchema"] for each in listed(engine, modern("tools/list"))}
    for name, arguments, holds in calls:
        result = ask(name, **arguments)
        assert not result.get("isError"), (name, arguments, result)
        structured = result["structuredContent"]
        Draft202012Validator(schemas[name]).validate(structured)
        assert holds <= structured.keys(), (name, arguments, structured.keys())
        assert not structured.keys() - schemas[name]["properties"].keys(), "no field that the schema does not name"
        (block,) = result["content"]
        assert block["type"] == "text" and json.loads(block["text"]) == structured
        assert block["text"] == msgspec.json.encode(structured).decode(), "compact"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("read", {"path": "memory/nowhere.md"}),
        ("links", {"path": "memory/nowhere.md"}),
        ("search", {"query": ""}),
        ("search", {"query": "x", "since": "yesterday-ish"}),
        ("search", {"query": "x", "tokens": -1}),
        ("search", {"query": "x", "next": "not ours"}),
        ("list", {"next": "not ours"}),
        ("remember", {}),
        ("remember", {"forget": "nothing like this"}),
    ],
)
def test_a_refusal_is_an_answer_of_one_sentence_without_structure(ask, name, arguments):
    result = ask(name, **arguments)
    assert result["isError"] is True and "structuredContent" not in result
    (block,) = result["content"]
    assert block["text"].endswith((".", "?")) and "\n" not in block["text"] and "Traceback" not in block["text"]


@pytest.mark.parametrize(
    ("name", "arguments", "field"),
    [
        ("search", {}, "query"),
        ("search", {"query": None}, "query"),
        ("search", {"query": ["x"]}, "query"),
        ("search", {"query": {"a": 1}}, "query"),
        ("search", {"query": "x", "kind": "song"}, "kind"),
        ("search", {"query": "x", "tokens": "many"}, "tokens"),
        ("search", {"query": "x", "tokens": 1.5}, "tokens"),
        ("search", {"query": "x", "tokens": 1e308}, "tokens"),
        ("search", {"query": "x", "tokens": [500]}, "tokens"),
        ("read", {}, "path"),
        ("read", {"path": 7}, "path"),
        ("read", {"path": "memory/a.md", "line": "first"}, "line"),
        ("list", {"since": []}, "since"),
        ("links", {}, "path"),
        ("remember", {"note": 7}, "note"),
    ],
)
def test_an_argument_of_the_wrong_shape_is_refused_by_its_name(ask, name, arguments, field):
    """case mcp-05"""
    found = ask(name, **arguments)
    assert code(found) == -32602
    assert field in found["error"]["message"]
    assert found["error"]["message"].endswith(".")


@pytest.mark.parametrize("since", [10**400, -(10**400), 1e308, -1, 1e19])
def test_a_number_that_is_no_time_is_refused_in_words(ask, since):
    """case mcp-05: huge numbers"""
    found = ask("search", query="x", since=since)
    assert found.get("isError") or code(found) == -32602, found


@pytest.mark.parametrize(
    "more",
    [
        {"tokens": "500"},
        {"tokens": 500.0},
        {"tokens": None},
        {"tokens": ""},
        {"tokens": 0},
        {"tokens": 10**9},
        {"since": ""},
        {"path": ""},
        {"kind": ""},
        {"kind": None, "since": None, "path": None, "next": None, "tokens": None},
        {"foo": 1, "": [], "Query": "y"},
    ],
    ids=str,
)
def test_what_models_fill_in_for_nothing_and_what_nobody_asked_for_is_left_alone(place, ask, more):
    """case mcp-05"""
    place.write("memory/a.md", "# Alpha\n\nalpha words\n")
    found = ask("search", query="alpha", **more)
    assert [each["path"] for each in found["structuredContent"]["results"]] == ["memory/a.md"], found
