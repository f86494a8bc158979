"""One model served: the first runtime that has it, seen to embed; or one that is started, and ended with us.

With a `port` the model is at that port of this machine whoever has it, under /v1 and by the name that it was asked for
by, so that its address can be told before anything serves it: a relay leads from there to the runtime. With an
`opening` it is so for one program in a sandbox, which can ask for the model's vectors and nothing else of the runtime,
and at no port of this machine.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Final, NoReturn, Self

import msgspec

from lnk.contract.embedding import Address
from lnk.contract.shape import Value
from lnk.contract.spec import BUILTIN, NONE, check_model
from lnk.errors import LinkError, Missing, Refused, Unavailable
from lnk.models.facts import Catalogue, read_catalogue
from lnk.models.http import ask, vector_length
from lnk.models.names import full_name, parse_name
from lnk.models.opening import Model, Opening
from lnk.models.processes import END_S, Child, Waking, program_path
from lnk.models.relay import HOST, Names, Relay, anything, free_port, listening
from lnk.models.runtimes import LOOK_S, OWN, PROGRAMS, TITLES, Runtime, Skipped, look, runtime_at, served_as
from lnk.models.settings import BASE, LLAMA_CPP, OLLAMA, PORT_WORD, Settings, format_url, read_settings

WAIT_S: Final = 10.0  # a session waits no longer for a model
SPARE_S: Final = 0.5  # of it, for our own start and end
EVERY_S: Final = 30.0  # how often a runtime is looked at while it is served
AGAIN_S: Final = 2.0  # one that does not listen is looked at again so soon: it may only be starting anew
LOOK_AGAIN_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, EVERY_S)  # until a runtime that was not there is looked for again
START_AGAIN_S: Final = 600.0  # what was started for nothing is not started again before
ALIVE_S: Final = 5.0
MISSES_MAX: Final = 3  # looks in a row without an answer; one that is busy may miss some
STARTING_S: Final = 0.1
LOADING: Final = 503  # what a server says whose model is not loaded yet
NAMES_SHOWN: Final = 4

# A chunk of text is some 400 to 1,500 tokens; a longer context only takes memory, and one slot has all of it.
_CONTEXT_TOKENS: Final = 2048

_RESERVED: Final = {
    BUILTIN: '"builtin" is the encoder that comes with Link Memory, which the memory engine runs itself',
    NONE: '"none" means that no model is used',
}


class Line(Value, frozen=True):
    """What is told of a model that is served: its name in requests, what stands before /embeddings, vector length."""

    model: str
    url: str
    dims: int
    runtime: str


class Serving:
    """A model that is served. Use as a context: leaving ends what was started for it."""

    def __init__(
        self,
        line: Line,
        address: Address,
        alive_path: str,
        *,
        child: Child | None = None,
        relay: Relay | None = None,
        opening: Opening | None = None,
    ) -> None:
        self.line = line
        self.address = address  # the runtime's own, which `line.url` may lead to through a relay
        self._alive_path = alive_path
        self._child = child
        self._relay = relay
        self._opening = opening

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """What was started for it ends, and an opening leads nowhere again."""
        if self._opening:
            self._opening.target = None
        if self._relay:
            self._relay.close()
        if self._child:
            self._child.end()

    def stay(self, every_s: float = EVERY_S) -> None:
        """Looks every so often whether the runtime still answers. Raises Unavailable when it does not.

        To be called in the main thread, where signals are heard.
        """
        misses, pause_s = 0, every_s
        with Waking() as waking:
            while misses < MISSES_MAX and not waking.wait(self._child, pause_s):
                try:
                    ask(self.address, self._alive_path, until=time.monotonic() + ALIVE_S)
                    misses, pause_s = 0, every_s
                except LinkError as error:
                    misses += 1
                    pause_s = min(AGAIN_S, every_s) if isinstance(error, Missing) else every_s
        raise Unavailable(f"{TITLES[self.line.runtime]} at {format_url(self.address)} is gone; start it again.")


class _Way(msgspec.Struct, frozen=True, kw_only=True):
    """A way to serve: by the runtime at `address`, which has the model as `name`; or by starting `program` first."""

    kind: str
    name: str
    address: Address | None = None
    program: str = ""
    argv: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{TITLES[self.kind]} at {format_url(self.address)}" if self.address else self.program


def is_model(name: str) -> bool:
    """Whether a person may ask for a model by that name."""
    try:
        check_served(name)
    except LinkError:
        return False
    return True


def check_served(model: str) -> None:
    """Raises Invalid for what is no model's name, Refused for one that stands for something else."""
    check_model(model)
    if model in _RESERVED:
        raise Refused(f"{_RESERVED[model]}, so no runtime serves it; name a model such as qwen3-embedding.")


