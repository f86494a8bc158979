"""A policy as a profile of `/usr/bin/sandbox-exec`: text, by Apple's names. It starts nothing.

Written after what Apple's own profiles do, and never run: this project has no such machine. What is known to be weaker
than on Linux stands in `WEAKER`. It uses no name of an operation that only newer systems know: one that is not known
keeps the whole profile from being taken.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Final

from lnk.errors import Invalid
from lnk.sandbox.plan import beneath, clean, parts
from lnk.sandbox.policy import Policy, check

PROGRAM: Final = "/usr/bin/sandbox-exec"  # by its path: a `PATH` could name another
STRING_BYTES_MAX: Final = 1025  # of one string in a profile: macOS refuses a profile with a longer one
WEAKER: Final = (
    "a model's port is one of the machine's, which other programs of this machine can reach; "
    "what a program may read it finds at the same place as outside, so names of folders on the way are seen"
)

_MOVED: Final = ("/var", "/tmp", "/etc")  # links into /private; the kernel compares paths without links
_SYSTEM: Final = (  # what every program reads that is started at all
    *("/System/Library", "/System/Cryptexes", "/System/Volumes/Preboot/Cryptexes"),
    *("/usr/lib", "/usr/share", "/private/var/db/dyld", "/private/var/db/timezone", "/private/etc/localtime"),
)
_NAMED: Final = ("/", "/private", "/dev", *_MOVED)  # on the way to everything
_READ_DEVICES: Final = ("/dev/random", "/dev/urandom", "/dev/zero")
_SERVICES: Final = (  # who this user is, and that the time zone changed
    "com.apple.system.opendirectoryd.libinfo",
    "com.apple.system.notification_center",
)
_NETWORK_FILES: Final = ("/private/etc/hosts", "/private/etc/resolv.conf", "/private/etc/services", "/private/etc/ssl")
_NETWORK_SERVICES: Final = ("com.apple.SystemConfiguration.configd", "com.apple.trustd.agent")
_RESOLVER: Final = "/private/var/run/mDNSResponder"


def argv(policy: Policy) -> list[str]:
    """What goes in front of a program's arguments. Raises Invalid as `profile` does."""
    return [PROGRAM, "-p", profile(policy)]


def profile(policy: Policy) -> str:
    """The profile that allows what `policy` names and nothing else.

    Its paths are those that the kernel compares: without links, but for programs, which are named by both; so a link
    in what may be read leads nowhere. Raises Invalid for a path that no profile can hold.
    """
    check(policy)
    programs = sorted({_real(path) for each in policy.programs for path in (each, os.path.realpath(each))})
    rules = [
        "(version 1)",
        "(deny default)",
        "(allow process-fork)",
        "(allow signal (target same-sandbox))",
        "(allow process-info* (target same-sandbox))",
        "(allow sysctl-read)",
        '(allow ipc-posix-shm-read-data (ipc-posix-name "apple.shm.notification_center"))',
        _rule("allow mach-lookup", "global-name", _SERVICES),
        _rule("allow file-read-metadata", "literal", (*_NAMED, *_above(policy, programs))),
        _rule("allow file-read-data", "literal", ("/",)),
        _rule("allow file-read* file-map-executable", "subpath", _SYSTEM),
        _rule("allow file-read*", "literal", _READ_DEVICES),
        _rule("allow file-read* file-write-data", "literal", ("/dev/null",)),
        *_places(policy, programs),
        *_network(policy),
    ]
    return "\n".join(rule for rule in rules if rule) + "\n"


def _places(policy: Policy, programs: Sequence[str]) -> list[str]:
    """What stands above comes first, since the last rule that names a path decides."""
    kinds = {
        "(allow file-read* {0}) (deny file-write* {0})": policy.reads,
        "(allow file-read* file-map-executable process-exec* {0}) (deny file-write* {0})": programs,
        "(allow file-read* file-write* {0})": policy.writes,
        "(deny file-read* file-write* file-map-executable process-exec* {0})": policy.hidden,
    }
    rules = {_real(path): rule for rule, paths in kinds.items() for path in paths}
    return [rules[path].format(f"(subpath {_quoted(path)})") for path in sorted(rules, key=parts)]


def _network(policy: Policy) -> list[str]:
    """Nothing where the policy names nothing."""
    rules = []
    if policy.sockets or policy.network:
        rules.append("(allow system-socket (socket-domain AF_UNIX))")
    if policy.sockets:
        rules.append(_rule("allow network-outbound", "literal", map(_real, policy.sockets)))
    for port in policy.ports:
        rules.append(f'(allow network-outbound (remote ip "localhost:{port}"))')
    if policy.network:
        rules += [
            "(allow system-socket)",
            "(allow network-outbound (remote ip))",
            _rule("allow network-outbound", "literal", (_RESOLVER,)),
            _rule("allow mach-lookup", "global-name", _NETWORK_SERVICES),
            _rule("allow file-read*", "subpath", _NETWORK_FILES),
        ]
    return rules


def _above(policy: Policy, programs: Sequence[str]) -> list[str]:
    """The folders on the way to what is allowed, which a program asks for on its way there."""
    above = set()
    for path in (*policy.reads, *policy.writes, *programs, *policy.sockets, policy.folder):
        names = parts(_real(path))
        above |= {"/" + "/".join(names[:count]) for count in range(1, len(names))}
    return sorted(above - set(_NAMED))


def _rule(what: str, kind: str, values: Iterable[str]) -> str:
    """One rule for all values; empty without any."""
    each = " ".join(f"({kind} {_quoted(value)})" for value in values)
    return f"({what} {each})" if each else ""


def _real(path: str) -> str:
    """The path as the kernel spells it."""
    path = clean(path)
    return f"/private{path}" if any(beneath(path, moved) for moved in _MOVED) else path


def _quoted(text: str) -> str:
    """A string of the profile's language. Raises Invalid where it has none for `text`."""
    if any(ord(char) < 32 or ord(char) == 127 for char in text):
        raise Invalid(f"{text!r} cannot stand in a sandbox's profile: it has a control character; rename it.")
    try:
        held = text.replace("\\", "\\\\").replace('"', '\\"').encode()
    except UnicodeEncodeError:
        raise Invalid(f"{text!r} cannot stand in a sandbox's profile: it is not UTF-8; rename it.") from None
    if len(held) > STRING_BYTES_MAX:
        raise Invalid(
            f"{text!r} cannot stand in a sandbox's profile: it has {len(held):,} bytes, and the limit is "
            f"{STRING_BYTES_MAX:,}; move it to a shorter path."
        )
    return f'"{held.decode()}"'
