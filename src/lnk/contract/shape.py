"""One definition gives the type, the parser and the JSON Schema: the few lines that all contract values share."""

from typing import Any, TypeVar

import msgspec

from lnk.errors import Invalid


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A value of the contract: frozen, named fields only, checked once on entry, defaults left out when written."""


T = TypeVar("T")


def parse(text: str | bytes, kind: type[T], what: str) -> T:
    """`text` read as JSON into a `kind`. Raises Invalid with one sentence that names `what` and the field."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise Invalid(f"{what} is not valid: {_plain(error)}.") from None


def convert(value: Any, kind: type[T], what: str) -> T:
    """The same for JSON that is parsed already."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError, UnicodeError) as error:
        raise Invalid(f"{what} is not valid: {_plain(error)}.") from None


def format_value(value: Any) -> str:
    """`value` as compact JSON."""
    return msgspec.json.encode(value).decode()


def schema(kind: Any) -> dict[str, Any]:
    """The JSON Schema of `kind` (draft 2020-12), without references, so that it stands alone."""
    (found,), parts = msgspec.json.schema_components([kind], ref_template="{name}")
    return _inline(found, parts)  # type: ignore[no-any-return]


def _inline(node: Any, parts: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inline(item, parts) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inline(parts[node["$ref"]], parts)
    kept = {
        key: _inline(value, parts) for key, value in node.items() if not (key == "title" and isinstance(value, str))
    }
    if kept.get("required") == []:
        del kept["required"]
    if "enum" in kept and all(isinstance(each, str) for each in kept["enum"]):
        kept = {"type": "string", **kept}  # some clients take an enum with its type only
    return _optional(kept)


def _optional(node: dict[str, Any]) -> dict[str, Any]:
    """A field that may be left out is that: not one that may be null, whatever Python writes for it."""
    either = node.get("anyOf")
    if either and {"type": "null"} in either and node.get("default", 0) is None:
        rest = [choice for choice in either if choice != {"type": "null"}]
        extra = {key: value for key, value in node.items() if key not in ("anyOf", "default")}
        return {**(rest[0] if len(rest) == 1 else {"anyOf": rest}), **extra}
    return node


def _plain(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    text = str(error).rstrip(".").replace("`$.", "`").replace(" - at `$`", "")
    return text[:1].lower() + text[1:]
