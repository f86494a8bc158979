"""Bytes to text by an encoding's name. All of them are loaded with this module: later, nothing can be."""

import codecs
from encodings import normalize_encoding
from encodings.aliases import aliases
from typing import Final

# What says one and means a larger one, as every mail program and browser takes it.
_MEANT: Final = {
    "ascii": "cp1252",
    "latin_1": "cp1252",
    "iso8859_9": "cp1254",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "big5": "big5hkscs",
}
_NAMES: Final = {"iso_8859_8_i": "hebrew", "x_sjis": "cp932", "x_gbk": "gb18030", "unicode_1_1_utf_7": "utf_7"}


_NO_TEXT: Final = frozenset("base64_codec bz2_codec hex_codec quopri_codec rot_13 uu_codec zlib_codec".split())


def _load() -> frozenset[str]:
    found = set()
    for name in {*aliases.values(), "cp874", "koi8_u"} - _NO_TEXT:
        try:
            codecs.lookup(name)
        except LookupError:  # one of another system
            continue
        found.add(name)
    return frozenset(found)


_LOADED: Final = _load()


def decode(data: bytes, name: str | None) -> str:
    """The text of `data`; wrong bytes become U+FFFD. By no name that is known: UTF-8 where it is that, or cp1252."""
    key = normalize_encoding(name or "").lower()
    encoding = _NAMES.get(key) or aliases.get(key) or aliases.get(key.replace("_", "")) or key
    if encoding in ("", "ascii") or encoding not in _LOADED:
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            encoding = "cp1252"
    return data.decode(_MEANT.get(encoding, encoding), "replace")
