"""The person's files of settings: where they lie, and what they say."""

import os
from collections.abc import Mapping
from typing import Any, Final

from lnk.errors import Corrupt, Full, from_os

FILE_BYTES_MAX: Final = 1 << 20


def config_file(environment: Mapping[str, str], name: str) -> str:
    """`~/.config/lnk/<name>`, or where `$XDG_CONFIG_HOME` says; by that standard a relative one does not count."""
    folder = environment.get("XDG_CONFIG_HOME", "")
    if not folder.startswith("/"):
        folder = f"{environment.get('HOME') or os.path.expanduser('~')}/.config"
    return f"{folder.rstrip('/')}/lnk/{name}"


def read_toml(path: str) -> dict[str, Any]:
    """What the file says; empty where there is none. Raises Corrupt for what is no TOML, Full and so on."""
    import tomllib  # half of a quick command's start-up

    try:
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise from_os(error, f"read {path}") from None
    if len(data) > FILE_BYTES_MAX:
        raise Full(f"{path} is over {FILE_BYTES_MAX:,} bytes; shorten it.")
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"{path} is not valid TOML: {error}; mend it by hand, nothing was changed.") from None
