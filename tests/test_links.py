"""Links between documents: what is one, which document it means, both ways, without a file being touched."""

import random
import shutil
import unicodedata
from pathlib import PurePosixPath
from urllib.parse import quote, unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import ENGINE
from lnk.memory.markdown import Link, links


def _to(memory, path: str) -> list[tuple[str, int, str | None]]:
    """What a document links to: as written, the line, and the document that is meant, None where it is missing."""
    return [(link["as"], link["line"], link.get("path")) for link in memory.links(path, tokens=50_000)["to"]]


# ---------------------------------------------------------------- what is a link


@pytest.mark.requirement("LINKS-1")
def test_links_gives_what_a_document_links_to_and_what_links_to_it(place, session):
    place.write("memory/a.md", "# Apples\n\nSee [[b]] and [pears](sub/c.md).\n\nNot there: [[nowhere]].\n")
    place.write("memory/b.md", "# Bread\n\n[back](a.md)\n")
    place.write("memory/sub/c.md", "# Pears\n\n[[a|the apples]] and [[a]]\n")
    place.write("chats/link-main/conversation.md", "## Ana\n\nIt stands in [[a]].\n")
    memory = session()
    assert memory.links("memory/a.md") == {
        "path": "memory/a.md",
        "to": [
            {"as": "b", "line": 3, "path": "memory/b.md", "title": "Bread"},
            {"as": "sub/c.md", "line": 3, "path": "memory/sub/c.md", "title": "Pears"},
            {"as": "nowhere", "line": 5, "missing": True},
        ],
        "from": [
            {"path": "chats/link-main/conversation.md", "title": "Ana", "as": "a", "line": 3},
            {"path": "memory/b.md", "title": "Bread", "as": "a.md", "line": 3},
            {"path": "memory/sub/c.md", "title": "Pears", "as": "a", "line": 3},
            {"path": "memory/sub/c.md", "title": "Pears", "as": "a", "line": 3},
        ],
    }
    assert memory.links("memory/b.md") == {
        "path": "memory/b.md",
        "to": [{"as": "a.md", "line": 3, "path": "memory/a.md", "title": "Apples"}],
        "from": [{"path": "memory/a.md", "title": "Apples", "as": "b", "line": 3}],
    }
    (tool,) = (tool for tool in memory.tools() if tool["name"] == "links")
    assert tool["annotations"] == {"readOnlyHint": True, "openWorldHint": False}
    assert "There is no 'memory/x.md'" in memory.refused("links", path="memory/x.md")


FORMS = [  # as it stands in a file of its own, and what is the target as written; None: no link
    ("[[page]]", "page"),
    ("[[ page ]]", "page"),
    ("[[page|an alias]]", "page"),
    ("[[page#Heading|an alias]]", "page#Heading"),
    ("[[page#^block]]", "page#^block"),
    ("![[page]]", "page"),
    ("| a table | [[page\\|alias]] |", "page"),
    ("[[#Heading here]]", "#Heading here"),
    ("[[Sq]uare]]", "Sq]uare"),
    ("[[page]]]", "page"),
    ("[text](page.md)", "page.md"),
    ("[text](page.md#heading)", "page.md#heading"),
    ("[text](#heading)", "#heading"),
    ("[a [nested] text](page.md)", "page.md"),
    ("[a](b(c).md)", "b(c).md"),
    ("[x](<a b.md>)", "a b.md"),
    ('[y](a%20b.md "title")', "a%20b.md"),
    ("[y](a.md 'title')", "a.md"),
    ("[y](a.md (title))", "a.md"),
    ("[y]( a.md )", "a.md"),
    ("[y](a\\(b.md)", "a(b.md"),
    ("[![a picture](p.png)](page.md)", "page.md"),
    ("[over\ntwo lines](page.md)", "page.md"),
    ("[name]: page.md", "page.md"),
    ('   [name]: <a b.md> "title"', "a b.md"),
    ("> quoted [[page]]", "page"),
    ("- item [[page]]", "page"),
    ("1. item\n\n    more of it: [[page]]", "page"),
    ("![a picture](p.png)", None),
    ("[[]]", None),
    ("[[ ]]", None),
    ("[[|alias]]", None),
    ("[[over\ntwo lines]]", None),
    ("[text]()", None),
    ("[text] (page.md)", None),
    ("[text](a b.md)", None),
    ("\\[text](page.md)", None),
    ("[text](page.md", None),
    ("[paragraph\n\nends](page.md)", None),
    ("[x](https://example.com/a.md)", None),
    ("[x](HTTP://example.com)", None),
    ("[x](mailto:a@example.com)", None),
    ("[z](file:///etc/passwd)", None),
    ("[y](/etc/passwd)", None),
    ("[w](//host/x.md)", None),
    ("[w](\\\\host\\x.md)", None),
    ("[[https://example.com]]", None),
    ("[[//host/x]]", None),
    ("[name]: https://example.com", None),
    ("<https://example.com>", None),
    ("`[[page]]`", None),
    ("``a ` [[page]] b``", None),
    ("`over\ntwo [[page]] lines`", None),
    ("```\n[[page]]\n```", None),
    ("~~~~md\n[x](page.md)\n~~~\n[[page]]\n~~~~", None),
    ("```\n[[never closed]]", None),
    ("    [[indented]]", None),
    ("\t[x](indented.md)", None),
]


