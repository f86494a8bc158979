"""What an executable reads to run: its interpreter, libraries and packages, looked up and not started.

Whoever made the program wrote the files by which they are found, so these are not believed: what no program is made of
is left out whatever names it (`_Found.is_too_wide`), and libraries are taken from where libraries lie.
"""

import contextlib
import functools
import importlib.util
import os
import pwd
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import lnk
from lnk.errors import Missing
from lnk.layers import LAYERS, PACKAGES, closure, layer_of
from lnk.sandbox.elf import MAGIC, library_folders

HEAD_BYTES: Final = 4096  # of a script: its interpreter and its imports stand there
SCRIPTS_MAX: Final = 4  # interpreters that are scripts themselves, one behind the other
RECORD_BYTES_MAX: Final = 16 << 20
# What any program of the system reads: its libraries, its clock's zone.
SYSTEM: Final = (
    *("/usr/lib", "/usr/lib64", "/usr/lib32", "/usr/libx32", "/lib", "/lib64", "/lib32", "/libx32"),
    *("/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo", "/System/Library", "/Library/Apple"),
)
SHELL_FOLDERS: Final = ("/bin", "/usr/bin")
# What looking up a name and checking a certificate take.
NETWORK_FILES: Final = (
    *("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf", "/etc/services"),
    *("/etc/protocols", "/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs"),
    *("/etc/pki/tls/cert.pem", "/etc/pki/tls/openssl.cnf", "/etc/pki/ca-trust/extracted"),
    *("/usr/share/ca-certificates", "/usr/local/share/ca-certificates", "/etc/ca-certificates"),
)
STORES: Final = ("/nix/store", "/gnu/store")  # where nothing of a system lies in its usual place
LIBRARIES: Final = (*SYSTEM, "/usr/local/lib", "/usr/local/lib64", *STORES)
LIBRARY_FOLDERS: Final = ("lib", "lib32", "lib64", "libexec")  # beside a program's `bin`
MANY: Final = ("/tmp", "/var/tmp", "/home", "/Users")  # what lies in there is many programs' and persons'
SITES: Final = ("site-packages", "dist-packages")
_SHELL = re.compile(r"(?:ba|da|z|k|mk|a)?sh|busybox")
_PYTHON = re.compile(r"python[\d.]*")
_OURS = re.compile(rb"^from (lnk\.[\w.]+) import ", re.MULTILINE)
_VERSION = re.compile(r"python(3\.\d+)t?")
_ENVIRONMENT: Final = "pyvenv.cfg"
_MODULE: Final = (".py", ".pyc", ".so")


class Needs(NamedTuple):
    """Parts of a policy: what is read, what beneath it is not there, and the variables by which it is found.

    `program`: the absolute path of what is executed, links on it as they are.
    """

    programs: tuple[str, ...]
    hidden: tuple[str, ...]
    environment: dict[str, str]
    program: str


def needs(program: str, environment: Mapping[str, str]) -> Needs:
    """What the program reads. Of one of ours its import closure alone, of another Python program its environment.

    A name without a slash is looked up on the `PATH` of `environment`. Raises Missing where there is no such program.
    """
    found = _Found(environment)
    path = found.resolved(program)
    found.add_program(path)
    return found.needs(path)


