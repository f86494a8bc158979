"""Models' names: which two mean the same model, and which family a name belongs to. Pure.

A runtime has its own spelling for the same model: Ollama `qwen3-embedding:0.6b`, LM Studio
`text-embedding-qwen3-embedding-0.6b`, a llama.cpp server `/models/Qwen3-Embedding-0.6B-Q8_0.gguf`.
"""

import re
from typing import Final

from lnk.contract.shape import Value

LATEST: Final = "latest"  # what Ollama takes where no tag is given

_OURS: Final = ("registry.ollama.ai/", "library/")  # what Ollama puts before a name without a path
_FILE_END: Final = ".gguf"
_LISTED: Final = "text-embedding-"  # what LM Studio puts before an embedding model's name
# How exactly a copy keeps the model's numbers: said at the end of a file's name, of a tag, or behind LM Studio's @.
_PRECISION = re.compile(r"(?:^|[-._@])((?:ud-)?(?:i?q\d(?:_[a-z0-9]+)*|b?f16|f32|fp16|fp32|mxfp4|[2-8]bit))$")
_KIND = re.compile(r"[-._]gguf$")


class Name(Value, frozen=True):
    """A name taken apart, in lower case: `place` is what stands before its last `/` (not of a file's path)."""

    place: str
    base: str
    tag: str
    precision: str

    @property
    def label(self) -> str:
        """The model, without who keeps it and how exactly: `qwen3-embedding-0.6b`."""
        return f"{self.base}-{self.tag}" if self.tag else self.base


def parse_name(name: str) -> Name:
    """A model's name as a person or any of the runtimes writes it."""
    text = name.lower()
    for before in _OURS:
        text = text.removeprefix(before)
    place, _, last = text.rpartition("/")
    if last.endswith(_FILE_END):
        place = ""
    last, _, tag = last.partition(":")
    tag, tagged = _without_precision("" if tag == LATEST else tag)
    base, named = _without_precision(last)
    place = re.sub("^huggingface.co/", "hf.co/", place)
    return Name(place=place, base=base.removeprefix(_LISTED), tag=tag, precision=tagged or named)


def full_name(name: str) -> str:
    """`name` as Ollama keeps it: in lower case, with its tag, without the registry and folder it has by itself."""
    text = name.lower()
    for before in _OURS:
        text = text.removeprefix(before)
    return text if ":" in text.rpartition("/")[2] else f"{text}:{LATEST}"


def _without_precision(text: str) -> tuple[str, str]:
    """`text` without what it says of its copy at its end, and how exact the copy is."""
    precision = ""
    while True:
        if found := _PRECISION.search(text):
            text, precision = text[: found.start()], found[1]
        elif _KIND.search(text):
            text = _KIND.sub("", text)
        else:
            return text, precision