@pytest.mark.requirement("LINKS-1")
@pytest.mark.parametrize(("text", "target"), FORMS)
def test_a_link_is_what_markdown_and_wikis_call_one(text, target):
    """cases links-04, links-09, links-12: CommonMark for Markdown links, a wiki link ends at its first `]]`."""
    assert [link.target for link in links(f"before\n\n{text}\n\nafter\n")] == ([] if target is None else [target])


def test_code_hides_its_own_links_alone():
    text = (
        "`a` [[one]] `b [[no]]` [two](two.md)\n\n```\n[[no]]\n```\n\n[[three]] ``open [[four]]\n\n- x\n\n    [[five]]\n"
    )
    assert links(text) == [
        Link(1, "one", True),
        Link(1, "two.md", False),
        Link(7, "three", True),
        Link(7, "four", True),
        Link(11, "five", True),
    ]


@given(st.text(alphabet="[]()<>#|!\\`~ \t\nab./:\"'-", max_size=120) | st.text())
@settings(max_examples=400, deadline=None)
def test_any_text_has_links_in_its_own_order_and_lines(text):
    found = links(text)
    last = text.count("\n") + 1
    assert [link.line for link in found] == sorted(link.line for link in found)
    assert all(1 <= link.line <= last and link.target for link in found)


@pytest.mark.requirement("LINKS-5")
def test_a_document_keeps_its_first_1000_links_and_none_longer_than_512_bytes(place, session):
    many = "".join(f"[[target {number}]]\n" for number in range(1005))
    place.write("memory/many.md", many)
    fits, over = "é" * 256, "é" * 256 + "x"
    place.write("memory/long.md", f"[[{over}]] [[{fits}]] [a]({over}) [a]({fits}) [[{'x' * 5000}]] [[short]]\n")
    memory = session().settled()
    whole = memory.links("memory/many.md", tokens=50_000)
    assert [link["as"] for link in whole["to"]] == [f"target {number}" for number in range(1000)]
    assert [link["as"] for link in memory.links("memory/long.md")["to"]] == [fits, fits, "short"]


# ---------------------------------------------------------------- which document is meant


@pytest.mark.requirement("LINKS-3")
def test_of_several_files_of_a_name_the_shortest_path_is_meant(place, session):
    """case links-02: ties by letter; the same answer both ways; a path names the one that is meant."""
    for path in ("about", "x/about", "x/y/about", "b/twin", "a/twin"):
        place.write(f"memory/{path}.md", f"# {path}\n")
    place.write(
        "memory/x/z.md", "[[about]] [[x/about]] [[y/about]] [[twin]] [[memory/b/twin.md]] [[z/about]] [[ABOUT]]\n"
    )
    memory = session().settled()
    assert [path for _, _, path in _to(memory, "memory/x/z.md")] == [
        "memory/about.md",
        "memory/x/about.md",
        "memory/x/y/about.md",
        "memory/a/twin.md",
        "memory/b/twin.md",
        None,
        "memory/about.md",
    ]
    back = {
        path: [link["as"] for link in memory.links(path)["from"]]
        for path in (
            "memory/about.md",
            "memory/x/about.md",
            "memory/x/y/about.md",
            "memory/a/twin.md",
            "memory/b/twin.md",
        )
    }
    assert back == {
        "memory/about.md": ["about", "ABOUT"],
        "memory/x/about.md": ["x/about"],
        "memory/x/y/about.md": ["y/about"],
        "memory/a/twin.md": ["twin"],
        "memory/b/twin.md": ["memory/b/twin.md"],
    }


