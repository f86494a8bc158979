"""`check`, `status` and `reindex`: the index held against the folder, what is in it, and made anew.

No model is asked anything, and the built-in encoder is not loaded: what is said of them is what the index holds.
"""

import argparse
import contextlib
import os
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from lnk import confine
from lnk.contract.spec import BUILTIN, Spec, parse_spec
from lnk.documents.content import FILE_BYTES_MAX
from lnk.errors import LinkError, Unavailable
from lnk.folder import Folder, make_folder, must_be_folder
from lnk.memory import builtin, embedded
from lnk.memory.embedding import TITLE
from lnk.memory.index import CHUNK_BITS, Index
from lnk.memory.keeper import Keeper
from lnk.memory.meaning import which
from lnk.memory.parse import digest_of
from lnk.memory.times import format_time
from lnk.memory.walk import Report, Source

WAIT_S: Final = 24 * 3600.0  # a person waits as long as it takes, and has Ctrl-C
SHOWN: Final = 20
DIFFERENT: Final = 1

# A title's vector is its document's; one without a chunk is out of use, and is deleted when embedding comes to it.
_VECTORS_OF_NOTHING: Final = """\
SELECT count(*) FROM vectors WHERE chunk IS NOT NULL AND NOT EXISTS (SELECT 1 FROM chunks WHERE id = chunk)
AND NOT (chunk & ? = ? AND EXISTS (SELECT 1 FROM documents WHERE id = chunk >> ?))"""


def run(asked: argparse.Namespace, environment: Mapping[str, str]) -> int:
    """One of the three commands. Its exit status. Raises Invalid for a spec that every other command refuses too."""
    spec = parse_spec(environment.get("LNK_MEMORY_SPEC", ""))
    folder, state = os.path.abspath(asked.folder), os.path.abspath(asked.state)
    documents = os.path.abspath(asked.documents) if asked.documents else f"{folder}/memory"
    must_be_folder(folder, "The folder to index")
    if asked.documents:
        must_be_folder(documents, "The folder of documents")
    make_folder(state)
    sources = [Source("document", documents)]
    if asked.agent:
        sources.append(Source("conversation", f"{os.path.abspath(asked.agent)}/chats"))
    with Folder.open(os.path.realpath(state)) as held:
        index = Index(held)
        try:
            if asked.command == "check":
                return _say(asked, *_check(index, sources))
            if asked.command == "reindex":
                with index.alone(), index.writing():
                    index.clear()
                index.overwrite()
            found = _status(index, held, sources, state, told=asked.progress)
            found["meaning"] = meaning(index, spec, served=bool(environment.get("LNK_MEMORY_MODEL")))
            return _say(asked, found, 0)
        finally:
            index.close()


def _say(asked: argparse.Namespace, found: dict[str, Any], status: int) -> int:
    text = msgspec.json.encode(found)
    if not asked.json:
        text = msgspec.json.format(text, indent=2)
    sys.stdout.write(text.decode() + "\n")
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has seen enough; nothing is left to write at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


def _status(index: Index, held: Folder, sources: list[Source], state: str, *, told: bool) -> dict[str, Any]:
    """Brings the index up to date, saying how far it is on a terminal, and counts what it holds."""
    stale = _bring_up(held, sources, told=told)
    reasons = index.rows(
        "SELECT left_out, count(*) FROM documents WHERE left_out IS NOT NULL GROUP BY 1 ORDER BY 2 DESC"
    )
    left_out = Counter(dict(reasons))
    for source in sources:
        left_out += _listed(source)[1].left_out
    kinds = dict(index.rows("SELECT kind, count(*) FROM documents WHERE left_out IS NULL GROUP BY kind"))
    found: dict[str, Any] = {
        "documents": kinds.get("document", 0),
        "conversations": kinds.get("conversation", 0),
        "chunks": index.value("SELECT count(*) FROM chunks"),
        "text_bytes": index.value("SELECT coalesce(sum(bytes), 0) FROM documents WHERE left_out IS NULL"),
        "index_bytes": _index_bytes(state),
        "left_out": dict(left_out),
        "removed": index.value("SELECT count(*) FROM removed"),
        "made": format_time((index.fact("made") or 0) / 1_000_000),
        "folders": [source.path for source in sources],
        "state": state,
    }
    if open_to := confine.open_points():
        found["parsers"] = open_to
    if again := index.fact("again"):
        found["made_again"] = f"{again}; first-seen times and the removed list from before are lost"
    if stale:
        found["stale"] = stale
    return found


def _index_bytes(state: str) -> int:
    """All that the index takes, with its log and the vectors beside it."""
    size = 0
    for name in os.listdir(state):
        with contextlib.suppress(FileNotFoundError):
            size += os.path.getsize(f"{state}/{name}")
    return size


