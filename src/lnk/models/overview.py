"""What a person is shown of models: the runtimes on this machine, and what is known. Values for JSON, no layout."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from lnk.contract.spec import MODEL_ASKED
from lnk.models.facts import FIELDS, Catalogue, Known, read_catalogue
from lnk.models.names import full_name
from lnk.models.runtimes import PROGRAMS, TITLES, Model, Runtime, Skipped, known_of, look
from lnk.models.serve import check_served, how_to_get, installed
from lnk.models.settings import OLLAMA, format_url, read_settings

_STARTED: Final = "Ollama is installed, but does not run; `lnk model serve MODEL` starts it for as long as it serves."


def machine(environment: Mapping[str, str]) -> dict[str, Any]:
    """The runtimes that answer with their models, those known to embed first; those that are passed over, and why;
    what the settings say of single models; the programs that can be started; and what may be done, if anything.
    """
    settings, catalogue = read_settings(environment), read_catalogue(environment)
    found = look(settings, catalogue)
    running = [each for each in found if isinstance(each, Runtime)]
    startable = installed(found, environment)
    advice = None
    if not any(model.may_embed for each in running for model in each.models):
        how = f"To search by meaning, {how_to_get(MODEL_ASKED, found, catalogue, settings.path)}."
        advice = _STARTED if OLLAMA in startable else how
    return {
        "runtimes": [_runtime(each, catalogue) for each in running],
        "skipped": [_skipped(each) for each in found if isinstance(each, Skipped) and each.said],
        "settings": [{"model": model, "by": by.by} for model, by in settings.serve.items()],
        "installed": [PROGRAMS[kind] for kind in startable],
        **({"advice": advice} if advice else {}),
    }


def facts_of(model: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """What is known of a model, each field with where it is from. Raises Missing, saying how to describe it."""
    check_served(model)
    catalogue = read_catalogue(environment)
    return {"model": model, **_known(catalogue.need(model)), "file": catalogue.path}


def all_facts(environment: Mapping[str, str]) -> dict[str, Any]:
    """The same of every model that is described."""
    catalogue = read_catalogue(environment)
    return {"models": [_known(catalogue.named(key)) for key in catalogue.models()], "file": catalogue.path}


def _runtime(runtime: Runtime, catalogue: Catalogue) -> dict[str, Any]:
    version = {"version": runtime.version} if runtime.version else {}
    models = [_model(model, known_of(model, catalogue)) for model in runtime.models]
    return {**_place(runtime), **version, "models": models}


def _skipped(skipped: Skipped) -> dict[str, Any]:
    return {**_place(skipped), "why": skipped.why}


def _place(found: Runtime | Skipped) -> dict[str, str]:
    title = TITLES[found.kind].removeprefix("The ")
    return {"runtime": found.kind, "title": title, "url": format_url(found.address)}


def _model(model: Model, known: Known | None) -> dict[str, Any]:
    same = known is None or full_name(known.model) == full_name(model.name)
    return {"model": model.name, "embeds": model.shown, **({} if same or known is None else {"known": known.model})}


def _known(known: Known) -> dict[str, Any]:
    said = dict(zip(FIELDS, msgspec.structs.astuple(known.told), strict=True))
    fields = {name: {"value": said[name], "from": known.sources[name]} for name in FIELDS if said[name] is not None}
    return {"known": known.model, "fields": fields}