def serve(
    model: str,
    environment: Mapping[str, str],
    *,
    port: int | None = None,
    opening: Opening | None = None,
    wait_s: float = WAIT_S,
    start: bool = True,
    tell: Callable[[str], None] = lambda _: None,
) -> Serving:
    """`model`, served within `wait_s`. `tell` hears of each runtime that was to have it and was passed over.

    `opening` leads there until it is closed, in place of a `port`; it stays the caller's. `start`: one that does not
    run may be started. Raises Unavailable where nothing on this machine serves it, in one
    sentence that says why; Invalid and Refused.
    """
    check_served(model)
    until = time.monotonic() + wait_s - SPARE_S
    settings, catalogue = read_settings(environment), read_catalogue(environment)
    found = look(settings, catalogue, seconds=min(LOOK_S, wait_s / 4))
    attempt = _Attempt(model, environment, catalogue, port, opening)
    ways = [way for way in _ways(model, settings, catalogue, found, environment) if start or way.address]
    failed = []
    for number, way in enumerate(ways):
        share = max(0.0, until - time.monotonic()) / (len(ways) - number)
        try:
            serving = attempt.run(way, until=time.monotonic() + share)
        except LinkError as error:
            failed.append(f"{way} {error}")
        else:
            for passed in (*_said(_before(found, serving.address)), *failed):
                tell(f"{passed}; passed over.")
            return serving
    raise Unavailable(_why_not(model, catalogue, settings, found, failed))


def serve_again(
    model: str,
    environment: Mapping[str, str],
    *,
    port: int | None,
    opening: Opening | None = None,
    wait_s: float,
    every_s: float,
    heard: Callable[[Line], None],
    tell: Callable[[str], None],
) -> NoReturn:
    """The same, each time that a runtime has the model, until we are ended; `heard` is given each line.

    Settings and facts are read anew each time. `tell` hears why it is not served, once a reason.
    """
    check_served(model)
    pauses, may_start, said = iter(LOOK_AGAIN_S), 0.0, ""
    while True:
        start, served_at = time.monotonic() >= may_start, float("inf")
        try:
            with serve(
                model, environment, port=port, opening=opening, wait_s=wait_s, start=start, tell=tell
            ) as serving:
                served_at, said = time.monotonic(), ""
                heard(serving.line)
                serving.stay(every_s)
        except BrokenPipeError:
            raise  # nobody hears the line
        except Exception as error:  # the top of a session: said, and tried again
            why = str(error) if isinstance(error, LinkError) else f"{type(error).__name__}: {error}"
            if why != said:
                said = why
                tell(why)
        if time.monotonic() - served_at >= EVERY_S:
            pauses = iter(LOOK_AGAIN_S)
        elif start:
            may_start = time.monotonic() + START_AGAIN_S
        with Waking() as waking:
            waking.wait(None, next(pauses, EVERY_S))


def would_serve(model: str, environment: Mapping[str, str]) -> tuple[str | None, str]:
    """What serves the model first, or would start to, and nothing; or None, and what a person does to have it.

    Raises Invalid and Corrupt for a person's files.
    """
    settings, catalogue = read_settings(environment), read_catalogue(environment)
    found = look(settings, catalogue)
    way = next(_ways(model, settings, catalogue, found, environment), None)
    return (str(way), "") if way else (None, how_to_get(model, found, catalogue, settings.path))