@pytest.mark.requirement("LINKS-3")
def test_a_number_sign_may_belong_to_a_files_name(place, session):
    """case links-07: by exact name first, then as a heading."""
    place.write("memory/C# notes.md", "# Sharp\n")
    place.write("memory/C.md", "# Plain\n")
    place.write(
        "memory/from.md", "[[C# notes]]\n[x](C%23%20notes.md)\n[[C#Pointers]]\n[x](<C# notes.md>)\n[x](C.md#top)\n"
    )
    memory = session().settled()
    assert _to(memory, "memory/from.md") == [
        ("C# notes", 1, "memory/C# notes.md"),
        ("C%23%20notes.md", 2, "memory/C# notes.md"),
        ("C#Pointers", 3, "memory/C.md"),
        ("C# notes.md", 4, "memory/C# notes.md"),
        ("C.md#top", 5, "memory/C.md"),
    ]
    assert [link["line"] for link in memory.links("memory/C# notes.md")["from"]] == [1, 2, 4]


@pytest.mark.requirement("LINKS-3")
def test_a_heading_of_a_file_whose_name_holds_a_number_sign_is_in_that_file(place, session):
    """case links-07"""
    place.write("memory/C# notes.md", "# Sharp\n")
    place.write("memory/C.md", "# Plain\n")
    place.write("memory/from.md", "[[C# notes#Setup]]\n[x](C%23%20notes.md#setup)\n")
    memory = session().settled()
    assert [path for _, _, path in _to(memory, "memory/from.md")] == ["memory/C# notes.md", "memory/C# notes.md"]
    assert [link["line"] for link in memory.links("memory/C# notes.md")["from"]] == [1, 2]


@pytest.mark.requirement("LINKS-3")
def test_headings_blocks_aliases_and_endings_are_taken_off(place, session):
    """case links-12: every form in one file, and those to the file itself."""
    place.write(
        "memory/forms.md",
        "[[#Here]]\n[[#^block]]\n[x](#here)\n[[page]]\n[[page.md]]\n[[Page#A heading]]\n[[page#^b1|alias]]\n![[page]]\n"
        "[x](page.md)\n[x](page.md#a)\n[x](./page.md?raw)\n[x](page)\n[[folder/deep page]]\n"
        "[x](folder/deep%20page.md)\n[x](<folder/deep page.md>)\n[x][ref]\n\n[ref]: folder/../page.md\n",
    )
    place.write("memory/page.md", "# A page\n")
    place.write("memory/folder/deep page.md", "# Deep\n\n[[../page]] [up](../page.md) [[./deep page]]\n")
    memory = session().settled()
    own, page, deep = "memory/forms.md", "memory/page.md", "memory/folder/deep page.md"
    assert [path for _, _, path in _to(memory, own)] == [own] * 3 + [page] * 9 + [deep] * 3 + [page]
    assert [path for _, _, path in _to(memory, deep)] == [page, page, deep]
    assert [link["line"] for link in memory.links(own)["from"]] == [1, 2, 3]


@pytest.mark.requirement("LINKS-3")
def test_a_name_is_the_same_however_its_letters_are_composed(place, session):
    name = "Café à Zürich"
    place.write(f"memory/{unicodedata.normalize('NFD', name)}.md", "# C\n")
    place.write(
        "memory/from.md", f"[[{unicodedata.normalize('NFC', name)}]] [[{name.upper()}]] [x]({quote(name)}.md)\n"
    )
    memory = session().settled()
    assert {path for _, _, path in _to(memory, "memory/from.md")} == {f"memory/{unicodedata.normalize('NFD', name)}.md"}


