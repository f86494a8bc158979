"""The agent's opinions for its memory, `[tool.memory]` of its spec, as every engine's command gets them."""

import re
from typing import Annotated, Final

from msgspec import Meta

from lnk.contract.shape import Value, parse
from lnk.errors import Invalid

MODEL_ASKED: Final = "qwen3-embedding"
# Reserved: no runtime has a model of these names.
NONE: Final = "none"  # words alone
BUILTIN: Final = "builtin"  # the encoder that the engine runs itself, where it is installed
MODEL_CHARS_MAX: Final = 120
NOTES_BYTES: Final = 4096
NOTES_BYTES_MAX: Final = 1 << 20  # notes stand in every prompt: more than this is a typo
TOKENS_MIN: Final = 50
TOKENS_MAX: Final = 50_000

_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*(:[A-Za-z0-9._-]+)?")
_SIZE = re.compile(r"(\d{1,9}) ?(B|KB|MB)?")
_UNITS = {None: 1, "B": 1, "KB": 1024, "MB": 1024 * 1024}


class Spec(Value, frozen=True):
    """`$LNK_MEMORY_SPEC`: an embedding `model`, `tokens` an answer holds, what the `notes` hold.

    `model` "none" is words alone, "builtin" the built-in encoder alone.
    """

    model: Annotated[str, Meta(description='a model\'s name in quotes, or "none" or "builtin"')] | None = None
    tokens: Annotated[int, Meta(description=f"a whole number from {TOKENS_MIN} to {TOKENS_MAX:,}")] | None = None
    notes: Annotated[str, Meta(description='a size such as "4 KB", at most "1 MB"')] | None = None

    @property
    def notes_bytes(self) -> int:
        """The most bytes that the notes hold."""
        return NOTES_BYTES if self.notes is None else parse_size(self.notes)

    @property
    def model_asked(self) -> str | None:
        """The embedding model that is to be served from outside, or None where nothing is."""
        return None if self.model in (NONE, BUILTIN) else self.model or MODEL_ASKED


def parse_spec(text: str) -> Spec:
    """The spec in `text` (empty: all as Link has it). Raises Invalid, naming the key and what it may be."""
    if not text.strip():
        return Spec()
    spec = parse(text, Spec, "the memory spec ($LNK_MEMORY_SPEC, [tool.memory])")
    check_spec(spec)
    return spec


def check_spec(spec: Spec) -> None:
    """Raises Invalid where something in it cannot be."""
    if spec.model is not None:
        check_model(spec.model)
    if spec.tokens is not None and not TOKENS_MIN <= spec.tokens <= TOKENS_MAX:
        raise Invalid(f'The spec\'s "tokens" is {spec.tokens}; give a number from {TOKENS_MIN} to {TOKENS_MAX:,}.')
    if spec.notes is not None:
        parse_size(spec.notes)


def check_model(name: str) -> None:
    """Raises Invalid where `name` is not a model's name."""
    if len(name) > MODEL_CHARS_MAX or not _MODEL.fullmatch(name):
        raise Invalid(
            f"The spec's \"model\" is {name[:MODEL_CHARS_MAX]!r}, which is not a model's name; "
            'write e.g. "qwen3-embedding" or "qwen3-embedding:0.6b", or "none" to search by words only.'
        )


def parse_size(text: str, what: str = 'The spec\'s "notes"') -> int:
    """Bytes of a size as a person writes it: "4 KB" is 4,096. Raises Invalid, beginning with `what` it is."""
    found = _SIZE.fullmatch(text.strip())
    size = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 1 <= size <= NOTES_BYTES_MAX:
        raise Invalid(f'{what} is {text[:40]!r}; give a size such as "4 KB", at most "1 MB".')
    return size


def format_size(size: int) -> str:
    """A size for a person: 4,096 bytes is "4 KB"."""
    for unit, factor in (("MB", 1024 * 1024), ("KB", 1024)):
        if size >= factor:
            return f"{size / factor:.1f}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{size} bytes" if size != 1 else "1 byte"
