"""The first line of a connection to an engine of many agents: what can be understood in one way, and nothing else."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lnk.contract.hello import (
    AGENT,
    LINE_BYTES_MAX,
    format_hello,
    format_welcome,
    parse_hello,
    parse_welcome,
)
from lnk.errors import Invalid, Missing, Refused

ID = "a_abcdefghijk2"


# ------------------------------------------------------------ what is a first line


@pytest.mark.requirement("SOCKET-4", "SOCKET-5")
@pytest.mark.parametrize("agent", [ID, "a", "7", "main.old-1", "x" * 128])
def test_what_is_written_for_an_agent_is_read_as_that_agent(agent: str):
    line = format_hello(agent)
    assert line.index(b"\n") == len(line) - 1
    assert parse_hello(line.removesuffix(b"\n")) == agent


@pytest.mark.parametrize("line", ['{"agent":"%s"}', ' { "agent" : "%s" } \r', '{"\\u0061gent":"%s"}'])
def test_any_writing_of_the_same_json_is_the_same_line(line: str):
    assert parse_hello((line % ID).encode()) == ID


@pytest.mark.requirement("SOCKET-5")
@pytest.mark.parametrize(
    "said",
    [
        *("", None, [], {}, 0, True),
        *("../x", "a/b", "/", ".", "..", ".x", "-x", "a\0b", "a\n", " a", "é", "\ud800", "x" * 129),
    ],
    ids=ascii,
)
def test_what_is_no_id_of_an_agent_is_none_and_never_means_any(said: Any):
    """Cases isolation-03, socket-07."""
    with pytest.raises(Invalid, match='The "agent" of the first line is ') as refused:
        parse_hello(json.dumps({"agent": said}).encode())
    named = repr(said[:64]) if isinstance(said, str) else "no text"
    assert named in str(refused.value) and str(refused.value).isprintable()


@pytest.mark.parametrize("line", ["{}", '{"agents": "a"}', '{"Agent": "a"}', '{"agent": "a", "more": 1}'])
def test_an_agent_alone_is_named_and_nothing_is_beside_it(line: str):
    """Case isolation-03."""
    with pytest.raises(Invalid, match="and nothing else"):
        parse_hello(line.encode())


@pytest.mark.requirement("SOCKET-5")
@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"", "no JSON object"),
        (b"GET / HTTP/1.1\r", "no JSON object"),
        (b"null", "no JSON object"),
        (b'"a"', "no JSON object"),
        (b'[{"agent": "a"}]', "no JSON object"),
        (b'{"agent": "a"} {"agent": "b"}', "no JSON object"),
        (b'{"agent": "a"}{}', "no JSON object"),
        (b'{"agent": "a"', "no JSON object"),
        (b"{\"agent\": 'a'}", "no JSON object"),
        (b'\xef\xbb\xbf{"agent": "a"}', "no JSON object"),
        (b'{"agent": ' + b"1" * 5000 + b"}", "no JSON object"),
        (b"[" * LINE_BYTES_MAX, "no JSON object"),
        (b'{"agent":' * 5000 + b"1" + b"}" * 5000, "no JSON object"),
        (b'{"agent": "a", "agent": "b"}', "a key twice"),
        (b'{"agent": "a", "\\u0061gent": "b"}', "a key twice"),
        (b'{"agent": {"x": 1, "x": 2}}', "a key twice"),
        (b'{"agent": NaN}', "NaN"),
        (b'{"agent": "a", "x": -Infinity}', "-Infinity"),
        (b'{"agent": "\xff"}', "UTF-8"),
        (b'{"agent": "\xed\xa0\x80"}', "UTF-8"),
        ('{"agent": "a"}'.encode("utf-16"), "UTF-8"),
        (b'{"agent": "a"}\0\0', "no JSON object"),
        (b'{"agent": "a"}' + b" " * LINE_BYTES_MAX, f"{LINE_BYTES_MAX:,} bytes"),
    ],
    ids=lambda each: ascii(each)[:40],
)
def test_a_line_that_is_no_json_object_or_could_be_two_is_refused_with_why(line: bytes, why: str):
    """Case socket-07."""
    with pytest.raises(Invalid, match=r"^The first line .*\.$") as refused:
        parse_hello(line)
    assert why in str(refused.value)


@pytest.mark.parametrize("beside", [{}, {"agent": ID}])
@pytest.mark.parametrize("value", [{"owner": "o", "key": "k", "files": "/other/socket"}, None, "", {}])
@pytest.mark.parametrize("key", ["bound", "team", "changed", "flush", "end"])
def test_what_is_not_served_yet_is_refused_by_its_name(key: str, value: Any, beside: dict[str, str]):
    """Case socket-07: whatever stands in it goes nowhere."""
    with pytest.raises(Refused) as refused:
        parse_hello(json.dumps({**beside, key: value}).encode())
    assert f"'{key}'" in str(refused.value)
    assert "/other/socket" not in str(refused.value)


def test_the_longest_line_is_read():
    line = json.dumps({"agent": ID}).encode().ljust(LINE_BYTES_MAX)
    assert parse_hello(line) == ID
    with pytest.raises(Invalid, match="bytes"):
        parse_hello(line + b" ")


TEXT = st.text(st.characters(), max_size=20)  # halves of surrogate pairs among them
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
KEY = st.sampled_from(["agent", "bound", "team", "changed", "flush", "end", "Agent"]) | TEXT


@given(
    st.binary(max_size=60)
    | VALUE.map(lambda value: json.dumps(value).encode())
    | st.dictionaries(KEY, st.from_regex(AGENT, fullmatch=True) | VALUE, max_size=2).map(
        lambda value: json.dumps(value).encode()
    )
)
def test_whatever_comes_is_an_agent_alone_or_refused(line: bytes):
    try:
        agent = parse_hello(line)
    except (Invalid, Refused) as error:
        assert str(error).endswith(".")
    else:
        assert json.loads(line) == {"agent": agent}
        assert parse_hello(format_hello(agent).removesuffix(b"\n")) == agent


# ------------------------------------------------------------ what it is answered


@pytest.mark.requirement("SOCKET-4")
def test_a_session_that_begins_is_told_so_in_one_line():
    assert format_welcome() == b'{"ok": true}\n'
    assert parse_welcome(format_welcome()) is None


@pytest.mark.requirement("SOCKET-4")
@pytest.mark.parametrize("why", [Missing("No agent 'é\n' is served here."), "It is\u2028full.", ""])
def test_a_session_that_does_not_begin_is_told_why_in_one_line(why: Any):
    line = format_welcome(why)
    assert len(line.decode().splitlines()) == 1
    assert list(json.loads(line)) == ["error"]
    assert parse_welcome(line) == str(why)


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"{}", b"[]", b"null", b"true", b"\xff\xff", b"[" * 100_000, b'{"ok": true'),
        *(b'{"ok": 1}', b'{"ok": false}', b'{"ok": "true"}', b'{"error": null}', b'{"error": ["x"]}'),
        b'{"jsonrpc": "2.0", "id": 1, "result": {}}',
    ],
    ids=lambda each: ascii(each)[:40],
)
def test_anything_else_is_no_welcome(line: bytes):
    with pytest.raises(Invalid, match="no welcome"):
        parse_welcome(line)


@given(st.binary(max_size=60) | VALUE.map(lambda value: json.dumps(value).encode()))
def test_whatever_a_service_answers_is_a_welcome_or_invalid(line: bytes):
    try:
        why = parse_welcome(line)
    except Invalid:
        return
    assert why == (None if json.loads(line).get("ok") is True else json.loads(line)["error"])