@pytest.mark.requirement("LINKS-2")
def test_a_link_to_a_note_made_later_works_and_one_to_a_note_that_is_gone_is_missing(place, session):
    place.write("memory/from.md", "[[plan]] and [x](sub/plan.md)\n", at=1_600_000_000)
    memory = session()
    assert _to(memory, "memory/from.md") == [("plan", 1, None), ("sub/plan.md", 1, None)]
    place.write("memory/sub/plan.md", "# The plan\n")
    assert _to(memory, "memory/from.md") == [
        ("plan", 1, "memory/sub/plan.md"),
        ("sub/plan.md", 1, "memory/sub/plan.md"),
    ]
    assert [link["path"] for link in memory.links("memory/sub/plan.md")["from"]] == ["memory/from.md"] * 2
    place.write("memory/plan.md", "# A nearer plan\n")
    assert _to(memory, "memory/from.md")[0] == ("plan", 1, "memory/plan.md")
    (place.memory / "sub" / "plan.md").rename(place.memory / "sub" / "scheme.md")
    (place.memory / "plan.md").unlink()
    assert _to(memory, "memory/from.md") == [("plan", 1, None), ("sub/plan.md", 1, None)]
    assert memory.links("memory/sub/scheme.md")["from"] == []
    place.write("memory/from.md", "[[scheme]]\n")
    assert _to(memory, "memory/from.md") == [("scheme", 1, "memory/sub/scheme.md")]


# ---------------------------------------------------------------- nothing is followed

OUTSIDE = (
    "[x](../../etc/passwd) [y](/etc/passwd) [z](file:///etc/passwd) [[../../elsewhere-target]] [w](//host/x.md)\n"
    "[v](..%2f..%2felsewhere-target.md) [[/elsewhere-target]] [u](../elsewhere-target.md)\n"
    "[t](a/../../elsewhere-target.md) [[a/../../elsewhere-target]] [s](%2e%2e/elsewhere-target.md)\n"
)


UNTOUCHED = ("etc/passwd", "elsewhere-target", "later-target", "host/x")


@pytest.mark.requirement("LINKS-4")
def test_a_link_out_of_the_folder_is_no_link(place, session):
    """case links-09"""
    place.write("memory/from.md", OUTSIDE + "[[inside]]\n")
    place.write("memory/inside.md", "# In\n")
    (place.home / "elsewhere-target.md").write_text("# Out\n")
    memory = session()
    assert _to(memory, "memory/from.md") == [("inside", 4, "memory/inside.md")]
    assert "There is no" in memory.refused("links", path="elsewhere-target.md")
    assert "There is no" in memory.refused("read", path="memory/../elsewhere-target.md")


@pytest.mark.requirement("LINKS-4")
def test_no_link_is_followed_on_disk(place, open_session, tmp_path):
    """case links-09: the kernel is never asked for a link's target, and a document is opened for indexing alone."""
    strace = shutil.which("strace")
    if not strace:
        pytest.skip("strace is not installed: that links touch no file was not checked")
    place.write(
        "memory/from.md", OUTSIDE + "[[later-target]] [x](later-target.md) [[inside-target]] [x](inside-target.md)\n"
    )
    place.write("memory/inside-target.md", "# In\n")
    (place.home / "elsewhere-target.md").write_text("# Out\n")
    trace = tmp_path / "trace"
    memory = open_session([strace, "-f", "-qq", "-e", "trace=%file,openat2", "-o", str(trace), *place.argv()])
    memory.settled()
    for _ in range(3):
        assert len(memory.links("memory/from.md")["to"]) == 4
        assert len(memory.links("memory/inside-target.md")["from"]) == 2
    memory.close()
    calls = trace.read_text()
    assert f'execve("{ENGINE}"' in calls
    assert [line for line in calls.splitlines() if "inside-target.md" in line and "open" in line] != []
    assert [line for line in calls.splitlines() if any(name in line for name in UNTOUCHED)] == []


# ---------------------------------------------------------------- both ways, against every note looked at

NOTES = 300
FOLDERS = ["", "a/", "a/b/", "a/b/c/", "B/", "long folder name/", "ü/", "ü/日本/"]
NAMES = [
    "plan",
    "Plan B",
    "über",
    "日誌",
    "C# notes",
    "C",
    "v1.2",
    "index",
    "a",
    "b c (d)",
    "100%",
    "x&y",
    "🪴 plants",
    "İ",
]


