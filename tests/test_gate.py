"""The gate of a tool's proxy: what goes on, what is asked, what is answered in the tool's place, and what is logged."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lnk.agent.gate import (
    AGAIN,
    ALLOW,
    DENY,
    EXPIRED,
    HELD_MAX,
    KEPT_BYTES_MAX,
    SHORT_BYTES,
    UNANSWERED_MAX,
    Ask,
    Gate,
    Record,
    ToClient,
    ToTool,
    Withdraw,
    sizes,
)
from lnk.lines import TOO_LONG

MODERN = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}


def line(value: Any) -> bytes:
    return json.dumps(value).encode()


def message(method: str, number: Any = 1, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def call(name: str, number: Any = 1, **params: Any) -> bytes:
    return line(message("tools/call", number, name=name, **params))


def answered(number: Any = 1, **result: Any) -> bytes:
    return line({"jsonrpc": "2.0", "id": number, "result": result})


def given_to_client(actions: list[Any]) -> list[Any]:
    return [json.loads(each.line) for each in actions if isinstance(each, ToClient)]


def outcomes(actions: list[Any]) -> list[tuple[str, str]]:
    return [(each.call, each.outcome) for each in actions if isinstance(each, Record)]


@pytest.fixture
def gate() -> Gate:
    return Gate(["search", "remember"])


# ------------------------------------------------------------ what goes on


@pytest.mark.requirement("NAME-3", "NOTES-6")
@pytest.mark.parametrize("name", ["search", "remember"])
def test_a_call_on_the_list_goes_on_byte_for_byte(gate: Gate, name: str):
    text = b'  {"id" : "\\u0061", "jsonrpc":"2.0",  "method":"tools\\/call","params":{"name":"%s"} , "more":[1.50]}\r'
    text = text % name.encode()
    assert gate.from_client(text, 0.0) == [ToTool(text + b"\n")]


@pytest.mark.parametrize(
    "asked",
    [
        message("initialize", protocolVersion="2025-11-25"),
        message("ping"),
        message("tools/list", _meta=MODERN),
        message("server/discover", _meta=MODERN),
        message("resources/read", uri="a:b"),
        message("prompts/get", name="hello", arguments={}),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 5, "result": {}},
        {"jsonrpc": "2.0", "id": "x", "error": {"code": -1, "message": "no"}},
        [message("ping", 1), message("tools/list", 2), {"jsonrpc": "2.0", "method": "notifications/initialized"}],
    ],
)
def test_what_the_protocol_itself_says_goes_on(gate: Gate, asked: Any):
    assert gate.from_client(line(asked), 0.0) == [ToTool(line(asked) + b"\n")]


@pytest.mark.requirement("NAME-3")
def test_any_other_call_is_asked_first_and_then_goes_on_as_it_came(gate: Gate):
    text = call("delete", 7, arguments={"path": "a"}, _meta={"link.local/thread": "link:main"})
    assert gate.from_client(text, 1.0) == [Ask(1, "delete", "link:main", {"path": "a"})]
    assert gate.answer(1, ALLOW, 4.0) == [ToTool(text + b"\n")]
    actions = gate.from_tool(answered(7), 4.5)
    assert actions == [
        ToClient(answered(7) + b"\n"),
        Record("delete", "link:main", {"path": 3}, "ok", 1.0, 0.5, 3.0),
    ]


def test_a_method_that_is_none_of_the_protocol_s_is_asked(gate: Gate):
    assert gate.from_client(line(message("files/wipe", 3, path="a")), 0.0) == [Ask(1, "files/wipe", "", {"path": "a"})]
    actions = gate.answer(1, DENY, 1.0)
    assert given_to_client(actions)[0]["error"]["code"] == -32001
    assert outcomes(actions) == [("files/wipe", "refused")]


@pytest.mark.parametrize(("verdict", "outcome"), [(DENY, "refused"), (EXPIRED, "expired")])
@pytest.mark.parametrize("meta", [{}, MODERN])
def test_a_refusal_is_a_result_that_the_model_reads(gate: Gate, verdict: str, outcome: str, meta: dict[str, str]):
    gate.from_client(call("delete", 7, _meta=meta), 0.0)
    actions = gate.answer(1, verdict, 600.0)
    (answer,) = given_to_client(actions)
    assert (answer["id"], answer["result"]["isError"]) == (7, True)
    assert answer["result"].get("resultType") == ("complete" if meta else None)
    assert outcomes(actions) == [("delete", outcome)]
    assert gate.from_client(call("search", 7), 601.0) == [ToTool(call("search", 7) + b"\n")]


def test_a_tool_cannot_answer_what_the_owner_has_not_allowed(gate: Gate):
    gate.from_client(call("delete", 7), 0.0)
    assert gate.from_tool(answered(7), 1.0) == []
    assert gate.dropped == 1
    assert gate.answer(1, ALLOW, 2.0) == [ToTool(call("delete", 7) + b"\n")]


def test_more_calls_than_a_person_reads_are_refused_at_once(gate: Gate):
    for number in range(HELD_MAX):
        assert isinstance(gate.from_client(call("delete", number), 0.0)[0], Ask)
    actions = gate.from_client(call("delete", 99), 0.0)
    assert given_to_client(actions)[0]["result"]["isError"]
    assert outcomes(actions) == [("delete", "refused")]


# ------------------------------------------------------------ no two readings

DELETE = '"method":"tools/call","params":{"name":"delete"}'
TWO_READINGS = [
    '{"jsonrpc":"2.0","id":1,"method":"ping",DELETE}',
    '{"jsonrpc":"2.0","id":1,"method":"ping","Method":"tools/call","params":{"name":"delete"}}',
    '{"jsonrpc":"2.0","id":1,"result":{},"Method":"tools/call","params":{"name":"delete"}}',
    '{"jsonrpc":"2.0","id":1,"result":{},DELETE}',
    '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search","name":"delete"}}',
    '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search","Name":"delete"}}',
    '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search","n\\u0061me":"delete"}}',
    '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"NAME":"delete"}}',
    '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search"},"Params":{"name":"delete"}}',
    '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search"},"param\u017f":{"name":"delete"}}',
    '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search","arguments":{"a":1,"a":2}}}',
    '{"jsonrpc":"2.0","id":1,"method":"ping","x":\r{"jsonrpc":"2.0","id":2,DELETE}\r}',
    '{"jsonrpc":"2.0","id":1,"method":"ping"}{"jsonrpc":"2.0","id":2,DELETE}',
    '\ufeff{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search"}}',
    '{"jsonrpc":"2.0","id":1.0,"method":"tools/call","params":{"name":"search"}}',
    '{"jsonrpc":"2.0","id":null,"method":"tools/call","params":{"name":"search"}}',
    '{"jsonrpc":"2.0","id":true,"method":"tools/call","params":{"name":"search"}}',
    '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":["search"]}}',
    '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":["search"]}',
    '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search","arguments":{"a":NaN}}}',
    '{"jsonrpc":"1.0","id":1,"method":"tools/call","params":{"name":"search"}}',
    '{"id":1,"method":"tools/call","params":{"name":"search"}}',
    '{"jsonrpc":"2.0","id":1}',
    "[]",
    "[" * 100_000,
    "7",
    '"search"',
    "null",
    "search",
]


@pytest.mark.parametrize("text", TWO_READINGS, ids=range(len(TWO_READINGS)))
def test_what_two_readers_could_take_for_two_things_is_answered_and_goes_nowhere(gate: Gate, text: str):
    actions = gate.from_client(text.replace("DELETE", DELETE).encode(), 0.0)
    assert [each["error"]["code"] < 0 for each in given_to_client(actions)] == [True]
    assert len(actions) == 1


@pytest.mark.parametrize(
    "data", [b"\xff\xfe{\x00}\x00", b"{\x00}", b'{"jsonrpc":"2.0","id":1,"method":"ping\xff"}', TOO_LONG]
)
def test_what_is_no_utf8_line_goes_nowhere(gate: Gate, data: Any):
    assert len(given_to_client(gate.from_client(data, 0.0))) == 1


@pytest.mark.parametrize("name", ["Search", "search ", "SEARCH", "search\u0000", "sear\\u0063h2", "", "search\ud800"])
def test_a_name_that_is_almost_on_the_list_is_asked(gate: Gate, name: str):
    assert isinstance(gate.from_client(call(name), 0.0)[0], Ask)


@pytest.mark.parametrize("method", ["tools/call", "files/wipe", "notifications/unheard", "Tools/Call"])
def test_a_call_that_wants_no_answer_goes_nowhere_and_is_logged(gate: Gate, method: str):
    asked = {"jsonrpc": "2.0", "method": method, "params": {"name": "delete"}}
    actions = gate.from_client(line(asked), 0.0)
    assert [type(each) for each in actions] == [Record]
    assert actions[0].outcome == "refused"


ENDS = ["\u0085", "\u2028", "\u2029"]


@pytest.mark.parametrize("end", ENDS, ids=ascii)
@pytest.mark.parametrize("name", ["search", "delete"])
def test_a_line_that_some_reader_takes_for_two_goes_on_as_one(gate: Gate, end: str, name: str):
    injected = f"\\{end}{json.dumps(message('tools/call', 2, name='delete'))}{end}"
    asked = message("tools/call", 1, name=name, arguments={"text": injected, f"k{end}": 1})
    text = json.dumps(asked, ensure_ascii=False).encode()
    assert len(text.decode().splitlines()) == 4
    actions = gate.from_client(text, 0.0)
    if name == "delete":
        actions = gate.answer(1, ALLOW, 0.0)
    (passed,) = actions
    assert len(passed.line.decode().splitlines()) == 1
    assert json.loads(passed.line) == asked


def test_an_array_goes_on_in_one_line_for_every_reader_too(gate: Gate):
    asked = [message("ping", number, text="".join(ENDS)) for number in (1, 2)]
    (passed,) = gate.from_client(json.dumps(asked, ensure_ascii=False).encode(), 0.0)
    assert len(passed.line.decode().splitlines()) == 1
    assert json.loads(passed.line) == asked


@pytest.mark.parametrize("end", [*"\v\f\x1c\x1d\x1e", *ENDS], ids=ascii)
@pytest.mark.parametrize(
    "text", ['{"jsonrpc":"2.0",END"id":1,"method":"ping"}', '{"jsonrpc":"2.0","id":1,"method":"ping"}END']
)
def test_whatever_else_ends_a_line_for_some_reader_is_no_json(gate: Gate, end: str, text: str):
    assert given_to_client(gate.from_client(text.replace("END", end).encode(), 0.0))[0]["error"]["code"] == -32700
    within = text.replace("END", "").replace("ping", f"pi{end}ng")
    passed = [each for each in gate.from_client(within.encode(), 0.0) if isinstance(each, ToTool)]
    assert passed == []


def test_an_id_that_is_not_answered_yet_is_refused(gate: Gate):
    gate.from_client(call("search", 7), 0.0)
    actions = gate.from_client(call("search", 7), 0.0)
    assert "not answered yet" in given_to_client(actions)[0]["error"]["message"]
    assert len(actions) == 1
    assert isinstance(gate.from_client(call("search", "7"), 0.0)[0], ToTool)


def test_an_array_of_which_one_must_be_asked_goes_nowhere_and_says_which(gate: Gate):
    messages = [
        message("tools/call", 1, name="search"),
        message("tools/call", 2, name="delete"),
        {"jsonrpc": "2.0", "id": 9, "result": {}},
        message("ping", 3),
        message("ping", 3),
    ]
    actions = gate.from_client(line(messages), 0.0)
    (answers,) = given_to_client(actions)
    assert [(each["id"], each["error"]["code"]) for each in answers] == [
        (1, -32600),
        (2, -32001),
        (3, -32600),
        (3, -32600),
    ]
    assert "alone" in answers[1]["error"]["message"]
    assert outcomes(actions) == [("delete", "refused")]
    assert gate.unanswered == 0


def test_unanswered_requests_have_a_limit(gate: Gate):
    for number in range(UNANSWERED_MAX):
        gate.from_client(call("search", number), 0.0)
    assert given_to_client(gate.from_client(call("search", "more"), 0.0))[0]["error"]["code"] == -32004


# ------------------------------------------------------------ what a tool says


def test_an_answer_goes_on_once_and_only_to_what_was_asked(gate: Gate):
    gate.from_client(call("search", 7), 0.0)
    assert gate.from_tool(answered(8), 0.0) == []
    assert gate.from_tool(answered("7"), 0.0) == []
    assert gate.from_tool(answered(True), 0.0) == []
    assert given_to_client(gate.from_tool(answered(7), 0.0)) == [json.loads(answered(7))]
    assert gate.from_tool(answered(7), 0.0) == []
    assert gate.dropped == 4


LONG = "x" * (SHORT_BYTES + 1)


def test_a_long_answer_goes_on_before_it_is_read_whole_and_once(gate: Gate):
    gate.from_client(call("search", 7), 0.0)
    answer = answered(7, content=[{"type": "text", "text": LONG}], isError=True)
    passed, check = gate.from_tool(answer, 1.0)
    assert (passed, gate.unanswered) == (ToClient(answer + b"\n"), 0)
    assert outcomes(gate.checked(check)) == [("search", "failed")]
    assert (gate.from_tool(answer, 1.0), gate.dropped) == ([], 1)


@pytest.mark.parametrize(
    "end",
    [
        b', "id": 8}',
        b', "Id": 8}',
        b', "error": {"code": 1, "message": ""}}',
        b', "method": "ping"}',
        b"",
        b"}}",
        b"} x",
    ],
)
def test_a_long_answer_that_can_be_taken_for_another_is_noticed(gate: Gate, end: bytes):
    gate.from_client(call("search", 7), 0.0)
    _, check = gate.from_tool(b'{"jsonrpc": "2.0", "id": 7, "result": {"text": "%s"}' % LONG.encode() + end, 1.0)
    assert gate.checked(check) is None


@pytest.mark.parametrize("number", ["9", "07", "-7", "7.0", "true", '"7"', '"\\u0037"'])
def test_a_long_answer_to_what_was_not_asked_is_dropped(gate: Gate, number: str):
    gate.from_client(call("search", 7), 0.0)
    text = b'{"jsonrpc": "2.0", "id": %s, "result": {"text": "%s"}}' % (number.encode(), LONG.encode())
    assert gate.from_tool(text, 1.0) == []
    assert gate.unanswered == 1


def test_what_the_owner_has_not_allowed_is_not_answered_at_length_either(gate: Gate):
    gate.from_client(call("delete", 7), 0.0)
    assert gate.from_tool(answered(7, text=LONG), 1.0) == []


def test_answers_come_in_any_order(gate: Gate):
    for number in (1, 2, 3):
        gate.from_client(call("search", number), 0.0)
    assert [given_to_client(gate.from_tool(answered(number), 0.0))[0]["id"] for number in (3, 1, 2)] == [3, 1, 2]


@pytest.mark.parametrize(
    "text",
    [
        '{"jsonrpc":"2.0","id":7,"result":{},"id":8}',
        '{"jsonrpc":"2.0","id":7,"result":{},"ID":8}',
        '{"jsonrpc":"2.0","id":7,"result":{},"\\u0069d":8}',
        '{"jsonrpc":"2.0","id":7,"result":{},"error":{"code":1,"message":""}}',
        '{"jsonrpc":"2.0","id":7,"result":{},"method":"ping"}',
        '{"jsonrpc":"2.0","ID":7,"result":{}}',
        '{"id":7,"result":{}}',
        "Server is listening",
        "[1, 2]",
        "[]",
        "[" * 100_000,
        "\ufeff{}",
    ],
)
def test_what_a_tool_writes_that_is_no_message_is_dropped_and_counted(gate: Gate, text: str):
    gate.from_client(call("search", 7), 0.0)
    gate.from_client(call("search", 8), 0.0)
    assert given_to_client(gate.from_tool(text.encode(), 0.0)) == []
    assert gate.dropped > 0
    assert gate.unanswered == 2


def test_a_tool_s_own_requests_and_word_go_on(gate: Gate):
    for said in (
        message("sampling/createMessage", 7),
        {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 2}},
        {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "?"}},
    ):
        assert gate.from_tool(line(said), 0.0) == [ToClient(line(said) + b"\n")]


def test_of_an_array_what_was_not_asked_is_taken_out(gate: Gate):
    gate.from_client(call("search", 1), 0.0)
    one, two = json.loads(answered(1, a=[{"b": 1}])), json.loads(answered(2))
    actions = gate.from_tool(line([one, two]), 0.0)
    assert given_to_client(actions) == [[one]]
    assert outcomes(actions) == [("search", "ok")]


def test_an_array_that_is_nested_too_deeply_to_be_written_anew_is_dropped_and_answers_nothing(gate: Gate):
    gate.from_client(call("search", 1), 0.0)
    deep = "[" * 500 + "]" * 500
    text = f'[{{"jsonrpc":"2.0","id":1,"result":{{"a":{deep}}}}},{{"jsonrpc":"2.0","id":2,"result":{{}}}}]'
    assert gate.from_tool(text.encode(), 0.0) == []
    assert (gate.dropped, gate.unanswered) == (1, 1)
    assert given_to_client(gate.from_tool(answered(1), 0.0)) == [json.loads(answered(1))]


def test_keys_of_what_a_tool_found_may_repeat(gate: Gate):
    gate.from_client(call("search", 1), 0.0)
    text = b'{"jsonrpc":"2.0","id":1,"result":{"structuredContent":{"PATH":1,"Path":2,"path":{"id":4,"id":5}}}}'
    assert gate.from_tool(text, 0.0)[0] == ToClient(text + b"\n")


# ------------------------------------------------------------ calls that are given up


def test_a_call_that_waits_for_the_owner_is_given_up(gate: Gate):
    gate.from_client(call("delete", 7), 0.0)
    gave_up = line({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}})
    actions = gate.from_client(gave_up, 1.0)
    assert actions[0] == Withdraw(1)
    assert outcomes(actions) == [("delete", "cancelled")]
    assert gate.answer(1, ALLOW, 2.0) == []


def test_a_call_that_the_tool_has_is_given_up_there_and_its_late_answer_dropped(gate: Gate):
    gate.from_client(call("search", 7), 0.0)
    gave_up = line({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}})
    actions = gate.from_client(gave_up, 1.0)
    assert actions[0] == ToTool(gave_up + b"\n")
    assert outcomes(actions) == [("search", "cancelled")]
    assert gate.from_tool(answered(7), 2.0) == []
    assert gate.dropped == 0


def test_at_the_end_whatever_is_not_answered_is_answered_with_why(gate: Gate):
    gate.from_client(call("search", 1), 0.0)
    gate.from_client(call("delete", 2), 0.0)
    gate.from_client(line(message("tools/list", 3)), 0.0)
    actions = gate.close("The tool ended.", 5.0)
    assert [(each["id"], each["error"]["message"]) for each in given_to_client(actions)] == [
        (number, "The tool ended.") for number in (1, 2, 3)
    ]
    assert [each for each in actions if isinstance(each, Withdraw)] == [Withdraw(1)]
    assert outcomes(actions) == [("search", "unanswered"), ("delete", "unanswered")]


# ------------------------------------------------------------ what is logged


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        ({"result": {"content": []}}, "ok"),
        ({"result": {"content": [], "isError": False}}, "ok"),
        ({"result": {"content": [], "isError": True}}, "failed"),
        ({"error": {"code": -32602, "message": "no"}}, "error"),
    ],
)
def test_the_log_says_what_came_of_a_call(gate: Gate, said: dict[str, Any], outcome: str):
    gate.from_client(call("search"), 1.0)
    assert outcomes(gate.from_tool(line({"jsonrpc": "2.0", "id": 1, **said}), 2.0)) == [("search", outcome)]


def test_the_log_holds_no_text(gate: Gate):
    secret = "the code is 4711"
    gate.from_client(
        call(secret, arguments={secret: secret, "query": secret}, _meta={"link.local/thread": secret}), 0.0
    )
    (record,) = (each for each in gate.answer(1, DENY, 0.0) if isinstance(each, Record))
    assert record == Record("?", "?", {"?": 18, "query": 18}, "refused", 0.0, None, 0.0)


def test_sizes_are_bytes_of_json_and_names_are_few():
    assert sizes({"query": "ü", "n": 5, "list": [1, {"a": None}], "half": "\ud800"}) == {
        "query": 4,
        "n": 1,
        "list": 14,
        "half": 5,
    }
    assert len(sizes({f"a{number}": 1 for number in range(1000)})) == 33


def test_a_request_of_the_protocol_is_not_logged(gate: Gate):
    gate.from_client(line(message("tools/list")), 0.0)
    assert gate.from_tool(answered(1, tools=[]), 0.0) == [ToClient(answered(1, tools=[]) + b"\n")]


# ------------------------------------------------------------ whatever comes

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["2.0", "tools/call", "search", "delete", "ping"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["jsonrpc", "id", "method", "params", "name", "result", "Method", "arguments", "_meta"]),
            inner,
        )
    ),
    max_leaves=12,
)


def _calls_of(line: bytes) -> list[Any]:
    found = json.loads(line)
    return [
        each["params"]["name"]
        for each in (found if isinstance(found, list) else [found])
        if isinstance(each.get("params"), dict)
    ]


@given(st.lists(st.one_of(JSON.map(line), st.binary(max_size=40)), max_size=6))
def test_whatever_comes_nothing_is_called_that_is_not_on_the_list(lines: list[bytes]):
    gate = Gate(["search"])
    for number, text in enumerate([*lines, call("search", "last")]):
        actions = gate.from_client(text, 0.0)
        for action in actions:
            if isinstance(action, ToTool):
                assert action.line == text + b"\n"
                assert b"tools/call" not in text or set(_calls_of(text)) <= {"search", "delete"}
                found = json.loads(text)
                for each in found if isinstance(found, list) else [found]:
                    assert each.get("method") != "tools/call" or each["params"]["name"] == "search"
        assert number < len(lines) or actions == [ToTool(text + b"\n")]


# ------------------------------------------------------------ a tool that is lost, and there again

OPENS = message(
    "initialize", 1, protocolVersion="2025-11-25", capabilities={}, clientInfo={"name": "é", "version": "1"}
)
OPENED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def cancel(number: Any) -> bytes:
    return line({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}})


@pytest.fixture
def kept() -> Gate:
    """The gate of a tool that is found again where it is lost: of its calls `search` may be made again."""
    return Gate(["search", "remember"], ["search"])


def test_what_only_reads_is_made_again_as_it_came_and_once(kept: Gate):
    lines = [
        call("search", 7, arguments={"query": "é"}),
        b"  " + line(message("ping", "x")),
        line(message("tools/list")),
    ]
    for each in lines:
        kept.from_client(each, 1.0)
    assert (kept.lost(2.0), kept.unanswered) == ([], 3)
    assert kept.again() == [each + b"\n" for each in lines]

    actions = kept.lost(3.0)
    assert [each["id"] for each in given_to_client(actions)] == [7, "x", 1]
    assert outcomes(actions) == [("search", "unanswered")]
    assert (kept.again(), kept.unanswered) == ([], 0)


def test_what_is_made_again_is_answered_as_if_nothing_had_happened(kept: Gate):
    kept.from_client(call("search", 7, arguments={"query": "a"}), 1.0)
    kept.lost(2.0)
    assert kept.from_tool(answered(7), 4.0) == [
        ToClient(answered(7) + b"\n"),
        Record("search", "", {"query": 3}, "ok", 1.0, 3.0, None),
    ]
    assert (kept.again(), kept.lost(5.0), kept.from_tool(answered(7), 6.0)) == ([], [], [])


def test_what_comes_while_the_first_is_made_again_has_its_own_turn(kept: Gate):
    kept.from_client(call("search", 1), 0.0)
    kept.lost(1.0)
    kept.from_client(call("search", 2), 2.0)
    assert [each["id"] for each in given_to_client(kept.lost(3.0))] == [1]
    assert kept.again() == [call("search", 2) + b"\n"]


@pytest.mark.parametrize("meta", [{}, MODERN])
def test_what_may_have_been_done_is_not_done_again_and_the_model_reads_so(kept: Gate, meta: dict[str, str]):
    kept.from_client(
        call("remember", 7, arguments={"note": "a"}, _meta={**meta, "link.local/thread": "link:main"}), 1.0
    )
    answer, record = kept.lost(3.0)
    (said,) = given_to_client([answer])
    assert (said["id"], said["result"]["isError"]) == (7, True)
    assert said["result"].get("resultType") == ("complete" if meta else None)
    assert "not known whether it was done" in said["result"]["content"][0]["text"]
    assert record == Record("remember", "link:main", {"note": 3}, "unanswered", 1.0, 2.0, None)
    assert (kept.again(), kept.unanswered) == ([], 0)


def test_a_method_that_nobody_knows_is_not_made_again_and_answered_with_an_error():
    gate = Gate(None, ["search"])
    gate.from_client(line(message("files/wipe", 7)), 0.0)
    (answer,) = given_to_client(gate.lost(1.0))
    assert (answer["id"], answer["error"]["code"]) == (7, -32005)


def test_a_late_answer_to_what_was_answered_with_an_error_is_dropped(kept: Gate):
    kept.from_client(call("remember", 7), 0.0)
    kept.from_client(call("search", 8), 0.0)
    kept.from_client(cancel(8), 0.0)
    kept.lost(1.0)
    assert kept.from_tool(answered(7), 2.0) + kept.from_tool(answered(8), 2.0) == []
    assert kept.dropped == 2  # no answer is expected any more of a tool that is gone


def test_an_id_can_be_used_anew_and_is_made_again_anew(kept: Gate):
    kept.from_client(call("search", 7, arguments={"query": "a"}), 0.0)
    kept.lost(1.0)
    assert "not answered yet" in given_to_client(kept.from_client(call("search", 7), 1.0))[0]["error"]["message"]
    kept.lost(2.0)
    text = call("search", 7, arguments={"query": "b"})
    assert kept.from_client(text, 3.0) == [ToTool(text + b"\n")]
    assert (kept.lost(4.0), kept.again()) == ([], [text + b"\n"])


def test_what_the_owner_was_not_heard_about_yet_waits_on_for_them(kept: Gate):
    text = call("delete", 7)
    assert isinstance(kept.from_client(text, 0.0)[0], Ask)
    assert (kept.lost(1.0), kept.again(), kept.unanswered) == ([], [], 1)
    assert kept.answer(1, ALLOW, 2.0) == [ToTool(text + b"\n")]
    assert outcomes(kept.lost(3.0)) == [("delete", "unanswered")]


def test_a_read_that_the_owner_allowed_is_made_again_too():
    gate = Gate([], ["search"])
    text = call("search", 7, arguments={"query": "x" * (KEPT_BYTES_MAX * 2 // 3)})
    gate.from_client(text, 0.0)
    assert (gate.lost(1.0), gate.again()) == ([], [])
    gate.answer(1, ALLOW, 2.0)
    assert (gate.lost(3.0), gate.again()) == ([], [text + b"\n"])


def test_what_the_client_gave_up_is_not_made_again(kept: Gate):
    kept.from_client(call("search", 7), 0.0)
    kept.from_client(cancel(7), 1.0)
    assert (kept.lost(2.0), kept.again()) == ([], [])
    kept.from_client(call("search", 8), 3.0)
    kept.lost(4.0)
    assert outcomes(kept.from_client(cancel(8), 5.0)) == [("search", "cancelled")]
    assert kept.again() == []


def test_of_an_array_each_is_made_again_or_answered_by_itself(kept: Gate):
    asked = [message("tools/call", 1, name="search"), message("tools/call", 2, name="remember"), OPENED]
    kept.from_client(line(asked), 0.0)
    actions = kept.lost(1.0)
    assert [each["id"] for each in given_to_client(actions)] == [2]
    assert outcomes(actions) == [("remember", "unanswered")]
    assert list(map(json.loads, kept.again())) == asked[:1]


@pytest.mark.parametrize("number", [1, [], {}, None, 1.5], ids=ascii)
def test_an_answer_beside_a_request_in_an_array_is_not_taken_for_it(kept: Gate, number: Any):
    asked = message("ping", 1)
    text = line([asked, {"jsonrpc": "2.0", "id": number, "result": {}}])
    assert kept.from_client(text, 0.0) == [ToTool(text + b"\n")]
    kept.lost(1.0)
    assert list(map(json.loads, kept.again())) == [asked]


def test_lines_are_kept_up_to_a_limit_and_what_is_over_it_is_answered(kept: Gate):
    big = call("search", 1, arguments={"query": "x" * (KEPT_BYTES_MAX * 2 // 3)})
    assert isinstance(kept.from_client(big, 0.0)[0], ToTool)
    assert isinstance(kept.from_client(big.replace(b'"id": 1', b'"id": 2'), 0.0)[0], ToTool)
    kept.from_client(call("search", 3), 0.0)
    assert [each["id"] for each in given_to_client(kept.lost(1.0))] == [2]
    assert [json.loads(each)["id"] for each in kept.again()] == [1, 3]

    kept.from_tool(answered(1), 2.0)
    kept.from_client(big, 3.0)
    kept.lost(4.0)
    assert kept.again() == [big + b"\n"]


def test_a_session_is_opened_again_as_its_client_opened_it(kept: Gate):
    assert kept.opening() == (b"", b"")
    kept.from_client(line(OPENS), 0.0)
    kept.from_tool(answered(1), 0.0)
    asks, opened = kept.opening()
    assert (json.loads(asks), opened) == ({**OPENS, "id": AGAIN}, b"")
    assert asks.index(b"\n") == len(asks) - 1

    kept.from_client(line(OPENED), 0.0)
    kept.lost(1.0)
    assert kept.opening() == (asks, line(OPENED) + b"\n")
    assert kept.from_tool(answered(AGAIN), 2.0) == []
    assert kept.opening() == (asks, line(OPENED) + b"\n")


def test_what_tells_that_a_session_is_open_may_stand_in_an_array(kept: Gate):
    kept.from_client(line(OPENS), 0.0)
    kept.from_tool(answered(1), 0.0)
    kept.from_client(line([OPENED, message("ping", 2)]), 0.0)
    assert kept.opening()[1] == line(OPENED) + b"\n"


def test_a_client_that_opens_its_session_anew_is_opened_again_so(kept: Gate):
    for asked in (OPENS, message("initialize", 2, protocolVersion="2024-11-05")):
        kept.from_client(line(asked), 0.0)
        kept.from_tool(answered(asked["id"]), 0.0)
        asks, opened = kept.opening()
        assert (json.loads(asks), opened) == ({**asked, "id": AGAIN}, b"")
        kept.from_client(line(OPENED), 0.0)


def test_an_opening_that_was_not_answered_is_made_again_and_not_said_twice(kept: Gate):
    kept.from_client(line(OPENS), 0.0)
    assert (kept.lost(1.0), kept.again()) == ([], [line(OPENS) + b"\n"])
    assert kept.opening() == (b"", b"")
    assert given_to_client(kept.from_tool(answered(1), 2.0)) == [json.loads(answered(1))]
    assert json.loads(kept.opening()[0])["id"] == AGAIN


def test_in_the_era_without_an_opening_there_is_none_to_say(kept: Gate):
    kept.from_client(line(message("server/discover", 1, _meta=MODERN)), 0.0)
    kept.from_client(call("search", 2, _meta=MODERN), 0.0)
    kept.lost(1.0)
    assert kept.opening() == (b"", b"")
    assert [json.loads(each)["id"] for each in kept.again()] == [1, 2]


def test_at_the_end_what_waits_to_be_made_again_is_answered_too(kept: Gate):
    kept.from_client(call("search", 7), 0.0)
    kept.lost(1.0)
    actions = kept.close("It did not start again.", 2.0)
    assert given_to_client(actions)[0]["error"]["message"] == "It did not start again."
    assert (outcomes(actions), kept.again()) == ([("search", "unanswered")], [])


def test_of_a_tool_that_is_never_there_again_nothing_is_kept(gate: Gate):
    for asked in (OPENS, OPENED, [message("ping", 2)], message("tools/call", 3, name="search")):
        gate.from_client(line(asked), 0.0)
    gate.from_tool(answered(1), 0.0)
    assert [each["id"] for each in given_to_client(gate.lost(1.0))] == [2, 3]
    assert (gate.again(), gate.opening()) == ([], (b"", b""))


@pytest.mark.parametrize(
    "asked",
    [
        message("tools/call", 1, name="delete"),
        message("files/wipe", 1),
        {"jsonrpc": "2.0", "method": "files/wipe"},
        {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "delete"}},
        [message("tools/call", 1, name="delete"), {"jsonrpc": "2.0", "method": "files/wipe"}],
    ],
)
def test_where_no_list_is_given_everything_passes_that_can_be_read_in_one_way(asked: Any):
    gate = Gate(None, ["search"])
    assert gate.from_client(line(asked), 0.0) == [ToTool(line(asked) + b"\n")]
    for text in TWO_READINGS:
        assert [type(each) for each in gate.from_client(text.replace("DELETE", DELETE).encode(), 0.0)] == [ToClient]


class Played:
    """A client, an owner and a tool that is lost now and then, played through a gate: what each of them was given."""

    def __init__(self) -> None:
        self.gate = Gate(["search", "remember"], ["search"])
        self.serial = 0
        self.waiting: set[int] = set()  # ids that the client waits for
        self.made: Counter[tuple[str, int]] = Counter()  # calls that the tool was given

    def call(self, number: int, *names: str) -> None:
        self.serial += 1
        numbers = [number + 10 * place for place in range(len(names))]
        asked = [
            message("tools/call", each, name=name, arguments={"serial": self.serial})
            for name, each in zip(names, numbers, strict=True)
        ]
        if self.waiting.isdisjoint(numbers):
            self.waiting |= set(numbers)
            self.note(self.gate.from_client(line(asked if len(asked) > 1 else asked[0]), 0.0))

    def cancel(self, number: int) -> None:
        self.waiting.discard(number)
        self.note(self.gate.from_client(cancel(number), 0.0))

    def lose(self) -> None:
        self.note(self.gate.lost(0.0))
        self.note([ToTool(each) for each in self.gate.again()])

    def note(self, actions: list[Any]) -> None:
        for each in actions:
            if isinstance(each, ToClient):
                self.waiting.remove(json.loads(each.line)["id"])
            elif isinstance(each, ToTool) and b"tools/call" in each.line:
                self._note_calls(json.loads(each.line))

    def _note_calls(self, found: Any) -> None:
        for each in found if isinstance(found, list) else [found]:
            self.made[each["params"]["name"], each["params"]["arguments"]["serial"]] += 1


MOVES: dict[str, Callable[[Played, int], None]] = {
    "search": lambda played, number: played.call(number, "search"),
    "remember": lambda played, number: played.call(number, "remember"),
    "delete": lambda played, number: played.call(number, "delete"),
    "both": lambda played, number: played.call(number, "search", "remember"),
    "allowed": lambda played, number: played.note(played.gate.answer(number, ALLOW, 0.0)),
    "answered": lambda played, number: played.note(played.gate.from_tool(answered(number), 0.0)),
    "cancelled": lambda played, number: played.cancel(number),
    "lost": lambda played, number: played.lose(),
}


@given(st.lists(st.tuples(st.sampled_from(sorted(MOVES)), st.integers(1, 4)), max_size=24))
def test_however_often_it_is_lost_all_is_answered_once_and_only_reads_are_made_twice(moves: list[tuple[str, int]]):
    played = Played()
    for move, number in moves:
        MOVES[move](played, number)
    played.note(played.gate.close("It is over.", 0.0))
    assert played.waiting == set()
    assert {name for (name, _), count in played.made.items() if count > 1} <= {"search"}
    assert max(played.made.values(), default=0) <= 2


# ------------------------------------------------------------------ long answers of a service, not decoded


def long_answer(gate: Gate, rest: str) -> list[Any] | None:
    """The records of a long answer that went on by its beginning, once it was read whole."""
    gate.from_client(call("search"), 0.0)
    text = '{"jsonrpc": "2.0", "id": 1, "result": {' + rest
    first, check = gate.from_tool(text.encode("utf-8", "surrogateescape"), 1.0)
    assert first.line == text.encode("utf-8", "surrogateescape") + b"\n"
    return gate.checked(check)


TEXT = json.dumps('a \\ " } { [ ] \x01 "id": 7, "method": "x" result error isError ' * 100)
LONG = f'"content": [{{"text": {TEXT}, "ids": 1, "ideas": 2, "errors": 3, "title": "id"}}]'


@pytest.mark.parametrize("repeats", [["search"], None])
@pytest.mark.parametrize(
    ("rest", "outcome"),
    [
        (LONG + "}}", "ok"),
        (LONG + ', "isError": true}}', "failed"),
        (LONG + ', "isError" : false}}  ', "ok"),
        ('"deep": {"isError": true}, ' + LONG + "}}", "ok"),
        ('"deep": {"id": 7, "method": "x", "error": 1}, ' + LONG + "}}", "ok"),
        (LONG + '}, "other": {"isError": true}}', "ok"),
        ('"isError": true, ' + LONG + "}}", "failed"),
        ('"\\u0069sError": true, ' + LONG + "}}", "failed"),
    ],
)
def test_what_a_long_answer_says_of_itself_is_known_whether_it_was_decoded_or_not(rest, outcome, repeats) -> None:
    records = long_answer(Gate(["search"], repeats), rest)
    assert records is not None and [each.outcome for each in records] == [outcome]


@pytest.mark.parametrize("repeats", [["search"], None])
@pytest.mark.parametrize(
    "rest",
    [
        LONG + '}, "id": 2}',
        LONG + '}, "ID": 2}',
        LONG + '}, "\\u0069d": 2}',
        LONG + '}, "i\\u0064": 2}',
        LONG + '}, "method": "x"}',
        LONG + '}, "error": {}}',
        LONG + '}, "result": {}}',
        LONG + '}, "re\u017fult": {}}',
        LONG + '}, "j\u017fonrpc": {}}',
        LONG + '}}{"jsonrpc": "2.0", "id": 2, "result": {}}',
    ],
)
def test_a_long_answer_that_could_be_taken_for_another_is_found_out_of_a_service_too(rest, repeats) -> None:
    assert long_answer(Gate(["search"], repeats), rest) is None


@given(st.text(max_size=60), st.sampled_from(["search", "x"]))
def test_text_in_a_long_answer_never_makes_it_another(text: str, key: str) -> None:
    body = json.dumps({"content": [{"type": "text", "text": text * 100}], key: text, "pad": "x" * 5000})
    records = long_answer(Gate(["search"], ["search"]), body[1:] + "}")
    assert records is not None and [each.outcome for each in records] == ["ok"]
