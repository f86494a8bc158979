"""Sets to measure what is found: documents and questions as files hold them, and two sets made from others.

A set is a folder with `docs.jsonl` (id, text; title, date, scope) and `queries.jsonl` (id, query, relevant; category,
scope, exclude). A question with a scope is asked against the documents of that scope alone. Knows no engine.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from lnk.errors import LinkError, Usage

T = TypeVar("T")

_ADDED: Final = (
    "Looked over once more since then, and it still holds.",
    "Nothing else about it differs nowadays.",
    "Asked around afterwards, everybody still agrees.",
    "Some of this may yet turn out otherwise.",
)
# Small words for small words: the texts then differ, and what they say does not.
_CHANGED: Final = {
    "all": "each",
    "an": "one",
    "and": "plus",
    "are": "stay",
    "before": "until",
    "by": "through",
    "for": "towards",
    "from": "out of",
    "in": "within",
    "is": "remains",
    "never": "not ever",
    "no": "not any",
    "on": "upon",
    "only": "just",
    "or": "else",
    "the": "that",
    "to": "towards",
    "with": "alongside",
}
_SAME_MOST: Final = 0.88  # from nine words in ten on it is a copy, and a copy comes once
_WORD: Final = re.compile(r"\w+")
_NUMBER: Final = re.compile(r"(?<![\w.])\d+(?![\w.])")


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A text to be found. `date`: when it is from (ISO 8601)."""

    id: str
    text: str
    title: str = ""
    date: str | None = None
    scope: str = ""

    def __post_init__(self) -> None:
        if self.date is not None:
            datetime.fromisoformat(self.date)


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked, and the ids of what answers it. `exclude` is taken out of a ranking before it is counted.

    `older`: the older version of the one relevant document.
    """

    id: str
    query: str
    relevant: tuple[str, ...]
    category: str = ""
    scope: str = ""
    exclude: tuple[str, ...] = ()
    older: str = ""


class Set(msgspec.Struct, frozen=True, kw_only=True):
    """Documents and the questions about them."""

    name: str
    documents: list[Document]
    questions: list[Question]


class Folder:
    """The sets beneath one folder; the questions that were held out may lie beneath another."""

    def __init__(self, path: Path, held: Path | None, which: str) -> None:
        """`which` questions: open, held or all. Raises Usage."""
        if not path.is_dir():
            raise Usage(f"There is no folder of sets at {path}; name one with --sets or $LNK_BENCH_SETS.")
        if which != "open" and held is None:
            raise Usage(f"--which {which} asks questions that were held out; say with --held where they are.")
        self._path = path
        places: dict[str, list[Path | None]] = {"open": [path], "held": [held], "all": [path, held]}
        self._questions = places[which]

    def names(self) -> list[str]:
        """What there is: the sets, and those that can be made from them. Raises Usage where there is none."""
        found = sorted(each.parent.name for each in self._path.glob("*/docs.jsonl"))
        if not found:
            raise Usage(f"There is no set in {self._path}: a set is a folder with docs.jsonl and queries.jsonl.")
        return found + [name for name, (source, _) in MADE.items() if source in found]

    def load(self, name: str) -> Set:
        """The set `name`. Raises Usage where a file of it is not there, or holds something else."""
        if name in MADE:
            source, make = MADE[name]
            return make(self.load(source))
        questions = [each for at in self._questions if at for each in read_lines(at / name / "queries.jsonl", Question)]
        return Set(name=name, documents=read_lines(self._path / name / "docs.jsonl", Document), questions=questions)


def read_lines(file: Path, kind: type[T]) -> list[T]:
    """The JSON lines of a file. Raises Usage where it is not there, or holds something else."""
    try:
        return msgspec.json.Decoder(kind).decode_lines(file.read_bytes())
    except OSError as error:
        raise Usage(f"Could not read {file}: {error.strerror}.") from None
    except msgspec.DecodeError as error:
        raise Usage(f"{file} is not what a set holds: {error}.") from None


def scopes(found: Set) -> dict[str, tuple[list[Document], list[Question]]]:
    """A set's documents and questions by scope. Raises LinkError where a question is about no document."""
    parts: dict[str, tuple[list[Document], list[Question]]] = {}
    for document in found.documents:
        parts.setdefault(document.scope, ([], []))[0].append(document)
    known = {(document.scope, document.id) for document in found.documents}
    for question in found.questions:
        if not question.relevant or any((question.scope, each) not in known for each in question.relevant):
            raise LinkError(f"{found.name}: what answers {question.id} is not among the documents of its scope.")
        parts[question.scope][1].append(question)
    return {scope: part for scope, part in parts.items() if part[1]}


