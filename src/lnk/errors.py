"""What can go wrong, by what the caller can do about it.

Each error is one sentence for a person or a model: what was asked, the value, the limit, and what to do.
"""

import errno


class LinkError(Exception):
    """The parent of all: `status` is a program's exit status, `code` the JSON-RPC error code."""

    status = 1
    code = -32603

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else type(self).__name__


class Usage(LinkError):
    """The command line itself is wrong: read `--help`."""

    status = 2
    code = -32602


class Invalid(LinkError):
    """What was given is not right: change it."""

    status = 10
    code = -32602


class Refused(LinkError):
    """It is not allowed, and asking again does not help."""

    status = 11
    code = -32001


class Missing(LinkError):
    """There is nothing of that name."""

    status = 12
    code = -32002


class Conflict(LinkError):
    """Somebody else changed it: read it again."""

    status = 13
    code = -32003


class Full(LinkError):
    """A limit is reached: the message says the size and the limit."""

    status = 14
    code = -32004


class Unavailable(LinkError):
    """It cannot be done for the moment: try later."""

    status = 15
    code = -32005


class Corrupt(LinkError):
    """What is kept cannot be understood; the original stays as it is."""

    status = 16
    code = -32006


class NoSandbox(LinkError):
    """This machine cannot confine a program: the message says what was tried, and what helps."""

    status = 78
    code = -32007


INTERRUPTED = 130  # exit status after Ctrl-C: 128 + SIGINT, as shells count it

_KINDS: dict[int, type[LinkError]] = {
    errno.ENOENT: Missing,
    errno.ENOTDIR: Missing,
    errno.ENOSPC: Full,
    errno.EDQUOT: Full,
    errno.EFBIG: Full,
    errno.EACCES: Refused,
    errno.EPERM: Refused,
    errno.EROFS: Refused,
    errno.ELOOP: Refused,
    errno.EXDEV: Refused,
    errno.EEXIST: Conflict,
    errno.ENAMETOOLONG: Invalid,
    errno.EINVAL: Invalid,
}


def from_os(error: OSError, what: str) -> LinkError:
    """The error of its kind for a failed system call: `what` says what was tried, e.g. "open notes.md"."""
    reason = error.strerror or str(error)
    if error.errno == errno.ELOOP:
        reason = "it is a link, and links are never followed"
    return _KINDS.get(error.errno or 0, Unavailable)(f"Could not {what}: {reason}.")