class _Found:
    """What was found so far."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        homes = _homes(environment)
        told = [os.path.expanduser(environment["LNK_HOME"])] if environment.get("LNK_HOME") else []
        links = [os.path.realpath(each) for each in (*told, *(f"{home}/Link" for home in homes))]
        self._whole = [*(os.path.realpath(each) for each in (*homes, *MANY)), *links]
        self._agents = [os.path.realpath(f"{each}/Agents") for each in links]
        self._programs: dict[str, None] = dict.fromkeys(path for path in SYSTEM if os.path.exists(path))
        self._hidden: dict[str, None] = {}
        self._paths: dict[str, None] = {}

    def needs(self, program: str) -> Needs:
        """All of it."""
        told = {"PYTHONPATH": os.pathsep.join(self._paths)} if self._paths else {}
        return Needs(tuple(self._programs), tuple(self._hidden), told, program)

    def resolved(self, program: str) -> str:
        """The absolute path of a program, links not followed. Raises Missing."""
        path = program if "/" in program else shutil.which(program, path=self._environment.get("PATH", os.defpath))
        if path is None or not os.path.isfile(path) or not os.access(path, os.X_OK):
            raise Missing(f"There is no program {program} to run; check its name and mode, or give its absolute path.")
        return os.path.abspath(path)

    def add_program(self, path: str, deep: int = 0) -> None:
        """An executable and what it is run by. Raises Missing for an interpreter that is not there."""
        self._add(path)
        head = _head(path)
        script = head.startswith(b"#!") and deep < SCRIPTS_MAX
        interpreter = self._interpreter(head) if script else path
        if _PYTHON.fullmatch(os.path.basename(interpreter)) and not _head(interpreter).startswith(b"#!"):
            self._add_python(interpreter, head if script else b"")
        elif script:
            self._add(*_modules_of_node(path))
            self.add_program(interpreter, deep + 1)
        else:
            self._add_file(path)

    def _interpreter(self, head: bytes) -> str:
        """The absolute path of what runs a script, links not followed; `env` and what pip writes for long paths too."""
        lines = head.split(b"\n", 2)
        first = os.fsdecode(lines[0][2:]).split()
        if first and os.path.basename(first[0]) == "env":
            self._add(self.resolved(first[0]))
            first = [word for word in first[1:] if not word.startswith("-") and "=" not in word]
        elif len(lines) > 1 and lines[1].startswith(b"'''exec' "):
            first = shlex.split(os.fsdecode(lines[1][len(b"'''exec' ") :]).partition('"$0"')[0])
            self._add("/bin/sh", "/usr/bin/env")
        if not first:
            raise Missing("A script names no program that runs it.")
        return self.resolved(first[0])

    def is_too_wide(self, path: str) -> bool:
        """Whether it is a folder that no program is made of.

        That is a person's home, Link's folder, a folder for everybody's files, one above any of them, or one of agents.
        """
        if not os.path.isdir(path):
            return False
        real = os.path.realpath(path)
        return any(_lies_in(each, [real]) for each in self._whole) or _lies_in(real, self._agents)

    def _add(self, *paths: str) -> None:
        there = (path for path in paths if os.path.lexists(path) and not self.is_too_wide(path))
        self._programs.update(dict.fromkeys(there))

    def _add_libraries(self, prefix: str, *paths: str) -> None:
        """Those that lie where libraries do, of what is installed at `prefix` or of the system."""
        places = (*(f"{os.path.realpath(prefix)}/{name}" for name in LIBRARY_FOLDERS), *LIBRARIES)
        self._add(*(path for path in paths if _lies_in(os.path.realpath(path), places)))

    def _is_beside(self, folder: str, program: str) -> bool:
        """Whether it lies where the program does, or is a folder for libraries as wheels have them: `numpy.libs`."""
        beside = os.path.dirname(program)
        wheels = folder.endswith(".libs") and _lies_in(program, [os.path.dirname(folder)])
        return wheels or (_lies_in(folder, [beside]) and not self.is_too_wide(beside))

    def _add_file(self, path: str) -> None:
        """A program that the system itself runs."""
        real = os.path.realpath(path)
        named = [each for each in library_folders(real) if not _lies_in(each, SYSTEM)]
        self._add_libraries(_prefix(real), *named)
        self._add(*(each for each in named if self._is_beside(os.path.realpath(each), real)))
        self._add(*(store for store in STORES if real.startswith(store + "/")))
        if _SHELL.fullmatch(os.path.basename(path)):
            self._add(*SHELL_FOLDERS)

    # ------------------------------------------------------------ Python

    def _add_python(self, interpreter: str, script: bytes) -> None:
        """An interpreter, and what is installed for the script, or for any where it runs none."""
        self.add_interpreter(interpreter)
        own = _OURS.search(script) if _is_ours(interpreter) else None
        layer = layer_of(own[1].decode()) if own else None
        if layer:
            self._add_ours(layer, interpreter)
        else:
            self._add_installed(interpreter)

    def add_interpreter(self, path: str) -> None:
        """An interpreter of Python with its standard library, and nothing that was installed for it."""
        self._add(path)
        self._add_file(path)
        if environment := _environment_of(path):
            self._add(f"{environment}/{_ENVIRONMENT}")
        prefix = _prefix(path)
        for folder in _libraries(path):
            self._add_libraries(prefix, folder)
            self._hidden.update(dict.fromkeys(_sites(folder)))
        library = f"{prefix}/lib"
        shared = (f"{library}/{name}" for name in _names(library) if name.startswith("libpython"))
        self._add_libraries(prefix, *shared)

    def _add_installed(self, interpreter: str) -> None:
        """All that is installed for an interpreter, as its environment says, and what lies elsewhere for it."""
        environment = _environment_of(interpreter)
        sites = [site for folder in _libraries(interpreter) for site in _sites(folder)]
        if environment:
            self._add_environment(environment, interpreter)
        if not environment or _sees_system(environment):
            for site in sites:
                self._hidden.pop(site, None)
            self._add(f"/usr/local/lib/{_version(interpreter)}")
        if environment:
            sites += [site for folder in _folders(environment, interpreter) for site in _sites(folder)]
        for site in sites:
            if site not in self._hidden:
                self._add(*filter(_holds_python, _elsewhere(site)))

    def _add_environment(self, environment: str, interpreter: str) -> None:
        """A virtual environment; of one that is somebody's home as well, what Python put there."""
        if not self.is_too_wide(environment):
            self._add(environment)
            return
        real = os.path.realpath(interpreter)
        names = (f"{environment}/bin/{name}" for name in _names(f"{environment}/bin") if _PYTHON.fullmatch(name))
        self._add(*(path for path in names if os.path.realpath(path) == real))
        self._add_libraries(environment, *_folders(environment, interpreter))

    def _add_ours(self, layer: str, interpreter: str) -> None:
        """A program of this distribution: the packages that it may import, and no other."""
        package = os.path.dirname(os.path.abspath(lnk.__file__))
        self._add(f"{package}/__init__.py", f"{package}/__pycache__")
        sites = {os.path.dirname(package)}
        layers = closure(layer)
        for each in layers:
            inner = f"{package}/{each.partition('.')[2]}"
            self._add(inner if os.path.isdir(inner) else f"{inner}.py")
        for name in dict.fromkeys(name for each in layers for name in LAYERS[each].distributions):
            for path in distribution_files(name):
                self._add(path)
                sites.add(os.path.dirname(path))
        # A document's reader is started with no variable at all: it has only the file that leads Python to a checkout.
        for site in (site for folder in _folders(_home(interpreter), interpreter) for site in _sites(folder)):
            self._add(*(path for path, folders in _leading(site) if sites.intersection(folders)))
        self._paths.update(dict.fromkeys(sorted(sites)))


