"""The name of a conversation, as a call carries it. The standard library alone: a tool's proxy reads it too."""

import re
from typing import Final

THREAD_META: Final = "link.local/thread"
THREAD_CHARS_MAX: Final = 120
THREAD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+@=:-]{0,119}")
