"""What a program in a sandbox may reach, as a value. It does not know how that is done."""

from typing import Final

from lnk.contract.shape import Value
from lnk.errors import Invalid

PORT_MAX: Final = 65535


class Policy(Value, frozen=True):
    """A positive list: what is not named is not there.

    `reads`, `writes`, `hidden` and `sockets` are places of a person's: never reached through a link. `programs`, what a
    program is made of, are trusted, and links on the way to them are made again inside. `hidden` lies beneath one of
    those, and is empty inside. With one socket named, every Unix socket in what may be read can be connected to.
    `listens`: it may make Unix sockets. `ports` are of a loopback that nobody else has. `environment` is all of it,
    but for `PWD`.
    """

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()
    listens: bool = False
    network: bool = False
    ports: tuple[int, ...] = ()
    environment: dict[str, str] = {}  # noqa: RUF012  # copied for each value
    folder: str = "/"


def check(policy: Policy) -> None:
    """Raises Invalid where it names what no file, variable or port can be called."""
    places = (*policy.reads, *policy.writes, *policy.programs, *policy.hidden, *policy.sockets, policy.folder)
    for path in places:
        if not path.startswith("/") or "\0" in path or ".." in path.split("/"):
            raise Invalid(f"{path!r} cannot be given to a sandbox; give an absolute path without `..`.")
    for name, value in policy.environment.items():
        if not name or "=" in name or "\0" in name + value:
            raise Invalid(f"The variable {name!r} cannot be given to a sandbox: it is not of the form NAME=VALUE.")
    for port in policy.ports:
        if not 0 < port <= PORT_MAX:
            raise Invalid(f"The port {port} cannot be given to a sandbox; give one from 1 to {PORT_MAX}.")
    if policy.ports and policy.network:
        raise Invalid("A sandbox has a port of its own or the machine's network, not both.")
