"""Makes the one port of a sandbox, hands it out, and becomes the program. A file of its own, run inside.

Nothing of ours is read there but this file, and of Python only `_socket`, `posix` and `_signal`: 8 ms. As `argv`: the
descriptor of our end of a pair of sockets, the port, the program and its arguments. What is sent is one byte and the
listening socket, so that who holds the other end, outside, accepts what the program connects to.
"""

import _signal  # type: ignore[import-not-found]
import _socket
import posix
import sys

HOST = "127.0.0.1"
WAITING_MAX = 16  # connections that nobody accepted yet
SIGN = b"L"


def main() -> None:
    """Raises OSError where the port cannot be had. That nobody listens outside is no error: nobody will answer."""
    opening, port = int(sys.argv[1]), int(sys.argv[2])
    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    listener.bind((HOST, port))
    listener.listen(WAITING_MAX)
    pair = _socket.socket(fileno=opening)
    rights = listener.fileno().to_bytes(4, sys.byteorder)
    try:  # noqa: SIM105  # `contextlib` is a module more
        pair.sendmsg([SIGN], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
    except (BrokenPipeError, ConnectionResetError):
        pass
    listener.close()
    pair.close()
    # The interpreter ignores these two, and what it becomes would too.
    _signal.signal(_signal.SIGPIPE, _signal.SIG_DFL)
    _signal.signal(_signal.SIGXFSZ, _signal.SIG_DFL)
    posix.execv(sys.argv[3], sys.argv[3:])


if __name__ == "__main__":
    main()