class _Attempt:
    """What every way to serve the model is tried with."""

    def __init__(
        self,
        model: str,
        environment: Mapping[str, str],
        catalogue: Catalogue,
        port: int | None,
        opening: Opening | None,
    ) -> None:
        self._model = model
        self._environment = environment
        self._catalogue = catalogue
        self._port = None if opening else port
        self._opening = opening

    def run(self, way: _Way, *, until: float) -> Serving:
        """The model, served in this way. Raises the error whose words say, after the way's name, why not."""
        if way.address:
            return self._serving(way.kind, way.name, way.address, until)
        return self._started(way, until - END_S)

    def _serving(self, kind: str, name: str, address: Address, until: float, child: Child | None = None) -> Serving:
        """The model of that name at that address, seen to embed there, and at our port."""
        dims = _dims(address, name, until)
        at, relay = address, None
        names = Names(self._model, name)
        changed = None if full_name(name) == full_name(self._model) else names
        itself = (address.host, address.port, address.base, changed) == (HOST, self._port, BASE, None)
        if self._opening:
            self._opening.target = Model(address, names)
            at = Address(host=HOST, port=self._opening.port, base=BASE)
        elif self._port is not None and not itself:
            target = anything(address, changed)
            relay = Relay(listening(self._port), lambda: target)
            at = Address(host=HOST, port=self._port, base=BASE)
        line = Line(model=name, url=format_url(at), dims=dims, runtime=kind)
        return Serving(line, address, _alive_path(kind, address), child=child, relay=relay, opening=self._opening)

    def _started(self, way: _Way, until: float) -> Serving:
        if self._port is not None:
            listening(self._port).close()  # what cannot be served there is not started
        address = Address(host=HOST, port=free_port(), base=BASE)
        environment = dict(self._environment)
        if way.kind == OLLAMA:
            environment["OLLAMA_HOST"] = f"{HOST}:{address.port}"
        program = program_path(way.program, self._environment)
        child = Child([program, *(word.replace(PORT_WORD, str(address.port)) for word in way.argv)], environment)
        try:
            _wait_ready(child, address, _alive_path(way.kind, address), until)
            return self._serving(way.kind, self._name(way, address, until), address, until, child)
        except BaseException:
            child.end()
            raise

    def _name(self, way: _Way, address: Address, until: float) -> str:
        """What the model is called at a server that was started; it need not list what the person says that it has."""
        found = runtime_at(way.kind, address, self._catalogue, until=until)
        name = served_as(found, self._model, self._catalogue) if isinstance(found, Runtime) else None
        if name is None and way.kind == OLLAMA:
            raise Unavailable(f"was started, but does not have {self._model}")
        return name or way.name


def _ways(
    model: str,
    settings: Settings,
    catalogue: Catalogue,
    found: Sequence[Runtime | Skipped],
    environment: Mapping[str, str],
) -> Iterator[_Way]:
    """Every way in which the model may be served, in order: what the settings name, what runs, what can be started."""
    own = next((each for name, each in settings.serve.items() if catalogue.same(model, name)), None)
    if own and own.url:
        yield _Way(kind=OWN, name=model, address=own.url)
    if own and own.command:
        yield _Way(kind=OWN, name=model, program=own.command[0], argv=own.command[1:])
    for each in found:
        if isinstance(each, Runtime) and (name := served_as(each, model, catalogue)):
            yield _Way(kind=each.kind, name=name, address=each.address)
    if OLLAMA in installed(found, environment):
        yield _Way(kind=OLLAMA, name=model, program=PROGRAMS[OLLAMA], argv=("serve",))
    if own and own.file:
        yield _Way(
            kind=LLAMA_CPP, name=model, program=PROGRAMS[LLAMA_CPP], argv=_llama_server(model, own.file, catalogue)
        )


def installed(found: Sequence[Runtime | Skipped], environment: Mapping[str, str]) -> list[str]:
    """The kinds of runtime that are looked for, do not run, and whose program is here to start them."""
    absent = [each.kind for each in found if isinstance(each, Skipped) and each.absent]
    return [kind for kind in PROGRAMS if kind in absent and _is_here(PROGRAMS[kind], environment)]


def _is_here(program: str, environment: Mapping[str, str]) -> bool:
    try:
        return bool(program_path(program, environment))
    except LinkError:
        return False


