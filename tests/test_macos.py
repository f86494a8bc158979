"""A policy as a profile for macOS: its text, read as Apple's language is. Nothing here can run it."""

import os
import re
from pathlib import Path

import pytest

from lnk.errors import Invalid
from lnk.sandbox import macos
from lnk.sandbox.policy import Policy

Rule = list["Rule | str"]
TOKEN = re.compile(r'\s*(?:([()])|"((?:[^"\\\n]|\\["\\])*)"|([^\s()"]+))')

POLICY = Policy(
    reads=("/Users/ada/Home/memory", "/Users/ada/Agent/chats"),
    writes=("/Users/ada/Agent/memory",),
    programs=("/opt/python/bin/python3", "/opt/python/lib"),
    hidden=("/opt/python/lib/site-packages",),
    folder="/Users/ada/Agent/memory",
)


def read(profile: str) -> list[Rule]:
    """The rules of a profile; strings without their quotes. Fails on what is not balanced, or no string."""
    rules: Rule = []
    open_ = [rules]
    at = 0
    while profile[at:].strip():
        found = TOKEN.match(profile, at)
        assert found, profile[at:]
        at = found.end()
        bracket, text, word = found.groups()
        if bracket == "(":
            open_[-1].append([])
            open_.append(open_[-1][-1])
        elif bracket == ")":
            open_.pop()
            assert open_, "closed too often"
        else:
            open_[-1].append(word if text is None else re.sub(r"\\(.)", r"\1", text))
    assert len(open_) == 1, "not closed"
    return rules


def decides(profile: str, operation: str, path: str) -> str:
    """What the last rule that names the operation and the path says of it, as the kernel decides."""
    said = "deny"
    for what, *rest in read(profile):
        if what not in ("allow", "deny"):
            continue
        operations = [each for each in rest if isinstance(each, str)]
        filters = [each for each in rest if not isinstance(each, str)]
        if any(_covers(each, operation) for each in operations) and any(_names(each, path) for each in filters):
            said = what
    return said


def _covers(named: str, operation: str) -> bool:
    return named == operation or (named.endswith("*") and operation.startswith(named[:-1]))


def _names(each: Rule, path: str) -> bool:
    kind, value = each[0], str(each[1])
    return (kind in ("literal", "subpath") and path == value) or (kind == "subpath" and path.startswith(value + "/"))


def test_a_profile_begins_by_denying_everything() -> None:
    profile = macos.profile(Policy())
    assert read(profile)[:2] == [["version", "1"], ["deny", "default"]]
    assert not re.search(r"\(allow (default|file\*|file-read\*|network\S*|mach-lookup|process\*)\)", profile)
    assert macos.argv(Policy()) == ["/usr/bin/sandbox-exec", "-p", profile]


@pytest.mark.parametrize(
    ("path", "may"),
    [
        ("/Users/ada/Home/memory/a.md", {"file-read-data"}),
        ("/Users/ada/Agent/chats", {"file-read-data"}),
        ("/Users/ada/Agent/memory/link/index.sqlite", {"file-read-data", "file-write-data", "file-write-create"}),
        ("/opt/python/lib/os.py", {"file-read-data", "file-map-executable", "process-exec"}),
        ("/opt/python/lib/site-packages/other.py", set()),
        ("/usr/lib/libSystem.B.dylib", {"file-read-data", "file-map-executable"}),
        ("/dev/urandom", {"file-read-data"}),
        ("/dev/null", {"file-read-data", "file-write-data"}),
        ("/", {"file-read-data"}),  # which is listed when a program is started
        ("/Users/ada", set()),
        ("/Users/ada/.ssh/id_ed25519", set()),
        ("/Users/ada/Home/memory2/a.md", set()),
        ("/Users/ada/Agent/private.md", set()),
        ("/private/etc/hosts", set()),
        ("/bin/sh", set()),
    ],
)
def test_it_allows_what_the_policy_names_and_nothing_else(path: str, may: set[str]) -> None:
    operations = ["file-read-data", "file-write-data", "file-write-create", "file-map-executable", "process-exec"]
    profile = macos.profile(POLICY)
    assert {operation for operation in operations if decides(profile, operation, path) == "allow"} == may


def test_of_folders_on_the_way_only_what_they_are_is_shown() -> None:
    profile = macos.profile(POLICY)
    for folder in ("/Users", "/Users/ada", "/Users/ada/Agent", "/opt", "/opt/python"):
        assert decides(profile, "file-read-metadata", folder) == "allow"
        assert decides(profile, "file-read-data", folder) == "deny"
    assert decides(profile, "file-read-metadata", "/Users/ada/.ssh") == "deny"


