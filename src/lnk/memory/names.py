"""Paths and names of documents: what links call them, and what a path in the folder may be. No I/O."""

import unicodedata
from typing import Final

ROOTS: Final = {"document": "memory", "conversation": "chats"}
NOTES: Final = "notes.md"
SKILLS: Final = "skills"
NOT_UTF8_MARK: Final = "\0"
_NOTE_ENDINGS = (".md", ".markdown", ".mdx")


def folded(text: str) -> str:
    """`text` as names are compared: composed, without regard to case."""
    return unicodedata.normalize("NFC", text).casefold()


def stem(path: str) -> str:
    """A file's name without its ending."""
    name = path.rpartition("/")[2]
    return name.rpartition(".")[0] or name


def bare(name: str) -> str:
    """`name` without the ending of a note, which a wiki link leaves out."""
    for ending in _NOTE_ENDINGS:
        if name.casefold().endswith(ending) and len(name) > len(ending):
            return name[: -len(ending)]
    return name


def folded_name(path: str) -> str:
    """What a link calls the file at `path`: its name, folded, a note's without its ending."""
    return folded(bare(path.rpartition("/")[2]))


def resolve(document: str, target: str) -> str | None:
    """The path in the folder that `target` means in `document`; None where it leads out of the folder's root."""
    parts = document.split("/")[:-1]
    for part in target.split("/"):
        if part == "..":
            if len(parts) <= 1:
                return None
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


def key(path: str) -> str:
    """A path as the index keeps it: its own, or where it is not UTF-8 its bytes as \\xNN.

    The mark behind the latter stands in no file's name, so that it never is the path of a file that spells it.
    """
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") + NOT_UTF8_MARK
    return path


def shown(path: str) -> str:
    """A path of the index for an answer."""
    return path.removesuffix(NOT_UTF8_MARK)