# ---------------------------------------------------------------- sets made from others


def old_new(source: Set) -> Set:
    """Each document twice, years apart, saying nearly the same; the newer answers its questions.

    In turn the newer has a sentence more, other small words and numbers, or a sentence less, so that neither length
    nor wording says which is the newer. No id and no path does either.
    """
    documents: list[Document] = []
    newer: dict[str, tuple[str, str, str]] = {}
    for number, document in enumerate(source.documents):
        how, before, after = _versions(number, document)
        ids = [f"{document.id}.1", f"{document.id}.2"]
        old, new = ids if number % 2 else reversed(ids)
        year = 2015 + number % 5
        documents.append(_version(document, old, before, year))
        documents.append(_version(document, new, after, year + 2 + number % 4))
        newer[document.id] = (new, old, how)
    questions = []
    for question in source.questions:
        new, old, how = newer[question.relevant[0]]
        questions.append(
            Question(
                id=question.id,
                query=question.query,
                relevant=(new,),
                older=old,
                category=how,
                scope=question.scope,
            )
        )
    return Set(name="old_new", documents=documents, questions=questions)


def _versions(number: int, document: Document) -> tuple[str, str, str]:
    """How the newer differs, the older text, the newer text."""
    sentence = _ADDED[number % len(_ADDED)]
    longer = f"{document.text}\n\n{sentence}"
    if number % 3 == 1:
        changed = _changed(document.text)
        if alike(f"{document.title} {document.text}", f"{document.title} {changed}") < _SAME_MOST:
            return "changed", *((document.text, changed) if number % 2 else (changed, document.text))
    if number % 3 == 2:
        return "shorter", longer, document.text
    return "longer", document.text, longer


def _version(document: Document, name: str, text: str, year: int) -> Document:
    return Document(id=name, title=document.title, text=text, date=f"{year}-03-01", scope=document.scope)


def _changed(text: str) -> str:
    text = _NUMBER.sub(lambda found: str(int(found[0]) + 1), text)
    return _WORD.sub(lambda found: _CHANGED.get(found[0], found[0]), text)


def alike(one: str, other: str) -> float:
    """The share of the longer's words that stand in the other as often."""
    first, second = (Counter(_WORD.findall(text.lower())) for text in (one, other))
    return (first & second).total() / max(first.total(), second.total(), 1)


def across(source: Set, languages: Sequence[str] = ("en", "zh")) -> Set:
    """Questions of one language against the other's paragraphs alone. The ids in `source` begin with their language."""
    asked = {question.id: question for question in source.questions}
    questions = []
    for one, other in (languages, reversed(languages)):
        for question in source.questions:
            twin = asked.get(f"{other}:{question.id.partition(':')[2]}")
            if question.scope == one and twin:
                name, way = f"{question.id} in {other}", f"{one} to {other}"
                questions.append(
                    Question(id=name, query=question.query, relevant=twin.relevant, scope=other, category=way)
                )
    documents = [document for document in source.documents if document.scope in languages]
    return Set(name="xquad_across", documents=documents, questions=questions)


MADE: Final[dict[str, tuple[str, Callable[[Set], Set]]]] = {
    "old_new": ("link_recall", old_new),
    "xquad_across": ("xquad", across),
}