@pytest.mark.parametrize(
    ("policy", "path", "reads", "writes"),
    [
        (Policy(reads=("/a",), writes=("/a/b",)), "/a/b/c", "allow", "allow"),
        (Policy(writes=("/a",), reads=("/a/b",)), "/a/b/c", "allow", "deny"),
        (Policy(writes=("/a",), hidden=("/a/b",)), "/a/b/c", "deny", "deny"),
        (Policy(reads=("/a", "/a/b/c"), hidden=("/a/b",)), "/a/b/c", "allow", "deny"),
        (Policy(reads=("/a",), hidden=("/a/b",)), "/a/bc", "allow", "deny"),
        (Policy(reads=("/a/b",), writes=("/a/b",), hidden=("/a",)), "/a/b", "allow", "allow"),
    ],
)
def test_the_nearest_place_decides_in_whatever_order_they_are_given(
    policy: Policy, path: str, reads: str, writes: str
) -> None:
    profile = macos.profile(policy)
    assert decides(profile, "file-read-data", path) == reads
    assert decides(profile, "file-write-data", path) == writes


def test_paths_are_those_that_the_kernel_compares() -> None:
    short = "/tmp"
    policy = Policy(reads=(f"{short}/a/", "/var//folders/./b", "/variety"), sockets=(f"{short}/s",))
    profile = macos.profile(policy)
    assert decides(profile, "file-read-data", "/private/tmp/a/1") == "allow"
    assert decides(profile, "file-read-data", "/private/var/folders/b/1") == "allow"
    assert decides(profile, "file-read-data", "/variety/1") == "allow"
    assert decides(profile, "network-outbound", "/private/tmp/s") == "allow"
    assert decides(profile, "file-read-metadata", "/tmp") == "allow"  # the link itself


def test_a_program_is_named_by_its_links_and_without(tmp_path: Path) -> None:
    real, link = tmp_path / "python3.11", tmp_path / "python"
    real.touch()
    link.symlink_to(real)
    profile = macos.profile(Policy(programs=(str(link),)))
    named = {str(link), os.path.realpath(real)}
    assert {path for path in named if decides(profile, "process-exec", macos._real(path)) == "allow"} == named


@pytest.mark.parametrize(
    ("policy", "network"),
    [
        (Policy(), []),
        (Policy(ports=(4321,)), [["allow", "network-outbound", ["remote", "ip", "localhost:4321"]]]),
        (
            Policy(sockets=("/Users/ada/s",)),
            [
                ["allow", "system-socket", ["socket-domain", "AF_UNIX"]],
                ["allow", "network-outbound", ["literal", "/Users/ada/s"]],
            ],
        ),
    ],
)
def test_of_the_network_it_allows_only_what_is_named(policy: Policy, network: list[Rule]) -> None:
    rules = read(macos.profile(policy))
    assert [rule for rule in rules if str(rule[1]).startswith(("network", "system-socket"))] == network


def test_with_the_network_names_and_certificates_are_found() -> None:
    profile = macos.profile(Policy(network=True))
    assert ["allow", "network-outbound", ["remote", "ip"]] in read(profile)
    assert decides(profile, "network-outbound", "/private/var/run/mDNSResponder") == "allow"
    for path in ("/private/etc/ssl/cert.pem", "/private/etc/resolv.conf"):
        assert decides(profile, "file-read-data", path) == "allow"


@pytest.mark.parametrize(
    "name", ['a "quoted" one', "back\\slash", "Grüße 日本", "(allow default)", '") (allow default) ("']
)
def test_a_path_stays_one_string_whatever_it_is_called(name: str) -> None:
    path = f"/Users/ada/{name}"
    profile = macos.profile(Policy(reads=(path,)))
    assert decides(profile, "file-read-data", f"{path}/a.md") == "allow"
    assert ["allow", "default"] not in read(profile)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("a\nb", "control character"),
        ("a\x7fb", "control character"),
        ("a\udcffb", "not UTF-8"),
        ("ü" * 508, r"1,027 bytes, and the limit is 1,025"),
        ('"' * 508, r"1,027 bytes"),
    ],
)
def test_a_path_that_no_profile_can_hold_is_refused(name: str, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        macos.profile(Policy(reads=(f"/Users/ada/{name}",)))


def test_the_longest_path_that_a_profile_can_hold_is_taken() -> None:
    path = "/" + "a" * 1024
    assert decides(macos.profile(Policy(reads=(path,))), "file-read-data", path) == "allow"
