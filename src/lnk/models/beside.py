"""A model beside a program that asks for it: its address, told before anything serves it, and what serves it there.

There is none where no runtime is here that could come to have the model: then nothing runs beside the program.
"""

import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from lnk.contract.embedding import Address, format_address
from lnk.errors import LinkError
from lnk.models.facts import Catalogue, read_catalogue
from lnk.models.opening import Opening
from lnk.models.relay import HOST, free_port
from lnk.models.settings import BASE, LLAMA_CPP, LM_STUDIO, OLLAMA, Settings, format_url, read_settings

if TYPE_CHECKING:
    from lnk.models.serve import Serving

BEGIN_S: Final = 0.3  # the program beside has the processor first
WAIT_S: Final = 120  # a model may take so long to be loaded; nothing waits for it
CONNECT_S: Final = 0.05
_FILES_MAX: Final = 4096  # no client leaves more open
_OPENING: Final = 3  # the descriptor that an opening has in the process beside

# What is there of a runtime that is installed: its program, or what it keeps in a person's home.
_PROGRAMS: Final = {OLLAMA: "ollama", LM_STUDIO: "lms", LLAMA_CPP: "llama-server"}
_FOLDERS: Final = {OLLAMA: (".ollama",), LM_STUDIO: (".lmstudio", ".cache/lm-studio"), LLAMA_CPP: ()}


class Place(NamedTuple):
    """Where a model will be: `port` of this machine; `told`: the address, with what is known of the model behind."""

    port: int
    told: str


def place_for(model: str, environment: Mapping[str, str]) -> Place | None:
    """A place for the model, where a runtime may come to have it. Raises Invalid and Corrupt for a person's files."""
    settings, catalogue = read_settings(environment), read_catalogue(environment)
    if not may_come(model, settings, catalogue, environment):
        return None
    port = free_port()
    url = format_url(Address(host=HOST, port=port, base=BASE))
    return Place(port, format_address(url, catalogue.facts(model)))


def may_come(model: str, settings: Settings, catalogue: Catalogue, environment: Mapping[str, str]) -> bool:
    """Whether the settings name a server or a way to have the model, or a runtime is installed or listens."""
    if settings.urls or any(catalogue.same(model, each) for each in settings.serve):
        return True
    return any(_installed(kind, environment) or _listens(settings.at[kind]) for kind in settings.look)


def start_beside(model: str, port: int, environment: Mapping[str, str], opening: int | None = None) -> None:
    """Starts what serves the model at the port, again and again, until this process ends, whatever it becomes.

    `opening`: the port is one inside a sandbox, and this is our end of the pair that leads there; the caller closes
    its copy. It says nothing: `lnk model list` and `lnk model serve` tell a person what it meets.
    """
    parent = os.getpid()
    argv = ["-P", "-m", "lnk.cli.program", "model", "serve", model, "--json"]
    argv += ["--port", str(port), "--wait", str(WAIT_S), "--again", "--beside", str(parent)]
    argv += [] if opening is None else ["--opening", str(_OPENING)]
    if os.fork():
        return
    try:
        os.setsid()  # Ctrl-C is the session's
        _keep(opening)
        time.sleep(BEGIN_S)
        os.execve(sys.executable, [sys.executable, *argv], dict(environment))
    finally:
        os._exit(1)


class Behind:
    """The model served by this process, where a runtime that runs has it: looked for behind, so that nothing waits."""

    def __init__(
        self, model: str, port: int, environment: Mapping[str, str], *, wait_s: float, opening: int | None = None
    ) -> None:
        """Gives up after `wait_s`. Nothing is started. `opening` is as `start_beside` has it, but is no more the
        caller's.
        """
        self._asked = (model, dict(environment), port, wait_s)
        self._opening = None if opening is None else Opening(opening, port)
        self._lock = threading.Lock()
        self._serving: Serving | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def may_serve(self, wait_s: float) -> bool:
        """Whether it is served, or still may come to be when so long was waited for it."""
        self._thread.join(wait_s)
        return self._serving is not None or self._thread.is_alive()

    def close(self) -> None:
        """It is no more."""
        with self._lock:
            self._closed = True
            serving, self._serving = self._serving, None
        if self._opening:
            self._opening.close()
        if serving:
            serving.close()

    def _serve(self) -> None:
        from lnk.models.serve import serve  # 10 ms, behind too

        model, environment, port, wait_s = self._asked
        try:
            serving = serve(model, environment, port=port, opening=self._opening, wait_s=wait_s, start=False)
        except LinkError:
            return  # `status` says why
        with self._lock:
            if not self._closed:
                self._serving = serving
                return
        serving.close()


def _keep(opening: int | None) -> None:
    """Of what this process has open only the opening stays, at its number: a client waits for its pipes' ends."""
    kept = _OPENING
    if opening is not None:
        os.dup2(opening, _OPENING)
        os.set_inheritable(_OPENING, True)  # where it had that number already, `dup2` does nothing
        kept += 1
    null = os.open(os.devnull, os.O_RDWR)
    for each in range(3):
        os.dup2(null, each)
    os.closerange(kept, _FILES_MAX)


def _installed(kind: str, environment: Mapping[str, str]) -> bool:
    if shutil.which(_PROGRAMS[kind], path=environment.get("PATH", os.defpath)):
        return True
    home = environment.get("HOME") or os.path.expanduser("~")
    return any(os.path.isdir(f"{home}/{folder}") for folder in _FOLDERS[kind])


def _listens(address: Address) -> bool:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as stream:
        stream.settimeout(CONNECT_S)
        return stream.connect_ex((address.host, address.port)) == 0