def _llama_server(model: str, file: str, catalogue: Catalogue) -> tuple[str, ...]:
    """How llama-server is started for embeddings: every input in one batch, pooled as the model was trained."""
    facts = catalogue.facts(model)
    tokens = str(min(facts.tokens, _CONTEXT_TOKENS))
    argv = ["--model", os.path.abspath(os.path.expanduser(file)), "--alias", model, "--host", HOST, "--port", PORT_WORD]
    argv += ["--embedding", "--parallel", "1", "--ctx-size", tokens, "--batch-size", tokens, "--ubatch-size", tokens]
    return (*argv, *(("--pooling", facts.pooling) if facts.pooling else ()))


def _dims(address: Address, name: str, until: float) -> int:
    """How many numbers a vector of the model has, which shows that it embeds. Raises Unavailable."""
    try:
        return vector_length(address, name, until=until)
    except Unavailable:
        if time.monotonic() < until:
            raise
        raise Unavailable(
            f"gave no vector of {name} in time; if it is still being loaded, --wait gives it longer"
        ) from None


def _alive_path(kind: str, address: Address) -> str:
    return Runtime(kind=kind, address=address, models=()).alive_path


def _wait_ready(child: Child, address: Address, path: str, until: float) -> None:
    """Waits until the server that was started answers. Raises Unavailable."""
    while time.monotonic() < until:
        if child.ended():
            words = child.last_words()
            raise Unavailable("was started, but ended" + (f": {words}" if words else " at once"))
        try:
            if ask(address, path, until=until).status != LOADING:
                return
        except LinkError:
            pass  # not yet
        time.sleep(STARTING_S)
    raise Unavailable("was started, but did not answer in time")


def _why_not(
    model: str, catalogue: Catalogue, settings: Settings, found: Sequence[Runtime | Skipped], failed: Sequence[str]
) -> str:
    skipped = list(_said(found))
    if failed:
        return f"{model} is not served: {'; '.join([*failed, *skipped])}."
    has = [f"{each} has {_shown(each)}" for each in found if isinstance(each, Runtime)]
    advice = how_to_get(model, found, catalogue, settings.path)
    if not has and not skipped:
        return f"No model runtime runs on this machine; {advice}."
    return f"No runtime on this machine has {model} ({'; '.join([*has, *skipped])}); {advice}."


def _before(found: Sequence[Runtime | Skipped], address: Address) -> Iterator[Runtime | Skipped]:
    """Those that are asked before the one at `address`; all where it was started."""
    return takewhile(lambda each: each.address != address, found)


def _said(found: Iterable[Runtime | Skipped]) -> Iterator[str]:
    """What is said of those that are skipped."""
    return (str(each) for each in found if isinstance(each, Skipped) and each.said)


def how_to_get(model: str, found: Sequence[Runtime | Skipped], catalogue: Catalogue, settings_path: str) -> str:
    """What a person does to have the model, or one of its family that is there; `settings_path`: their settings."""
    ways = [f"name a server that has it in {settings_path}"]
    known = catalogue.known(model)
    if names := (known.told.ollama or () if known else (model,)):
        pull = model if full_name(model) in map(full_name, names) else names[0]
        runs = any(isinstance(each, Runtime) and each.kind == OLLAMA for each in found)
        ways.insert(0, f"`ollama pull {pull}`" if runs else f"install Ollama (ollama.com) and `ollama pull {pull}`")
    if like := next(_of_its_family(model, found, catalogue), None):
        ways.append(f"ask for {like}, which is there")
    return f"{', '.join(ways[:-1])} or {ways[-1]}" if len(ways) > 1 else ways[0]


def _of_its_family(model: str, found: Sequence[Runtime | Skipped], catalogue: Catalogue) -> Iterator[str]:
    """The names of other sizes of the model that some runtime has; it is the person who may ask for one."""
    family = catalogue.family(model)
    listed = [each.name for runtime in found if isinstance(runtime, Runtime) for each in runtime.models]
    for name in sorted(listed, key=lambda name: bool(parse_name(name).place)):  # its maker's own first
        if family and catalogue.family(name) == family and is_model(name):
            yield name


def _shown(runtime: Runtime) -> str:
    names = [model.name for model in runtime.models if model.may_embed]
    if not names:
        return "no embedding model"
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
