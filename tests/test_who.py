"""Whose conversation a call is of: the notes are written in the owner's own alone, and all else works in every one."""

import json
import re
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from conftest import Place, Session
from lnk.contract.memory import THREAD_META, owners, parse_threads, thread_of
from lnk.errors import Invalid, Refused

Open = Callable[..., Session]
NO_META: dict[str, object] = {}

OWNERS = ("link:main", "link:a", "link:Main.2_x+y@z=w:v-u", "telegram-99", "group-shared")
STRANGERS = (
    "telegram-12345",  # a group that was not shared, and a stranger named as its sender
    "4930123456",
    "someone@example.org",
    "agent-x",
    "agent-",
    "Agent-x",
    "AGENT-x",
    "team-a",
    "TEAM-x",
    "task-1",
    "Link:main",
    "LINK:main",
    "link",
    "link:",
    "link-main",
    "xlink:main",
    "links:main",
    "agent-link:main",
    "telegram-991",  # a listed one's beginning
    "telegram-9",
    "Telegram-99",
    "0",
    "true",
    "a" * 120,
)
NO_THREADS: tuple[object, ...] = (
    "",
    " ",
    None,
    5,
    0,
    True,
    1.5,
    [],
    ["link:main"],
    {},
    {"name": "link:main"},
    "link:main\n",
    "link:main\r",
    "\nlink:main",
    " link:main",
    "link:main ",
    "link:main\0",
    "link:ma in",
    "link:mäin",
    "link:main\u200b",
    "\ufefflink:main",
    "ｌink:main",
    "link：main",
    "link:main/../x",
    "link:main;agent-x",
    "-link:main",
    ":link",
    "link:" + "a" * 116,  # 121 characters
    "a" * 10_000,
    "telegram-99\n",
    "+4930123456",
)


def named(thread: object) -> dict[str, object]:
    """`_meta` that names this conversation."""
    return {THREAD_META: thread}


@pytest.fixture
def told(place: Place, session: Open) -> Session:
    """A session in which each call names its conversation; two threads are listed as the owner's."""
    place.write("memory/Rose.md", "# Rose\n\nPruned in March, see [[Lily]].\n")
    place.write("memory/Lily.md", "# Lily\n")
    place.notes.write_text("- the safe's code is 9021\n")
    return session("--from", "--threads", '["telegram-99", "group-shared"]')


@pytest.mark.requirement("NOTES-9")
@pytest.mark.parametrize("thread", OWNERS)
def test_remember_works_in_the_owners_own_conversations(thread: str, told: Session, place: Place) -> None:
    """Case who-02: a chat that the owner shared counts as the owner's."""
    answer = told.call("remember", {"note": "tea at four"}, meta=named(thread))
    assert not answer.failed, answer.text
    assert place.notes.read_text() == "- the safe's code is 9021\n- tea at four\n"


@pytest.mark.requirement("NOTES-9")
def test_remember_is_refused_in_everybody_elses_and_the_refusal_tells_nothing_of_the_notes(
    told: Session, place: Place
) -> None:
    """Cases who-01, who-04, who-06: whatever is asked, by whomever: nothing written, nothing shown."""
    asked = (
        {"note": "the owner said X"},
        {"note": "x", "replaces": "safe"},
        {"forget": "safe"},
        {"forget": "no line holds this"},
        {"note": "z" * 5000},
        {},
    )
    for thread in STRANGERS:
        for arguments in asked:
            answer = told.call("remember", arguments, meta=named(thread))
            assert answer.failed, thread
            assert answer.structured is None
            assert not re.search("safe|9021|line|byte|KB", answer.text), answer.text
    assert place.notes.read_text() == "- the safe's code is 9021\n"


@pytest.mark.requirement("NOTES-9")
def test_one_refusal_is_like_every_other(told: Session) -> None:
    """What is refused for who asks does not depend on what the notes hold."""
    texts = {
        told.call("remember", arguments, meta=named(thread)).text
        for thread in STRANGERS
        for arguments in ({"forget": "safe"}, {"forget": "nothing"}, {"note": "x"})
    }
    assert len(texts) == 1


@pytest.mark.requirement("NOTES-9")
def test_every_other_call_works_in_a_strangers_conversation(told: Session) -> None:
    """Case who-01: every tool but remember, which is still listed."""
    assert [tool["name"] for tool in told.tools()] == ["search", "read", "list", "links", "remember"]
    for thread in ("telegram-12345", "agent-x", "team-a", "task-1", "Link:main", *OWNERS):
        meta = named(thread)
        assert told.call("search", {"query": "pruned"}, meta=meta).structured["results"][0]["path"] == "memory/Rose.md"
        assert told.call("read", {"path": "memory/Rose.md"}, meta=meta).structured["title"] == "Rose"
        assert len(told.call("list", {}, meta=meta).structured["documents"]) == 2
        assert told.call("links", {"path": "memory/Lily.md"}, meta=meta).structured["from"][0]["title"] == "Rose"


