"""What is known of embedding models: Link's file, the person's over it field by field, and how a name finds its facts.

Both files are data, so that a model newer than this Link works without a release. `facts.toml` beside this module
says what each field means.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from lnk.contract.embedding import DIMS_MAX, Facts, check_facts
from lnk.contract.shape import Value, convert
from lnk.errors import Invalid, LinkError, Missing
from lnk.models.files import config_file, read_toml
from lnk.models.names import full_name, parse_name

FILE: Final = "model-facts.toml"
MODELS_MAX: Final = 1000  # in a person's file: more is a mistake
NAMES_MAX: Final = 50
NAME_CHARS_MAX: Final = 300
LINK, PERSON = "link", "person"  # where a field is from


class Told(Value, frozen=True, rename={"lm_studio": "lm-studio", "llama_cpp": "llama-cpp"}):
    """One table of a file of facts; what it does not say is None."""

    query: str | None = None
    document: str | None = None
    native: int | None = None
    dims: int | None = None
    tokens: int | None = None
    pooling: Literal["last", "mean", "cls"] | None = None
    terms: str | None = None
    ollama: list[str] | None = None
    lm_studio: list[str] | None = None
    llama_cpp: list[str] | None = None

    @property
    def names(self) -> list[str]:
        """The names that the model has in runtimes, Ollama's first."""
        return [*(self.ollama or ()), *(self.lm_studio or ()), *(self.llama_cpp or ())]

    @property
    def facts(self) -> Facts:
        """What has to be known to ask the model. Raises Invalid where one of them cannot be."""
        said = {name: getattr(self, name) for name in Facts.__struct_fields__}
        return check_facts(Facts(**{name: value for name, value in said.items() if value is not None}))


FIELDS: Final = Told.__struct_encode_fields__


class Known(Value, frozen=True):
    """What is known of `model`, the table's name; `sources`: each field that is known -> LINK or PERSON."""

    model: str
    told: Told
    sources: dict[str, str]


