"""`lnk`: the way in. A session with a tool is a small program, which starts at once; all else is `lnk.cli.commands`."""

import signal
import sys
from collections.abc import Sequence

_RUN = ["agent", "tool", "run"]
_CONNECT = ["agent", "memory", "connect"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program. Its exit status says what kind of error it was."""
    words = sys.argv[1:] if argv is None else list(argv)
    # Each client of a person runs one of these for as long as it runs itself: it loads nothing that it does not need.
    if words[:3] == _RUN and len(words) == 4 and not words[3].startswith("-") and sys.platform != "win32":
        from lnk.agent import proxy

        return proxy.run(words[3])
    if words[:3] == _CONNECT and len(words) == 5 and not any(word.startswith("-") for word in words[3:]):
        from lnk.agent import proxy

        return proxy.relay(*words[3:])
    # Ctrl-C waits until there is something that it can end: a module half loaded is not.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    from lnk.cli import commands

    return commands.main(words, before)


if __name__ == "__main__":
    sys.exit(main())