def test_links_are_the_same_both_ways_as_looking_at_every_note(place, session):
    """case links-13, on a vault of our own: names that repeat, in other cases and compositions, links of every form."""
    chance = random.Random(20261130)
    paths = sorted({_some_path(chance) for _ in range(NOTES * 3)})
    chance.shuffle(paths)
    paths = paths[:NOTES]
    assert len(paths) == NOTES
    written = {path: [_some_link(chance, path, paths) for _ in range(chance.randrange(8))] for path in paths}
    for path, found in written.items():
        place.write(path, "".join(f"text {text} text\n" for text, _, _ in found) or "nothing\n")
    memory = session().settled()

    means = {
        path: [(target, line, _meant(path, target, wiki, paths)) for line, (_, target, wiki) in enumerate(found, 1)]
        for path, found in written.items()
    }
    assert sum(bool(meant) for found in means.values() for _, _, meant in found) > NOTES
    assert sum(not meant for found in means.values() for _, _, meant in found) > NOTES / 10
    back: dict[str, list[tuple[str, str, int]]] = {path: [] for path in paths}
    for path in sorted(paths):
        for target, line, meant in means[path]:
            if meant:
                back[meant].append((path, target, line))
    wrong = {}
    for path in paths:
        answer = memory.links(path, tokens=50_000)
        to = [(link["as"], link["line"], link.get("path")) for link in answer["to"]]
        came = [(link["path"], link["as"], link["line"]) for link in answer["from"]]
        if to != means[path] or came != back[path]:
            wrong[path] = (to, means[path], came, back[path])
    assert wrong == {}


def _some_path(chance: random.Random) -> str:
    name = chance.choice(NAMES) + chance.choice(["", "", "", " 2", " 3", "#1"])
    name = chance.choice([str, str, str.upper, str.title])(name)
    ending = chance.choice([".md", ".md", ".md", ".markdown", ".txt"])
    form = chance.choice(["NFC", "NFC", "NFD"])
    return f"memory/{unicodedata.normalize(form, chance.choice(FOLDERS) + name)}{ending}"


def _some_link(chance: random.Random, path: str, paths: list[str]) -> tuple[str, str, bool]:
    """A link as it stands in the text, the target as written, and whether it is a wiki link."""
    aim = PurePosixPath(chance.choice(paths)) if chance.random() < 0.85 else PurePosixPath("memory/a/nowhere.md")
    heading = chance.choice(["", "", "", "#Part 2", "#^b1"])
    if chance.random() < 0.6:
        parts = aim.parts[chance.choice([-1, -1, -2, 1, 0]) :]
        target = "/".join(parts)
        if aim.suffix == ".md" and chance.random() < 0.8:
            target = target.removesuffix(".md")
        target = chance.choice([str, str, str.lower])(target) + heading
        return chance.choice([f"[[{target}]]", f"[[{target}|so called]]", f"![[{target}]]"]), target, True
    up = "../" * (len(PurePosixPath(path).parts) - 2)
    target = up + quote("/".join(aim.parts[1:]), safe="/()") + heading.replace(" ", "-")
    return f"[so called]({target})", target, False


def _meant(path: str, target: str, wiki: bool, paths: list[str]) -> str | None:
    """The document that a link means, found by looking at every path there is."""
    if wiki:
        while not (found := _by_name(target, paths)) and "#" in target:
            target = target.rpartition("#")[0]
        return found
    folder = PurePosixPath(path).parent
    steps: list[str] = []
    for part in (*folder.parts, *unquote(target.partition("#")[0]).split("/")):
        if part == "..":
            steps.pop()
        else:
            steps.append(part)
    place = "/".join(steps)
    if place in paths:
        return place
    same = [each for each in paths if _folded(each) == _folded(place)]
    return min(same, key=lambda each: (len(each), each), default=None)


def _by_name(name: str, paths: list[str]) -> str | None:
    ends = [each for each in paths if ("/" + _folded(each)).endswith("/" + _folded(name))]
    if "/" not in name:
        ends = [each for each in paths if _folded(each.rpartition("/")[2]) == _folded(name)]
    return min(ends, key=lambda each: (len(each), each), default=None)


def _folded(path: str) -> str:
    """As names are compared: composed, without case, without a note's ending."""
    for ending in (".md", ".markdown", ".mdx"):
        path = path.removesuffix(ending)
    return unicodedata.normalize("NFC", path).casefold()