class Catalogue:
    """Both files together."""

    def __init__(self, link: Mapping[str, Told], person: Mapping[str, Told], path: str) -> None:
        """`path` is the person's file. Raises Invalid where a file has one model twice."""
        self.path = path
        self._tables: dict[str, dict[str, Told]] = {LINK: dict(link), PERSON: {}}
        self._keys = {parse_name(key).label: key for key in link}
        self._names: dict[tuple[str, str], str] = {}
        self._learn(LINK)
        for key, told in person.items():
            known = self._described(key) or key
            if known in self._tables[PERSON]:
                raise Invalid(
                    f'{path} describes one model twice, the second time as ["{key}"]; keep one of the tables.'
                )
            self._tables[PERSON][known] = told
            self._keys.setdefault(parse_name(known).label, known)
        self._learn(PERSON)

    def models(self) -> list[str]:
        """Every model that there is a table for, in the files' order."""
        return list(dict.fromkeys([*self._tables[LINK], *self._tables[PERSON]]))

    def known(self, name: str) -> Known | None:
        """What is known of the model of that name, as any runtime may spell it; None for nothing."""
        key = self._described(name, loosely=True, alias_first=True)
        return None if key is None else self.named(key)

    def named(self, key: str) -> Known:
        """What is known of the model whose table has the name `key`: its family's table beneath its own."""
        fields: dict[str, Any] = {}
        sources: dict[str, str] = {}
        for source in (LINK, PERSON):
            for each in self._above(key):
                if told := self._tables[source].get(each):
                    said = {name: getattr(told, name) for name in told.__struct_fields__}
                    said = {name: value for name, value in said.items() if value is not None}
                    fields |= said
                    sources |= dict.fromkeys(said, source)
        names = dict(zip(Told.__struct_fields__, FIELDS, strict=True))
        return Known(model=key, told=Told(**fields), sources={names[name]: at for name, at in sources.items()})

    def family(self, name: str) -> str | None:
        """The model that the one of that name is a size of, or itself; None where nothing is known of it."""
        key = self._described(name, loosely=True, alias_first=True)
        return None if key is None else next(self._above(key))

    def need(self, name: str) -> Known:
        """The same. Raises Missing, saying how to describe a model that nothing is known of."""
        if known := self.known(name):
            return known
        raise Missing(
            f'Nothing is known of {name!r}; write a table ["{name}"] with {", ".join(FIELDS[:6])}'
            f" into {self.path}, as far as you know them."
        )

    def facts(self, name: str) -> Facts:
        """What has to be known to ask the model of that name; all as for a model that nothing is known of, if so."""
        known = self.known(name)
        return known.told.facts if known else Facts()

    def same(self, asked: str, listed: str) -> bool:
        """Whether a runtime's model `listed` is the model `asked`, never merely one like it.

        Names are compared as Ollama does (`x` is `x:latest`), then by what the files say a model is called elsewhere.
        A copy of another precision is the same model, unless `asked` says which.
        """
        if full_name(asked) == full_name(listed):
            return True
        one, other = parse_name(asked), parse_name(listed)
        if one.precision and one.precision != other.precision:
            return False
        if (one.place, one.label) == (other.place, other.label):
            return True
        key = self._described(asked, alias_first=True)
        return key is not None and key == self._described(listed, alias_first=True)

    def _learn(self, source: str) -> None:
        """The names that the tables of `source` list; what is learnt later stands over what was."""
        for key, told in self._tables[source].items():
            self._names |= {(each.place, each.label): key for each in map(parse_name, told.names)}

    def _described(self, name: str, *, loosely: bool = False, alias_first: bool = False) -> str | None:
        """The table of the model of that name: `loosely`, that of one from another place or of its family too.

        A table's own name means that table; any other name what the lists of names say: `x:latest` may be a size.
        """
        said = parse_name(name)
        own = self._keys.get(said.label) if loosely or not said.place else None
        alias = self._names.get((said.place, said.label))
        if alias is None and loosely:
            alias = next((key for (_, label), key in self._names.items() if label == said.label), None)
        found = (alias or own) if alias_first else (own or alias)
        return found or (self._keys.get(said.base) if loosely else None)

    def _above(self, key: str) -> Iterator[str]:
        """The family that a table is a size of, then the table."""
        family, colon, _ = key.partition(":")
        if colon and (above := self._keys.get(parse_name(family).label)):
            yield above
        yield key


def read_catalogue(environment: Mapping[str, str]) -> Catalogue:
    """Link's facts and the person's. Raises Invalid and Corrupt for a file of the person's that is not right."""
    path = config_file(environment, FILE)
    own = f"{__file__.rpartition('/')[0]}/facts.toml"
    return Catalogue(_read(own), _read(path), path)


def _read(path: str) -> dict[str, Told]:
    tables = read_toml(path)
    if len(tables) > MODELS_MAX:
        raise Invalid(f"{path} describes {len(tables):,} models; keep it to {MODELS_MAX:,}.")
    return {key: _told(path, key, table) for key, table in tables.items()}


def _told(path: str, key: str, table: object) -> Told:
    if not isinstance(table, dict):
        raise Invalid(f'{path} has {key!r} outside any table; put it under its model, e.g. ["qwen3-embedding:0.6b"].')
    for field, value in table.items():
        if field not in FIELDS:
            quote = f'; a name with a dot stands in quotes, ["{key}.{field}"]' if isinstance(value, dict) else ""
            raise Invalid(f'{path} has {field!r} in ["{key}"], but only {", ".join(FIELDS)} may stand there{quote}.')
    told = convert(table, Told, f'{path}, ["{key}"],')
    try:
        _ = told.facts
        _check(told)
    except LinkError as error:
        raise Invalid(f'{path}, ["{key}"]: {error}') from None
    return told


def _check(told: Told) -> None:
    if told.native is not None and not max(1, told.dims or 1) <= told.native <= DIMS_MAX:
        raise Invalid(f'"native" is {told.native}; give a number from "dims" to {DIMS_MAX:,}.')
    if len(told.names) > NAMES_MAX or any(not 0 < len(name) <= NAME_CHARS_MAX for name in told.names):
        raise Invalid(f"a model has at most {NAMES_MAX} names, none empty or over {NAME_CHARS_MAX} characters.")