def meaning(index: Index, spec: Spec, *, served: bool) -> dict[str, Any]:
    """Which models have vectors here, and which of them ranks. `served`: the model that is asked for has an address.

    `asked`: the model that the spec names, or else is asked for; `named`: it names it. `model`: the one that ranks,
    or None for words alone; `vectors`: each model's that has some, of how many of the passages, `of`.
    """
    vectors = [
        {"model": name, "dims": dims, "passages": embedded.progress(index, number).done}
        for name, dims, number in index.rows("SELECT name, dims, max(id) FROM models GROUP BY name ORDER BY 3 DESC")
    ]
    had = {each["model"]: each["passages"] for each in vectors}
    of = embedded.progress(index, None).of
    return {
        "asked": spec.model_asked or (BUILTIN if spec.model == BUILTIN else None),
        "named": spec.model is not None,
        "model": _ranking(spec, had, of, served=served),
        "of": of,
        "vectors": [each for each in vectors if each["passages"]],
    }


def _ranking(spec: Spec, had: Mapping[str, int], of: int, *, served: bool) -> str | None:
    """The one of the models that are there which a search uses; `had`: how many passages have each one's vectors."""
    there = [spec.model_asked] if served and spec.model_asked else []
    if spec.model in (None, BUILTIN) and builtin.installed():
        there.append(BUILTIN)
    at = which([had.get(name, 0) / max(1, of) for name in there])
    return None if at is None else there[at]


def _bring_up(held: Folder, sources: list[Source], *, told: bool) -> str | None:
    keeper = Keeper(lambda: Index(held), [Source(source.kind, source.path) for source in sources])
    keeper.start()

    def progress(done: int, of: int) -> None:
        if told:
            sys.stderr.write(f"progress {done} {of}\n")
            sys.stderr.flush()

    try:
        return keeper.fresh(progress, WAIT_S).stale
    finally:
        keeper.stop(WAIT_S)


def _listed(source: Source) -> tuple[dict[str, bytes], Report]:
    report = Report()
    try:
        folder = source.open()
    except LinkError:
        return {}, report
    with folder:
        source.read_ignore(folder)
        return {one.path: one.stamp for one in source.walk(folder, report, lambda handle, prefix: None)}, report


def _check(index: Index, sources: list[Source]) -> tuple[dict[str, Any], int]:
    """What differs between index and folder, and whether SQLite and FTS5 find the file whole."""
    here: dict[str, bytes] = {}
    for source in sources:
        here |= _listed(source)[0]
    with index.reading():
        known = dict(index.db.execute("SELECT path, stamp FROM documents"))
    missing = sorted(here.keys() - known.keys())
    gone = sorted(known.keys() - here.keys())
    changed = sorted(path for path in here.keys() & known.keys() if here[path] != known[path] and known[path])
    waiting = sorted(path for path in here.keys() & known.keys() if not known[path] and not _same(index, sources, path))
    damage = _damage(index)
    found = {
        "documents": len(here),
        "not_indexed": missing[:SHOWN],
        "gone": gone[:SHOWN],
        "changed": changed[:SHOWN],
        "waiting": waiting[:SHOWN],
        "damage": damage,
        "differences": len(missing) + len(gone) + len(changed) + len(waiting) + len(damage),
    }
    return found, DIFFERENT if found["differences"] else 0


def _same(index: Index, sources: list[Source], path: str) -> bool:
    """Whether a file that is to be read again, since it was read just when it changed, is what the index has."""
    digest = index.value("SELECT digest FROM documents WHERE path = ?", path)
    source = next(each for each in sources if path.startswith(each.prefix))
    try:
        with source.open() as folder:
            data = folder.read(path[len(source.prefix) :], FILE_BYTES_MAX)
    except LinkError:
        return False
    return data is not None and digest == digest_of(data)


def _damage(index: Index) -> list[str]:
    """What SQLite and FTS5 say is wrong with the file. Raises Unavailable where it cannot be asked."""
    try:
        with index.reading():
            told = [str(row[0]) for row in index.rows("PRAGMA integrity_check(20)")]
        found = [] if told == ["ok"] else told
        with index.writing():
            index.db.execute("INSERT INTO words (words, rank) VALUES ('integrity-check', 0)")
        with index.reading():
            chunks = index.value("SELECT count(*) FROM chunks")
            rows = index.value("SELECT count(*) FROM words_docsize")
            vectors = index.value(_VECTORS_OF_NOTHING, TITLE, TITLE, CHUNK_BITS)
        if chunks != rows:
            found.append(f"{chunks} chunks, but the words of {rows}")
        if vectors:
            found.append(f"{vectors} vectors of passages that are not there")
    except Unavailable:
        raise
    except LinkError as error:
        return [str(error)]
    return found
