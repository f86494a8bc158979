"""Links: what a document links to, and what links to it, matched against the documents there are when asked."""

from typing import NamedTuple

from lnk.memory.budget import Budget
from lnk.memory.filters import INDEXED
from lnk.memory.index import Index
from lnk.memory.names import bare, folded, folded_name
from lnk.memory.values import LinkFrom, LinkTo


class Target(NamedTuple):
    """A document that a link means."""

    path: str
    title: str


class Resolver:
    """Matches links as written with the documents of one index, remembering what it found."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._found: dict[tuple[str, bool], Target | None] = {}

    def target(self, document: int, number: int, wiki: bool) -> Target | None:
        """The document that a link means: by its exact name first, so that `C# notes` is not a heading of `C`."""
        rows = self._index.rows(
            "SELECT target, name FROM link_targets WHERE document = ? AND number = ? ORDER BY rank", document, number
        )
        for target, name in rows:
            key = (target, wiki)
            if key not in self._found:
                self._found[key] = self._wiki(target, name) if wiki else self._path(target, name)
            if found := self._found[key]:
                return found
        return None

    def _named(self, name: str) -> list[Target]:
        rows = self._index.rows(f"SELECT path, title FROM documents WHERE name = ? AND {INDEXED}", name)
        return sorted((Target(*row) for row in rows), key=lambda each: (len(each.path), each.path))

    def _wiki(self, target: str, name: str) -> Target | None:
        """By path or by file name; of several the one with the shortest path, then the first by letter."""
        tail = "/" + folded(bare(target))
        for one in self._named(name):
            if "/" not in target or folded(bare("/" + one.path)).endswith(tail):
                return one
        return None

    def _path(self, target: str, name: str) -> Target | None:
        named = self._named(name)
        for same in (lambda each: each == target, lambda each: folded(bare(each)) == folded(bare(target))):
            for one in named:
                if same(one.path):
                    return one
        return None


def links_of(index: Index, path: str, budget: Budget) -> tuple[list[LinkTo], list[LinkFrom], int]:
    """The links of the document `path`, those to it, and how many did not fit."""
    resolver = Resolver(index)
    rows = index.rows(
        "SELECT line, written, document, number, wiki FROM links JOIN documents ON documents.id = document"
        " WHERE path = ? ORDER BY number",
        path,
    )
    to = [_link_to(line, written, resolver.target(*link)) for line, written, *link in rows]
    rows = index.rows(
        "SELECT path, title, line, written, links.document, links.number, wiki FROM links"
        " JOIN documents ON documents.id = links.document WHERE (links.document, links.number) IN"
        " (SELECT document, number FROM link_targets WHERE name = ?) ORDER BY path, links.number",
        folded_name(path),
    )
    back = [
        LinkFrom(path=where, title=title, line=line, written=written)
        for where, title, line, written, *link in rows
        if (found := resolver.target(*link)) and found.path == path
    ]
    budget.spend(path)
    kept_to = budget.fill(to)
    kept_back = budget.fill(back)
    return kept_to, kept_back, len(to) - len(kept_to) + len(back) - len(kept_back)


def _link_to(line: int, written: str, found: Target | None) -> LinkTo:
    if found is None:
        return LinkTo(line=line, written=written, missing=True)
    return LinkTo(line=line, written=written, path=found.path, title=found.title)