@pytest.mark.requirement("NOTES-8")
def test_a_call_that_names_no_conversation_is_refused_whichever_it_is(told: Session, place: Place) -> None:
    """Case who-04: no `_meta`, or one that holds no thread's name."""
    calls = {
        "search": {"query": "pruned"},
        "read": {"path": "memory/Rose.md"},
        "list": {},
        "links": {"path": "memory/Lily.md"},
        "remember": {"note": "x"},
    }
    metas = [None, NO_META, {"link.local/threads": "link:main"}, {"thread": "link:main"}, *map(named, NO_THREADS)]
    for meta in metas:
        for name, arguments in calls.items():
            answer = told.call(name, arguments, meta=meta)
            assert answer.failed, (name, meta)
            assert answer.structured is None
            assert THREAD_META in answer.text  # it says what to set
            assert "Rose" not in answer.text and "9021" not in answer.text
    assert place.notes.read_text() == "- the safe's code is 9021\n"


def test_a_thread_named_in_the_arguments_names_none(told: Session) -> None:
    """The conversation is what the harness says in `_meta`, never what a model writes."""
    arguments = {"note": "x", THREAD_META: "link:main", "_meta": named("link:main"), "thread": "link:main"}
    assert told.call("remember", arguments, meta=None).failed
    assert told.call("remember", arguments, meta=named("agent-x")).failed


@pytest.mark.requirement("NOTES-9")
def test_an_agents_team_s_or_tasks_conversation_is_refused_even_where_it_is_listed(place: Place, session: Open) -> None:
    """It fails closed: a list that names them is wrong."""
    opened = session("--from", "--threads", '["agent-x", "team-a", "task-1", "telegram-99"]')
    for thread in ("agent-x", "team-a", "task-1"):
        assert opened.call("remember", {"note": "x"}, meta=named(thread)).failed
    assert not place.notes.exists()
    assert not opened.call("remember", {"note": "x"}, meta=named("telegram-99")).failed


def test_a_thread_is_the_owners_only_while_it_is_listed(place: Place, session: Open) -> None:
    """Case who-02: unshared, the next session refuses; no verdict is kept."""
    assert (
        not session("--from", "--threads", '["group-1"]').call("remember", {"note": "x"}, meta=named("group-1")).failed
    )
    for flags in (("--from",), ("--from", "--threads", "[]"), ("--from", "--threads", '["group-2"]')):
        assert session(*flags).call("remember", {"note": "y"}, meta=named("group-1")).failed
    assert place.notes.read_text() == "- x\n"


def test_verdicts_are_of_each_call_and_not_of_the_session(told: Session, place: Place) -> None:
    for _ in range(3):
        assert not told.call("remember", {"note": "mine"}, meta=named("link:main")).failed
        assert told.call("remember", {"note": "theirs"}, meta=named("telegram-1")).failed
        assert told.call("remember", {"note": "nobody's"}, meta=None).failed
    assert place.notes.read_text() == "- the safe's code is 9021\n" + "- mine\n" * 3


@pytest.mark.requirement("NOTES-8")
def test_without_from_every_call_works_and_needs_to_name_nothing(place: Place, session: Open) -> None:
    place.write("memory/Rose.md", "# Rose\n")
    opened = session()
    for meta in (None, named("agent-x"), named(5)):
        assert not opened.call("search", {"query": "rose"}, meta=meta).failed
        assert not opened.call("remember", {"note": "x"}, meta=meta).failed
    assert place.notes.read_text() == "- x\n" * 3


@pytest.mark.parametrize("text", ['["a b"]', '[""]', "[5]", '{"a": 1}', "x", '["a\\n"]', f'["{"a" * 121}"]', '["-a"]'])
def test_a_list_of_threads_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        parse_threads(text)


# ------------------------------------------------------------ for any string whatever

THREADS = st.one_of(
    st.text(max_size=40),
    st.from_regex(r"(?i)(link:|link|agent-|team-|task-)?[a-z0-9._+@=:-]{0,12}[\n ]?", fullmatch=True),
    st.sampled_from([*OWNERS, *STRANGERS, *(each for each in NO_THREADS if isinstance(each, str))]),
)


@pytest.mark.requirement("NOTES-9")
@given(thread=THREADS, listed=st.frozensets(THREADS, max_size=4))
@example("link:main\n", frozenset())
@example("agent-x", frozenset(["agent-x"]))
@settings(max_examples=500, deadline=None)
def test_only_a_link_thread_or_a_listed_one_is_ever_the_owners(thread: str, listed: frozenset[str]) -> None:
    named_by_link = thread.startswith("link:") and re.fullmatch(r"[A-Za-z0-9._+@=:-]+", thread[5:]) is not None
    others = thread.startswith(("agent-", "team-", "task-"))
    assert owners(thread, listed) == ((named_by_link or thread in listed) and not others)


@pytest.mark.requirement("NOTES-8")
@given(
    st.one_of(
        THREADS,
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.binary(max_size=5),
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
        ),
    )
)
@settings(max_examples=500, deadline=None)
def test_a_threads_name_is_taken_as_it_stands_or_not_at_all(given_name: object) -> None:
    """No trimming and no folding of case, which would change a verdict."""
    shape = r"[A-Za-z0-9][A-Za-z0-9._+@=:-]{0,119}"
    if isinstance(given_name, str) and re.fullmatch(shape, given_name):
        assert thread_of(named(given_name)) == given_name
    else:
        with pytest.raises(Refused):
            thread_of(named(given_name))


def test_what_is_listed_comes_from_the_environment_of_the_command_as_a_flag(place: Place, session: Open) -> None:
    assert parse_threads("") == frozenset()
    assert parse_threads(json.dumps(["telegram-99", "link:x"])) == {"telegram-99", "link:x"}
