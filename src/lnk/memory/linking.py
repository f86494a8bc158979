"""Links: what a document links to, and what links to it, matched against the documents there are when asked."""

from typing import Any, NamedTuple

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
        self._found: dict[tuple[Any, ...], Target | None] = {}

    def target(self, target: str, plain: str, name: str, plain_name: str, wiki: bool) -> Target | None:
        """The document that a link means: by its exact name first, so that `C# notes` is not a heading of `C`."""
        key = (target, plain, wiki)
        if key not in self._found:
            find = self._wiki if wiki else self._path
            self._found[key] = find(target, name) or (find(plain, plain_name) if plain != target else None)
        return self._found[key]

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
        "SELECT line, written, target, plain_target, links.name, plain_name, wiki FROM links"
        " JOIN documents ON documents.id = document WHERE path = ? ORDER BY number",
        path,
    )
    to = [_link_to(line, written, resolver.target(*link)) for line, written, *link in rows]
    name = folded_name(path)
    rows = index.rows(
        "SELECT path, title, line, written, target, plain_target, links.name, plain_name, wiki FROM links"
        " JOIN documents ON documents.id = document WHERE links.name = ?1 OR plain_name = ?1 ORDER BY path, number",
        name,
    )
    back = [
        LinkFrom(path=where, title=title, line=line, written=written)
        for where, title, line, written, *link in rows
        if (found := resolver.target(*link)) and found.path == path
    ]
    kept_to = budget.fill(to)
    kept_back = budget.fill(back)
    return kept_to, kept_back, len(to) - len(kept_to) + len(back) - len(kept_back)


def _link_to(line: int, written: str, found: Target | None) -> LinkTo:
    if found is None:
        return LinkTo(line=line, written=written, missing=True)
    return LinkTo(line=line, written=written, path=found.path, title=found.title)
