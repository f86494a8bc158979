"""What a person writes of an agent, `spec.toml` and `sandbox.toml`: taken as it is, or said with what may stand."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from lnk.agent.folders import Agent, Agents, read_sandbox, read_spec
from lnk.agent.memory import told_of
from lnk.contract.agent import Instructions, Model, SandboxFile, Sizes, SpecFile, Tool, Window
from lnk.contract.shape import schema
from lnk.contract.spec import Spec
from lnk.errors import Conflict, Corrupt, Full, Invalid, Missing, Refused

SECTIONS = "base, model, tools, environment, skills, standing, notes"


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agents(str(tmp_path / "Link")).new("max")


def test_without_its_files_all_of_an_agents_is_as_link_has_it(agent):
    assert read_spec(agent) == SpecFile()
    assert read_sandbox(agent) == SandboxFile()
    assert SpecFile().window.unknown == 32_768
    assert SandboxFile().files.instructions == "write"


def test_all_that_the_files_may_say_is_taken_as_it_is_written(agent):
    Path(agent.own, "spec.toml").write_text(
        """
        [tool.memory]
        model = "bge-m3"
        tokens = 900
        notes = "2 KB"
        [instructions]
        base = "instructions/base.md"
        [instructions.max]
        notes = "3 KB"
        skills = "1 MB"
        [window]
        max = 100000
        unknown = 8192
        answer = 0.25
        margin = 0
        [model]
        provider = "openai-compatible"
        name = "qwen3"
        url = "http://127.0.0.1:11434/v1"
        key_env = "MY_KEY"
        answer = 4096
        """
    )
    spec = read_spec(agent)
    assert spec.tool == Tool(memory=Spec(model="bge-m3", tokens=900, notes="2 KB"))
    assert spec.instructions == Instructions(base="instructions/base.md", max=Sizes(notes="3 KB", skills="1 MB"))
    assert spec.window == Window(max=100_000, unknown=8192, answer=0.25, margin=0)
    assert spec.model == Model(
        provider="openai-compatible", name="qwen3", url="http://127.0.0.1:11434/v1", key_env="MY_KEY", answer=4096
    )
    assert Sizes.__struct_fields__ == tuple(name for name in Instructions.__struct_fields__ if name != "max")


WRONG = {
    "[tool.memory]\nmodle = 'x'": "has [tool.memory] modle, where only model, tokens, notes may stand;"
    " perhaps model is meant.",
    "[tool.memory]\ntokens = 'many'": "has [tool.memory] tokens = 'many'; give a whole number from 50 to 50,000.",
    "[tool.memroy]\nmodel = 'x'": "has [tool.memroy], where only memory may stand; perhaps memory is meant.",
    "[windows]": "has [windows], where only tool, instructions, window, model may stand; perhaps window is meant.",
    "sise = 3": "has sise, where only tool, instructions, window, model may stand.",
    "window = 3": "has window = 3; write [window] above its keys.",
    "window = 2026-01-01": "has window = a date or a time; write [window] above its keys.",
    "[instructions]\nmax = '4 KB'": "has instructions.max = '4 KB'; write [instructions.max] above its keys.",
    "[instructions.max]\nnote = '4 KB'": f"has [instructions.max] note, where only {SECTIONS} may stand;"
    " perhaps notes is meant.",
    "[instructions.max]\nnotes = 4096": 'has [instructions.max] notes = 4096; give a size such as "4 KB", at most'
    ' "1 MB".',
    "[instructions.max]\nnotes = '9 MB'": ", [instructions.max] notes is '9 MB'; give a size such as \"4 KB\", at"
    ' most "1 MB".',
    "[instructions]\nbase = true": "has [instructions] base = true; give the name of a file in quotes, such as"
    ' "instructions/base.md".',
    "[window]\nmax = 0": "has [window] max = 0; give a whole number of tokens, 1 to 100,000,000.",
    f"[window]\nmax = {'9' * 300}": "has [window] max = a number beyond all measure; give a whole number of tokens,"
    " 1 to 100,000,000.",
    "[window]\nanswer = nan": "has [window] answer = nan; give a share from 0 to 1.",
    "[model]\nkey = 'secret'": "has [model] key, where only provider, name, url, key_env, answer may stand;"
    " perhaps key_env is meant.",
    "[model]\nkey_env = ['secret']": "has [model] key_env = a list; give text in quotes.",
    "[model]\nurl = {a = 'secret'}": "has [model.url] = a table; give text in quotes.",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_a_spec_may_not_say_is_named_as_it_is_typed_with_what_may_stand_there(agent, text):
    """In `[tool.memory]` it is what an engine refuses too. A list or a table is not shown: it may hold a key."""
    Path(agent.own, "spec.toml").write_text(text)
    with pytest.raises(Invalid if text.startswith("[tool.memory]") else Corrupt) as raised:
        read_spec(agent)
    told = WRONG[text]
    assert str(raised.value) == f"{agent.own}/spec.toml" + (told if told.startswith(",") else f" {told}")


@pytest.mark.requirement("NOTES-7")
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[files]\ninstructions = 'never'", 'has [files] instructions = \'never\'; give "read" or "write".'),
        ("[files]\ninstructions = true", 'has [files] instructions = true; give "read" or "write".'),
        ("[files]\ninstruction = 'read'", "has [files] instruction, where only instructions may stand; perhaps"),
        ("[file]\ninstructions = 'read'", "has [file], where only files may stand; perhaps files is meant."),
        ("instructions = 'read'", "has instructions, where only files may stand."),
        ("[[files]]\ninstructions = 'read'", "has files = a list; write [files] above its keys."),
    ],
)
def test_a_lock_of_the_instructions_that_is_mistyped_is_said_and_never_taken_for_none(agent, text, told):
    Path(agent.own, "sandbox.toml").write_text(text)
    with pytest.raises(Corrupt, match=re.escape(f"{agent.own}/sandbox.toml {told}")):
        read_sandbox(agent)
    with pytest.raises(Corrupt):
        told_of(agent)


@pytest.mark.parametrize(
    ("make", "kind", "told"),
    [
        (lambda file: file.symlink_to("/etc/passwd"), Refused, "links are never followed"),
        (os.mkfifo, Invalid, "not a regular file"),
        (lambda file: file.write_bytes(b"#" * ((1 << 20) + 1)), Full, "1,048,576 bytes"),
        (lambda file: file.write_bytes(b"a = '\xff'"), Corrupt, "not valid TOML"),
        (lambda file: file.write_text("a = " + "[" * 10_000), Corrupt, "not valid TOML"),
        (lambda file: file.write_text("a = " + "1" * 5_000), Corrupt, "not valid TOML"),
    ],
    ids=["a link", "a pipe", "too long", "no UTF-8", "nested", "a number of 5,000 digits"],
)
@pytest.mark.parametrize(("name", "read"), [("spec.toml", read_spec), ("sandbox.toml", read_sandbox)])
def test_a_file_that_cannot_be_read_is_said_whatever_it_is(agent, name, read, make, kind, told):
    make(Path(agent.own, name))
    with pytest.raises(kind, match=told) as raised:
        read(agent)
    assert f"{agent.own}/{name}" in str(raised.value)


@pytest.mark.requirement("CONTRACT-10", "NOTES-7")
def test_an_engine_is_told_the_opinions_and_the_notes_where_they_are_not_locked(agent):
    assert told_of(agent) == {"LNK_MEMORY_NOTES": agent.notes}
    assert told_of(agent, others=True) == {"LNK_MEMORY_NOTES": agent.notes, "LNK_MEMORY_FROM": "1"}
    Path(agent.own, "spec.toml").write_text("[tool.memory]\ntokens = 900\n[window]\nmax = 5000\n")
    Path(agent.own, "sandbox.toml").write_text('[files]\ninstructions = "read"\n')
    assert told_of(agent) == {"LNK_MEMORY_SPEC": '{"tokens":900}'}
    told = told_of(agent, words_alone=True)
    assert json.loads(told["LNK_MEMORY_SPEC"]) == {"model": "none", "tokens": 900}


def test_the_files_have_schemas_that_take_what_is_taken():
    jsonschema = pytest.importorskip("jsonschema", reason="NOT TESTED: jsonschema is not installed")
    check = jsonschema.Draft202012Validator(schema(SpecFile)).is_valid
    assert check({}) and check({"instructions": {"max": {"notes": "4 KB"}}, "window": {"max": 5}})
    assert not any(map(check, ({"windows": {}}, {"window": {"max": 0}}, {"tool": {"memory": {"modle": "x"}}})))
    check = jsonschema.Draft202012Validator(schema(SandboxFile)).is_valid
    assert check({"files": {"instructions": "read"}}) and not check({"files": {"instructions": "never"}})


# ---------------------------------------------------------------- by its id


def test_an_agent_is_found_by_its_id_whatever_it_is_called(tmp_path):
    agents = Agents(str(tmp_path / "Link"))
    agent = agents.new("max")
    agents.new("zoe")
    Path(agent.folder).rename(f"{agents.folder}/moritz")
    assert agents.by_id(agent.id) == agents.get("moritz")
    with pytest.raises(Missing, match="a_aaaaaaaaaaaa"):
        agents.by_id("a_aaaaaaaaaaaa")
    shutil.copytree(f"{agents.folder}/moritz", f"{agents.folder}/copy")
    with pytest.raises(Conflict, match="copy, moritz"):
        agents.by_id(agent.id)
