"""The model runtimes of this machine: which of them answer, and which models each has."""

import re
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from lnk.contract.embedding import Address
from lnk.contract.shape import Value
from lnk.errors import LinkError, Missing, Unavailable
from lnk.models.facts import NAME_CHARS_MAX, Catalogue, Known
from lnk.models.http import ask_json
from lnk.models.names import full_name
from lnk.models.settings import LLAMA_CPP, LM_STUDIO, OLLAMA, Settings, format_url

OWN: Final = "settings"  # the kind of a server that the person's settings name
TITLES: Final = {OLLAMA: "Ollama", LM_STUDIO: "LM Studio", LLAMA_CPP: "The llama.cpp server", OWN: "The server"}
PROGRAMS: Final = {OLLAMA: "ollama", LLAMA_CPP: "llama-server"}  # what may be started
LOOK_S: Final = 2.0  # an answer that is not there by then is no use to a session that starts
MODELS_MAX: Final = 1000  # of one runtime

_EMBED: Final = ("bert", "nomic-bert", "nomic-bert-moe", "xlm-roberta", "gemma-embedding")  # families that only embed
_HINT = re.compile(r"embed|(^|[-_/])(e5|bge|gte|minilm)([-_.]|$)")


class Model(Value, frozen=True):
    """A model as its runtime names it; `file`: what it was loaded from, `embeds`: its runtime or the facts say so."""

    name: str
    file: str | None = None
    embeds: bool = False

    @property
    def may_embed(self) -> bool:
        """Whether its name at least says so."""
        return self.embeds or bool(_HINT.search(self.name.lower()))

    @property
    def shown(self) -> str:
        """Whether it embeds, in a word: yes, perhaps (its name says so), or unknown."""
        return "yes" if self.embeds else "perhaps" if self.may_embed else "unknown"


class Runtime(Value, frozen=True):
    """A runtime that answers at `address`, whose `base` is the OpenAI-compatible one."""

    kind: str
    address: Address
    models: tuple[Model, ...]
    version: str | None = None

    def __str__(self) -> str:
        return f"{TITLES[self.kind]} at {format_url(self.address)}"

    @property
    def alive_path(self) -> str:
        """What is asked to see that it still answers."""
        return "/api/version" if self.kind == OLLAMA else f"{self.address.base}/models"


class Skipped(Value, frozen=True):
    """A runtime that is not used; `absent`: merely because nothing listens there."""

    kind: str
    address: Address
    why: str
    absent: bool

    @property
    def said(self) -> bool:
        """Whether a person hears of it: not of one that merely does not run, unless their settings name it."""
        return self.kind == OWN or not self.absent

    def __str__(self) -> str:
        return f"{TITLES[self.kind]} at {format_url(self.address)} {self.why}"


def look(settings: Settings, catalogue: Catalogue, *, seconds: float = LOOK_S) -> list[Runtime | Skipped]:
    """Every runtime that may be here, in the order in which they are asked, each given as long: `seconds`."""
    places = [(OWN, url) for url in settings.urls] + [(kind, settings.at[kind]) for kind in settings.look]
    until = time.monotonic() + seconds
    found: list[Runtime | Skipped | None] = [None] * len(places)

    def visit(number: int) -> None:
        found[number] = runtime_at(*places[number], catalogue, until=until)

    threads = [threading.Thread(target=visit, args=(number,), daemon=True) for number in range(len(places))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [each for each in found if each is not None]


def runtime_at(kind: str, address: Address, catalogue: Catalogue, *, until: float) -> Runtime | Skipped:
    """The runtime of that kind at that address, as it answers by `until` on the clock of `time.monotonic`."""
    try:
        version = _version(kind, address, until)
        listed = list(_listed(kind, address, until))
    except LinkError as error:
        return Skipped(kind=kind, address=address, why=str(error), absent=isinstance(error, Missing))
    known = (
        Model(name=each.name, file=each.file, embeds=each.embeds or known_of(each, catalogue) is not None)
        for each in listed
    )
    models = tuple(sorted(known, key=lambda model: (not model.embeds, not model.may_embed, model.name)))
    return Runtime(kind=kind, address=address, models=models, version=version)


def known_of(model: Model, catalogue: Catalogue) -> Known | None:
    """What is known of a model that a runtime lists, by its name or by the file that it was loaded from."""
    return catalogue.known(model.name) or (catalogue.known(model.file) if model.file else None)


def served_as(runtime: Runtime, model: str, catalogue: Catalogue) -> str | None:
    """The name under which `runtime` has `model`, the one spelt the same first; None where it does not have it."""
    names = [each.name for each in runtime.models if full_name(each.name) == full_name(model)]
    names += [
        each.name
        for each in runtime.models
        if catalogue.same(model, each.name) or (each.file and catalogue.same(model, each.file))
    ]
    return names[0] if names else None


def _version(kind: str, address: Address, until: float) -> str | None:
    if kind != OLLAMA:
        return None
    found = ask_json(address, "/api/version", until=until)
    version = found.get("version") if isinstance(found, dict) else None
    if not isinstance(version, str):
        raise Unavailable("answers, but not as Ollama does")
    return version[:40]


def _listed(kind: str, address: Address, until: float) -> Iterator[Model]:
    path, key, name = ("/api/tags", "models", "name") if kind == OLLAMA else (f"{address.base}/models", "data", "id")
    found = ask_json(address, path, until=until)
    listed = found.get(key) if isinstance(found, dict) else None
    if listed is None and kind == OLLAMA and isinstance(found, dict):
        listed = []  # Ollama's word for none
    if not isinstance(listed, list):
        raise Unavailable(f"answers, but does not list its models at {path}")
    file = _file(address, until) if kind == LLAMA_CPP and len(listed) == 1 else None
    for each in listed[:MODELS_MAX]:
        said = each.get(name) if isinstance(each, dict) and not _elsewhere(each) else None
        if isinstance(said, str) and 0 < len(said) <= NAME_CHARS_MAX and said.isprintable():
            yield Model(name=said, file=file, embeds=_embeds(kind, said, each))


def _elsewhere(said: Mapping[str, Any]) -> bool:
    """Whether the model is one that Ollama lists but runs on its maker's machines: no text of a person's goes there."""
    tag = str(said.get("name")).partition(":")[2]
    return bool(said.get("remote_host") or said.get("remote_model")) or tag.endswith("cloud")


def _file(address: Address, until: float) -> str | None:
    """What a llama.cpp server loaded: it may be listed under any other name."""
    try:
        found = ask_json(address, "/props", until=until)
    except LinkError:
        return None  # it need not say
    path = found.get("model_path") if isinstance(found, dict) else None
    return path if isinstance(path, str) and path.endswith(".gguf") else None


def _embeds(kind: str, name: str, said: Mapping[str, Any]) -> bool:
    """Whether the runtime says that the model embeds."""
    if kind == LM_STUDIO:
        return name.startswith("text-embedding-")
    able, details = said.get("capabilities"), said.get("details")
    family = details.get("family") if isinstance(details, dict) else None
    return (isinstance(able, list) and "embedding" in able) or family in _EMBED