def interpreter_needs(path: str) -> Needs:
    """The same for an interpreter of Python that runs without anything that is installed for it."""
    found = _Found({})
    found.add_interpreter(path)
    return found.needs(path)


def distribution_files(name: str) -> tuple[str, ...]:
    """What an installed distribution put where packages lie, files and folders; nothing where it is not installed.

    By its RECORD, since some put libraries beside their package; without one its package alone.
    """
    package = PACKAGES.get(name, name)
    spec = importlib.util.find_spec(package)  # found, not imported
    if spec is None:
        return ()
    locations = list(spec.submodule_search_locations or ())
    origin = locations[0] if locations else spec.origin
    if not origin:
        return ()
    site = os.path.dirname(os.path.abspath(origin))
    names = {os.path.basename(origin), f"{os.path.basename(origin)}.libs", *_recorded(site, name)}
    return tuple(f"{site}/{each}" for each in sorted(names) if os.path.exists(f"{site}/{each}"))


def _recorded(site: str, name: str) -> Iterator[str]:
    folder = _recorded_in(site).get(_normal(name))
    if folder is None:
        return
    try:
        with open(f"{site}/{folder}/RECORD", encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read(RECORD_BYTES_MAX).splitlines()
    except OSError:
        return
    for top in {line.partition(",")[0].strip('"').partition("/")[0] for line in lines}:
        if top not in ("", ".", "..", "__pycache__") and not top.endswith((".dist-info", ".pth")):
            yield top


@functools.cache
def _recorded_in(site: str) -> dict[str, str]:
    """The distributions that say there what they are made of, by their normal names."""
    return {_normal(name.partition("-")[0]): name for name in _names(site) if name.endswith(".dist-info")}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def _is_ours(interpreter: str) -> bool:
    """Whether it is the one that we run in, so that it finds what we find."""
    same = os.path.realpath(interpreter) == os.path.realpath(sys.executable)
    return same and (_environment_of(interpreter) or "") == (_environment_of(sys.executable) or "")


def _environment_of(interpreter: str) -> str | None:
    """The virtual environment of an interpreter, by its path as it is called."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(interpreter)))
    told = f"{folder}/{_ENVIRONMENT}"
    # A link there may lead to one of another place, and not to any file.
    return folder if os.path.isfile(told) and os.path.basename(os.path.realpath(told)) == _ENVIRONMENT else None


def _prefix(interpreter: str) -> str:
    """Where an interpreter is installed."""
    return os.path.dirname(os.path.dirname(os.path.realpath(interpreter)))


def _home(interpreter: str) -> str:
    """Beneath what it looks for packages: its environment, or where it is installed."""
    return _environment_of(interpreter) or _prefix(interpreter)


def _version(interpreter: str) -> str:
    """E.g. `python3.11`; empty where its name does not say it."""
    found = _VERSION.fullmatch(os.path.basename(os.path.realpath(interpreter)))
    return found[0] if found else ""


def _libraries(interpreter: str) -> Iterator[str]:
    """The folders of an interpreter's standard library."""
    return _folders(_prefix(interpreter), interpreter)


def _folders(prefix: str, interpreter: str) -> Iterator[str]:
    """The folders beneath a prefix that are those of an interpreter's version."""
    version = _version(interpreter)
    for library in ("lib", "lib64"):
        for name in _names(f"{prefix}/{library}"):
            if name == version or (not version and _VERSION.fullmatch(name)) or name == "python3":
                yield f"{prefix}/{library}/{name}"


def _names(folder: str) -> list[str]:
    """The names in a folder; none where it is not there."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _sees_system(environment: str) -> bool:
    return b"include-system-site-packages = true" in _head(f"{environment}/{_ENVIRONMENT}").lower()


def _leading(site: str) -> Iterator[tuple[str, list[str]]]:
    """Each file there that puts folders outside on the path, and those folders."""
    for name in _names(site):
        if name.endswith(".pth"):
            lines = os.fsdecode(_head(f"{site}/{name}")).splitlines()
            if folders := [line for line in lines if os.path.isabs(line) and os.path.isdir(line)]:
                yield f"{site}/{name}", folders


def _elsewhere(site: str) -> Iterator[str]:
    """The folders outside that are on the path of whoever looks for packages in this one."""
    return (folder for _, folders in _leading(site) for folder in folders)


def _sites(folder: str) -> Iterable[str]:
    """Where in a standard library's folder packages are installed."""
    return [f"{folder}/{site}" for site in SITES if os.path.isdir(f"{folder}/{site}")]


def _holds_python(folder: str) -> bool:
    """Whether there is a module in it, or a package, which may be one without an `__init__`."""
    return any(
        name.endswith(_MODULE)
        or (name.isidentifier() and any(each.endswith(_MODULE) for each in _names(f"{folder}/{name}")))
        for name in _names(folder)
    )


def _lies_in(path: str, folders: Iterable[str]) -> bool:
    """Whether it is one of them or beneath one; paths as `realpath` gives them."""
    return any(f"{path}/".startswith(f"{each.rstrip('/')}/") for each in folders)


def _homes(environment: Mapping[str, str]) -> list[str]:
    """The homes of whoever runs this: the one that they say, and the one that the system knows."""
    found = [environment.get("HOME", "")]
    with contextlib.suppress(KeyError):  # a user without a name, as containers have
        found.append(pwd.getpwuid(os.geteuid()).pw_dir)
    return [home for home in found if os.path.isabs(home)]


def _modules_of_node(path: str) -> Iterator[str]:
    """The folder of packages that a script of npm's lies in."""
    real = os.path.realpath(path)
    before, sign, _ = real.rpartition("/node_modules/")
    if sign:
        yield before + sign.rstrip("/")


def _head(path: str) -> bytes:
    """The first bytes of a file; none of one that may be run and not read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(HEAD_BYTES)
    except OSError:
        return MAGIC
