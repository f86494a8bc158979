"""Where everything of Link's lies. It loads nothing, for the programs that are to start at once."""

import os
from collections.abc import Mapping


def link_home(environment: Mapping[str, str]) -> str:
    """Link's folder: `$LNK_HOME`, else `~/Link`."""
    return os.path.abspath(os.path.expanduser(environment.get("LNK_HOME") or "~/Link"))
