"""`lnk model`: the real program against runtimes on loopback, as they answer and as they should not."""

import contextlib
import http.client
import itertools
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import LNK, SIGNALS, Person, as_from_a_terminal
from ends.runtimes import (
    DIMS,
    Answering,
    Reply,
    Request,
    Server,
    as_json,
    embedding,
    ended,
    in_base64,
    install,
    instead,
    llama_cpp,
    lm_studio,
    ollama,
)
from lnk.contract.embedding import Address, Facts, parse_address
from lnk.contract.spec import MODEL_ASKED
from lnk.errors import Invalid
from lnk.models.facts import read_catalogue
from lnk.models.names import full_name, parse_name
from lnk.models.settings import ollama_address, read_settings

USAGE, INVALID, REFUSED, MISSING, UNAVAILABLE, CORRUPT, INTERRUPTED = 2, 10, 11, 12, 15, 16, 130
WAIT_S = 30
FORMATS = Path(__file__).parent.parent / "docs" / "formats.md"
SHORT = "2"  # seconds that a hostile runtime may cost a test

Serve = Callable[[Answering], Server]


class Home(Person):
    """Someone with a home, settings and programs of their own; nothing listens where runtimes usually do."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.config = root / "config" / "lnk"
        self.config.mkdir(parents=True)
        self.programs = root / "programs"
        self.environment |= {"XDG_CONFIG_HOME": str(root / "config"), "PATH": f"{self.programs}:/usr/bin:/bin"}
        self.look()

    def settings(self, text: str) -> None:
        (self.config / "settings.toml").write_text(text)

    def facts(self, text: str) -> None:
        (self.config / "model-facts.toml").write_text(text)

    def look(self, more: str = "", **at: Server | int) -> None:
        """Runtimes are looked for here alone, in this order: a server, or a port at which none may listen."""
        lines = [f"look = {json.dumps([name.replace('_', '-') for name in at])}"]
        for name, server in at.items():
            port = server if isinstance(server, int) else server.port
            lines.append(f'{name.replace("_", "-")} = "http://127.0.0.1:{port}"')
        self.settings("\n".join(["[models]", *lines, more]))

    def model(self, *argv: str, **more: Any) -> subprocess.CompletedProcess[str]:
        return self.lnk("model", *argv, **more)

    def json(self, *argv: str) -> Any:
        return json.loads(self.shows("model", *argv, "--json"))

    def not_served(self, model: str, *argv: str, status: int = UNAVAILABLE) -> str:
        """The one sentence that `serve` ends with."""
        said = self.refused(status, "model", "serve", model, "--json", "--wait", SHORT, *argv)
        assert said.startswith("lnk: ") and said.endswith(".\n")
        return said

    @contextlib.contextmanager
    def serving(self, model: str, *argv: str, **more: Any) -> Iterator["Served"]:
        """`lnk model serve` as long as it stays."""
        process = subprocess.Popen(
            [LNK, "model", "serve", model, "--json", *argv],
            env={**self.environment, **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=as_from_a_terminal,
        )
        try:
            yield Served(process)
        finally:
            process.kill()
            process.communicate()

    @contextlib.contextmanager
    def waiting(self, model: str, *argv: str) -> Iterator[subprocess.Popen[str]]:
        """`lnk model serve --again`, which need not serve yet."""
        process = subprocess.Popen(
            [LNK, "model", "serve", model, "--json", "--again", *argv],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=WAIT_S)


class Served:
    """A running `lnk model serve`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout
        if not select.select([process.stdout], [], [], WAIT_S)[0]:
            raise AssertionError("it said nothing")
        first = process.stdout.readline()
        if not first:
            raise AssertionError(process.communicate(timeout=WAIT_S)[1])
        self.line = json.loads(first)

    def vector(self, text: str = "a note") -> list[float]:
        """What a client gets that goes by the line alone."""
        body = json.dumps({"model": self.line["model"], "input": text}).encode()
        asked = urllib.request.Request(f"{self.line['url']}/embeddings", body, {"Content-Type": "application/json"})
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=WAIT_S) as answer:
            return json.load(answer)["data"][0]["embedding"]

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Its exit status, and what it said on standard error."""
        self.process.send_signal(number)
        return self.rest()

    def rest(self) -> tuple[int, str]:
        """The same of one that ends by itself."""
        out, err = self.process.communicate(timeout=WAIT_S)
        assert out == ""
        return self.process.returncode, err


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server for the test."""
    servers: list[Server] = []

    def start(answer: Answering, port: int = 0) -> Server:
        servers.append(Server(answer, port))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def unused_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


# ---------------------------------------------------------------- names


CATALOGUE = read_catalogue({"HOME": "/nowhere"})

SAME = [
    ("qwen3-embedding", "qwen3-embedding:latest"),
    ("qwen3-embedding:latest", "qwen3-embedding"),
    ("qwen3-embedding", "registry.ollama.ai/library/qwen3-embedding:latest"),
    ("Qwen3-Embedding", "qwen3-embedding:latest"),
    ("qwen3-embedding", "qwen3-embedding:8b"),
    ("qwen3-embedding", "text-embedding-qwen3-embedding-8b"),
    ("qwen3-embedding:0.6b", "text-embedding-qwen3-embedding-0.6b"),
    ("qwen3-embedding:0.6b", "text-embedding-qwen3-embedding-0.6b@q8_0"),
    ("qwen3-embedding:0.6b", "hf.co/Qwen/Qwen3-Embedding-0.6B-GGUF:Q8_0"),
    ("qwen3-embedding:0.6b", "Qwen/Qwen3-Embedding-0.6B-GGUF:Q8_0"),
    ("qwen3-embedding:0.6b", "/home/ana/models/Qwen3-Embedding-0.6B-Q8_0.gguf"),
    ("text-embedding-qwen3-embedding-0.6b", "qwen3-embedding:0.6b"),
    ("hf.co/Qwen/Qwen3-Embedding-0.6B-GGUF:Q8_0", "hf.co/qwen/qwen3-embedding-0.6b-gguf:q8_0"),
    ("nomic-embed-text", "text-embedding-nomic-embed-text-v1.5"),
    ("snowflake-arctic-embed2", "text-embedding-snowflake-arctic-embed-l-v2.0"),
    ("all-minilm", "all-MiniLM-L6-v2-Q8_0.gguf"),
    ("my-model", "text-embedding-my-model"),
    ("my-model", "my-model-f16.gguf"),
    ("ana/my-model", "ana/my-model:latest"),
]
NOT_SAME = [
    ("qwen3-embedding", "qwen3-embedding:0.6b"),
    ("qwen3-embedding:0.6b", "qwen3-embedding:4b"),
    ("qwen3-embedding", "text-embedding-qwen3-embedding-0.6b"),
    ("qwen3-embedding:0.6b", "jim/qwen3-embedding:0.6b"),
    ("jim/qwen3-embedding:0.6b", "qwen3-embedding:0.6b"),
    ("qwen3-embedding:0.6b-fp16", "qwen3-embedding:0.6b"),
    ("hf.co/Qwen/Qwen3-Embedding-0.6B-GGUF:F16", "hf.co/Qwen/Qwen3-Embedding-0.6B-GGUF:Q8_0"),
    ("multilingual-e5-large", "multilingual-e5-large-instruct"),
    ("nomic-embed-text", "nomic-embed-text-v2-moe"),
    ("bge-m3", "bge-m3-retromae"),
    ("my-model", "ana/my-model"),
    ("my-model", "my-model:small"),
]


@pytest.mark.requirement("VECT-6")
@pytest.mark.parametrize(("asked", "listed"), SAME)
def test_names_that_mean_one_model_are_the_same(asked, listed):
    assert CATALOGUE.same(asked, listed)


@pytest.mark.requirement("VECT-6")
@pytest.mark.parametrize(("asked", "listed"), NOT_SAME)
def test_another_size_maker_precision_or_kin_of_a_model_is_not_the_model(asked, listed):
    assert not CATALOGUE.same(asked, listed)


NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,20}(:[A-Za-z0-9._-]{1,9})?", fullmatch=True)


@given(NAMES)
def test_every_name_is_the_same_as_itself_and_as_its_full_name(name):
    assert full_name(full_name(name)) == full_name(name)
    assert CATALOGUE.same(name, full_name(name)) and CATALOGUE.same(full_name(name), name)
    assert parse_name(name).label == parse_name(full_name(name)).label


# ---------------------------------------------------------------- facts


PERMISSIVE = {"Apache-2.0", "MIT"}


@pytest.mark.requirement("VECT-6")
def test_the_model_that_is_asked_for_by_default_is_described_and_its_terms_are_permissive():
    known = CATALOGUE.known(MODEL_ASKED)
    assert known and known.told.terms in PERMISSIVE
    assert {CATALOGUE.named(key).told.terms for key in CATALOGUE.models()} - PERMISSIVE == {
        "Gemma Terms of Use (not permissive)"
    }


def test_links_facts_are_whole_and_no_name_means_two_models():
    names: dict[str, str] = {}
    for key in CATALOGUE.models():
        known = CATALOGUE.named(key)
        assert known.told.facts.dims is None or known.told.facts.dims <= 1024, key
        assert (known.told.dims or known.told.native or 0) <= 1024, key
        assert known.told.query is not None and known.told.pooling and known.told.terms, key
        own = CATALOGUE._tables["link"][key].names
        for name in own:
            assert names.setdefault(full_name(name), key) == key
            assert CATALOGUE.known(name) == known, name
    asked = ["qwen3-embedding:0.6b", "qwen3-embedding:4b", "qwen3-embedding:8b", "nomic-embed-text", "bge-m3"]
    asked += [f"multilingual-e5-{size}" for size in ("small", "base", "large")]
    asked += ["embeddinggemma", "all-minilm", "snowflake-arctic-embed2", "mxbai-embed-large", "granite-embedding"]
    assert [name for name in [*asked, "paraphrase-multilingual"] if CATALOGUE.known(name) is None] == []


def test_a_name_as_any_runtime_spells_it_has_the_facts_of_its_family():
    qwen = Facts(
        query="Instruct: Given a question, retrieve passages of notes that answer it\nQuery:",
        dims=1024,
        tokens=32768,
        pooling="last",
    )
    spelt = ["qwen3-embedding", "qwen3-embedding:17b", "hf.co/Qwen/Qwen3-Embedding-0.6B-GGUF:Q8_0"]
    spelt += ["text-embedding-qwen3-embedding-0.6b", "jim/qwen3-embedding:4b-q4_K_M", "/m/Qwen3-Embedding-8B-f16.gguf"]
    assert [CATALOGUE.facts(name) for name in spelt] == [qwen] * len(spelt)
    assert CATALOGUE.facts("multilingual-e5-large-instruct").document == ""
    assert CATALOGUE.facts("intfloat/multilingual-e5-large").document == "passage: "
    assert CATALOGUE.facts("a-model-nobody-described") == CATALOGUE.facts("multilingual-e5-large-foo") == Facts()


def test_the_persons_file_stands_over_links_field_by_field(home):
    home.facts(
        '[qwen3-embedding]\ntokens = 4096\n["qwen3-embedding:0.6b"]\ndims = 256\nquery = "q: "\n'
        '[own-model]\ndocument = "d: "\nnative = 100\nlm-studio = ["text-embedding-of-mine"]\n'
        '["hf.co/Qwen/Qwen3-Embedding-4B-GGUF"]\nquery = ""\n'
    )
    small = home.json("facts", "text-embedding-qwen3-embedding-0.6b")
    assert small["known"] == "qwen3-embedding:0.6b"
    assert small["file"] == str(home.config / "model-facts.toml")
    fields = {name: (field["value"], field["from"]) for name, field in small["fields"].items()}
    assert {name: fields[name] for name in ("query", "native", "dims", "tokens", "pooling", "terms")} == {
        "query": ("q: ", "person"),
        "native": (1024, "link"),
        "dims": (256, "person"),
        "tokens": (4096, "person"),
        "pooling": ("last", "link"),
        "terms": ("Apache-2.0", "link"),
    }
    catalogue = read_catalogue(home.environment)
    assert catalogue.facts("qwen3-embedding:4b") == Facts(dims=1024, tokens=4096, pooling="last")
    assert catalogue.facts("of-mine") == catalogue.facts("own-model:q8_0") == Facts(document="d: ")
    assert catalogue.same("own-model", "text-embedding-of-mine")
    assert home.json("facts", "own-model")["fields"] == {
        "document": {"value": "d: ", "from": "person"},
        "native": {"value": 100, "from": "person"},
        "lm-studio": {"value": ["text-embedding-of-mine"], "from": "person"},
    }
    table = home.shows("model", "facts")
    assert next(line for line in table.splitlines() if line.startswith("own-model ")).endswith("  you")
    assert 'query      "q: "' in home.shows("model", "facts", "qwen3-embedding:0.6b")
    assert [each["known"] for each in home.json("facts")["models"]][-1] == "own-model"


def test_the_persons_file_lies_in_their_home_where_xdg_says_nothing_that_counts(home):
    (home.home / ".config" / "lnk").mkdir(parents=True)
    (home.home / ".config" / "lnk" / "model-facts.toml").write_text("[own-model]\ntokens = 100\n")
    for there in ("", "relative"):
        environment = {**home.environment, "XDG_CONFIG_HOME": there}
        assert read_catalogue(environment).facts("own-model") == Facts(tokens=100)


def test_an_unknown_model_is_missing_and_the_sentence_says_how_to_describe_it(home):
    said = home.refused(MISSING, "model", "facts", "foo:1b")
    assert '["foo:1b"]' in said and str(home.config / "model-facts.toml") in said and "query, document" in said
    assert "pooling" in said


WRONG_FACTS = [
    ("tokens = 5", ["'tokens' outside any table", '["qwen3-embedding:0.6b"]']),
    ("[a]\nqueri = 'x'", ["'queri' in [\"a\"]", "only query, document, native, dims", "llama-cpp may stand there"]),
    ("[a]\ndims = 'x'", ['["a"]', "int", "`dims`"]),
    ("[a]\ndims = 0", ['["a"]', "0", "from 1 to"]),
    ("[a]\ndims = 10\nnative = 5", ['["a"]', '"native" is 5']),
    ("[a]\ntokens = 3", ['["a"]', "from 16"]),
    ("[a]\npooling = 'max'", ['["a"]', "`pooling`", "max"]),
    ("[a]\nollama = 'x'", ['["a"]', "`ollama`"]),
    ("[a]\nollama = ['']", ['["a"]', "none empty"]),
    ("[a]\nquery = '" + "x" * 1001 + "'", ['["a"]', "1,000"]),
    ("[qwen3.embedding]\nquery = ''", ["'embedding' in [\"qwen3\"]", '["qwen3.embedding"]']),
    ("[a]\n['a:latest']", ["one model twice", '["a:latest"]']),
    ("[all-minilm-l6-v2]\n['all-minilm:22m']", ["one model twice"]),
]


@pytest.mark.parametrize(("text", "named"), WRONG_FACTS, ids=[text[:30] for text, _ in WRONG_FACTS])
def test_a_wrong_file_of_facts_is_refused_naming_file_key_and_what_is_allowed(home, text, named):
    home.facts(text)
    with pytest.raises(Invalid) as error:
        read_catalogue(home.environment)
    said = str(error.value)
    assert str(home.config / "model-facts.toml") in said
    assert [word for word in named if word not in said] == []
    assert said.endswith(".") and "\n" not in said


def test_a_file_that_is_no_toml_is_corrupt_and_named(home):
    home.facts("[a\n")
    assert "model-facts.toml is not valid TOML" in home.refused(CORRUPT, "model", "facts", "bge-m3")
    home.settings("[a\n")
    assert "settings.toml is not valid TOML" in home.refused(CORRUPT, "model", "list")
    home.settings("[models]\nport = 1\n")
    assert "'port' in [models]" in home.refused(INVALID, "model", "serve", "bge-m3")


def test_facts_reach_the_engine_as_the_address_carries_them():
    from lnk.contract.embedding import format_address

    facts = CATALOGUE.facts("qwen3-embedding:0.6b")
    assert parse_address(format_address("http://127.0.0.1:1/v1", facts)) == Address(
        host="127.0.0.1", port=1, base="/v1", facts=facts
    )


# ---------------------------------------------------------------- settings


WRONG_SETTINGS = [
    ("[model]", ["'model' at its top", "only models may stand"]),
    ("models = 1", ["models is no table", "[models]"]),
    ("[models]\nurls = 'x'", ["'urls' in [models]", "only url, look, ollama, lm-studio, llama-cpp, serve"]),
    ("[models]\nurl = 'http://192.0.2.1:80/v1'", ["[models] url", "192.0.2.1", "of this machine"]),
    ("[models]\nurl = 'https://127.0.0.1:80/v1'", ["[models] url", "http://127.0.0.1:9000/v1"]),
    ("[models]\nurl = 'http://127.0.0.1.evil.example/v1'", ["[models] url"]),
    ("[models]\nurl = 'http://127.0.0.1@192.0.2.1/v1'", ["[models] url"]),
    ("[models]\nurl = 'http://127.0.0.999:80/v1'", ["[models] url"]),
    ("[models]\nurl = 'http://127.0.0.1:99999/v1'", ["[models] url"]),
    ("[models]\nurl = 5", ["[models] url"]),
    ("[models]\nurl = ['http://127.0.0.1:1'," + "'http://127.0.0.1:2'," * 8 + "]", ["9 addresses", "8"]),
    ("[models]\nlook = ['vllm']", ["look", "ollama, lm-studio, llama-cpp"]),
    ("[models]\nlook = ['ollama', 'ollama']", ["look", "each once"]),
    ("[models]\nollama = 'http://127.0.0.1:1/api'", ["[models] ollama", "leave out"]),
    ("[models]\nserve = 1", ["models.serve is no table"]),
    ("[models.serve.'a b']\nurl = 'http://127.0.0.1:1'", ['[models.serve."a b"]', "names no model"]),
    ("[models.serve.a]", ['[models.serve."a"]', "one of url, command and file"]),
    ("[models.serve.a]\nurl = 'http://127.0.0.1:1'\nfile = 'x'", ["one of url, command and file"]),
    ("[models.serve.a]\ncmd = ['x']", ["'cmd'", "only url, command, file"]),
    ("[models.serve.a]\ncommand = ['x']", ["command", "{port}"]),
    ("[models.serve.a]\ncommand = 'x {port}'", ["command is a list of words"]),
    ("[models.serve.a]\nfile = 1", ["file is no path"]),
    ("[models.serve.a]\nurl = 'http://example.com'", ['[models.serve."a"] url']),
]


@pytest.mark.parametrize(("text", "named"), WRONG_SETTINGS, ids=[text[:44] for text, _ in WRONG_SETTINGS])
def test_wrong_settings_are_refused_naming_file_key_and_what_is_allowed(home, text, named):
    home.settings(text)
    with pytest.raises(Invalid) as error:
        read_settings(home.environment)
    said = str(error.value)
    assert str(home.config / "settings.toml") in said
    assert [word for word in named if word not in said] == []
    assert said.endswith(".") and "\n" not in said


def test_the_files_that_the_documents_show_are_right(home):
    shown = re.findall(r"^## `([\w-]+\.toml)`\n.*?^```toml\n(.*?)^```", FORMATS.read_text("utf-8"), re.S | re.M)
    files = {name: text for name, text in shown if name != "agent.toml"}
    one_way = re.sub(r"^(command|file) = .*\n", "", files["settings.toml"].partition("[models.serve")[2], flags=re.M)
    home.settings(files["settings.toml"].partition("[models.serve")[0] + "[models.serve" + one_way)
    home.facts(files["model-facts.toml"])
    settings = read_settings(home.environment)
    assert [at.port for at in settings.urls] == [9000] and settings.look == ("ollama", "lm-studio", "llama-cpp")
    assert settings.serve["qwen3-embedding:0.6b"].by == "url"
    assert read_catalogue(home.environment).facts("my-model") == Facts(
        query="query: ", document="passage: ", dims=256, tokens=512, pooling="mean"
    )


def test_settings_say_where_to_look_and_else_each_runtime_is_where_it_usually_is(home):
    (home.config / "settings.toml").unlink()
    usual = read_settings(home.environment)
    assert (usual.urls, usual.look, usual.serve) == ((), ("ollama", "lm-studio", "llama-cpp"), {})
    assert [(at.host, at.port, at.base) for at in usual.at.values()] == [
        ("127.0.0.1", 11434, "/v1"),
        ("127.0.0.1", 1234, "/v1"),
        ("127.0.0.1", 8080, "/v1"),
    ]
    home.settings("[models]\nurl = ['http://localhost:5', 'http://[::1]:6/api/v3/']\nollama = 'http://127.0.0.2:7'\n")
    told = read_settings({**home.environment, "OLLAMA_HOST": "127.0.0.1:9"})
    assert [(at.host, at.port, at.base) for at in (*told.urls, told.at["ollama"])] == [
        ("127.0.0.1", 5, "/v1"),
        ("::1", 6, "/api/v3"),
        ("127.0.0.2", 7, "/v1"),
    ]


@pytest.mark.parametrize(
    ("said", "host", "port"),
    [
        ("127.0.0.1", "127.0.0.1", 11434),
        ("127.0.0.1:5000", "127.0.0.1", 5000),
        ("http://127.0.0.1:5000/", "127.0.0.1", 5000),
        ("http://localhost", "127.0.0.1", 80),
        ("0.0.0.0:5000", "127.0.0.1", 5000),
        (":5000", "127.0.0.1", 5000),
        ("[::]:5000", "127.0.0.1", 5000),
        ("[::1]:5000", "::1", 5000),
        ('"localhost:5000"', "127.0.0.1", 5000),
    ],
)
def test_ollama_host_is_read_as_ollama_reads_it(said, host, port):
    assert ollama_address(said) == Address(host=host, port=port, base="/v1")


@pytest.mark.parametrize(
    "said",
    ["", "192.0.2.1:11434", "https://127.0.0.1:11434", "ollama.example", "127.0.0.1.example", "127.0.0.1:99999", "a b"],
)
def test_an_ollama_host_that_is_not_this_machine_is_not_asked(said):
    assert ollama_address(said) is None


# ---------------------------------------------------------------- list


def test_list_shows_each_runtime_with_its_models_those_known_to_embed_first(home, serve):
    tags = [
        {"name": "llama3.2:3b", "details": {"family": "llama"}},
        {"name": "aaa-own:latest", "details": {"family": "nomic-bert"}},
        {"name": "bbb-own:latest", "capabilities": ["embedding"]},
        {"name": "my-embedder:latest", "details": {}},
        {"name": "qwen3-embedding:latest", "details": {"family": "qwen3"}},
        {"name": "qwen3-embedding:cloud"},
        {"name": "far-embedder:latest", "remote_host": "https://ollama.com:443"},
        {"name": "with\x1b[31m control"},
        {"name": 5},
        "text",
    ]
    first = serve(instead(ollama(), "/api/tags", as_json({"models": tags})))
    second = serve(lm_studio("qwen2.5-7b", "text-embedding-own"))
    third = serve(llama_cpp("an alias", file="/models/bge-m3-Q8_0.gguf"))
    home.look(ollama=first, lm_studio=second, llama_cpp=third)
    assert home.json("list") == {
        "runtimes": [
            {
                "runtime": "ollama",
                "title": "Ollama",
                "url": f"{first.url}/v1",
                "version": "0.12.3",
                "models": [
                    {"model": "aaa-own:latest", "embeds": "yes"},
                    {"model": "bbb-own:latest", "embeds": "yes"},
                    {"model": "qwen3-embedding:latest", "embeds": "yes", "known": "qwen3-embedding:8b"},
                    {"model": "my-embedder:latest", "embeds": "perhaps"},
                    {"model": "llama3.2:3b", "embeds": "unknown"},
                ],
            },
            {
                "runtime": "lm-studio",
                "title": "LM Studio",
                "url": f"{second.url}/v1",
                "models": [
                    {"model": "text-embedding-own", "embeds": "yes"},
                    {"model": "qwen2.5-7b", "embeds": "unknown"},
                ],
            },
            {
                "runtime": "llama-cpp",
                "title": "llama.cpp server",
                "url": f"{third.url}/v1",
                "models": [{"model": "an alias", "embeds": "yes", "known": "bge-m3"}],
            },
        ],
        "skipped": [],
        "settings": [],
        "installed": [],
    }
    shown = home.shows("model", "list").splitlines()
    assert shown[0].split() == ["runtime", "address", "model", "embeds"]
    assert [line.split("  ")[0] for line in shown[1:-1]] == ["Ollama"] * 4 + ["LM Studio", "llama.cpp server"]
    assert shown[-1] == "(2 other models, not known to embed)"


@pytest.mark.requirement("VECT-7")
def test_list_with_nothing_there_says_how_to_get_a_model(home):
    home.look(ollama=unused_port(), lm_studio=unused_port())
    said = home.shows("model", "list")
    assert "No model runtime answers on this machine." in said and "`ollama pull qwen3-embedding`" in said
    found = home.json("list")
    assert found.pop("advice") in said
    assert found == {"runtimes": [], "skipped": [], "settings": [], "installed": []}


def test_list_names_what_is_passed_over_what_settings_serve_and_what_could_be_started(home, serve):
    install(home.programs, "ollama", models=[])
    dead = f"http://127.0.0.1:{unused_port()}/v1"
    home.look(
        f'url = "{dead}"\n[models.serve."bge-m3"]\nfile = "~/bge-m3.gguf"\n',
        ollama=unused_port(),
        lm_studio=serve(lambda _: Reply(404, b"<html>")),
    )
    found = home.json("list")
    assert (found["settings"], found["installed"]) == ([{"model": "bge-m3", "by": "file"}], ["ollama"])
    assert [each["why"] for each in found["skipped"]] == ["does not run", "answered /v1/models with status 404"]
    said = home.shows("model", "list")
    assert (
        f"Passed over: server at {dead} does not run." in said
        and "Passed over: LM Studio at" in said
        and "bge-m3 is served by the file" in said
    )
    assert "Ollama is installed, but does not run" in said


# ---------------------------------------------------------------- serve: who has it


@pytest.mark.requirement("CONTRACT-6")
def test_serve_says_one_line_by_which_the_model_embeds(home, serve):
    server = serve(ollama("qwen3-embedding:latest", "bge-m3:latest"))
    home.look(ollama=server)
    with home.serving("qwen3-embedding") as served:
        assert served.line == {
            "model": "qwen3-embedding:latest",
            "url": f"{server.url}/v1",
            "dims": DIMS,
            "runtime": "ollama",
        }
        assert served.vector() == [0.5] * DIMS
        assert served.end() == (128 + signal.SIGTERM, "")
    assert [post["model"] for post in server.posts()] == ["qwen3-embedding:latest"] * 2


@pytest.mark.requirement("VECT-7", "CONTRACT-6")
def test_no_key_is_sent_or_asked_and_no_proxy_is(home, serve):
    proxy, server = serve(lambda _: Reply(500)), serve(ollama("bge-m3:latest"))
    home.look(ollama=server)
    keys = {"OPENAI_API_KEY": "secret", "OLLAMA_API_KEY": "secret"}
    proxies = dict.fromkeys(("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"), proxy.url)
    with home.serving("bge-m3", **keys, **proxies) as served:
        assert served.line["runtime"] == "ollama"
    assert proxy.asked == []
    assert server.asked
    for request in server.asked:
        assert set(request.headers) <= {
            "host",
            "accept",
            "accept-encoding",
            "connection",
            "content-type",
            "content-length",
        }
        assert "secret" not in str(request)


def test_the_first_that_has_the_model_serves_it_in_the_order_of_the_settings(home, serve):
    own, first = serve(lm_studio("bge-m3")), serve(ollama("all-minilm:latest"))
    second, third = serve(lm_studio("text-embedding-bge-m3")), serve(llama_cpp("bge-m3"))
    home.look(ollama=first, lm_studio=second, llama_cpp=third)
    with home.serving("bge-m3") as served:
        assert served.line == {
            "model": "text-embedding-bge-m3",
            "url": f"{second.url}/v1",
            "dims": DIMS,
            "runtime": "lm-studio",
        }
    home.look(llama_cpp=third, lm_studio=second)
    with home.serving("bge-m3") as served:
        assert served.line["runtime"] == "llama-cpp"
    home.look(f'url = "{own.url}/v1"', lm_studio=second)
    with home.serving("bge-m3") as served:
        assert served.line == {"model": "bge-m3", "url": f"{own.url}/v1", "dims": DIMS, "runtime": "settings"}


def test_a_llama_cpp_server_has_what_it_loaded_whatever_it_calls_it(home, serve):
    home.look(llama_cpp=serve(llama_cpp("mine", file="/m/Qwen3-Embedding-0.6B-Q8_0.gguf")))
    with home.serving("qwen3-embedding:0.6b") as served:
        assert served.line["model"] == "mine"


def test_ollama_is_found_where_its_own_variable_says(home, serve):
    server = serve(ollama("bge-m3:latest"))
    home.settings("[models]\nlook = ['ollama']\n")
    with home.serving("bge-m3", OLLAMA_HOST=f"0.0.0.0:{server.port}") as served:
        assert served.line["url"] == f"{server.url}/v1"


@pytest.mark.requirement("VECT-6", "CONTRACT-7")
def test_a_model_that_is_not_there_is_never_replaced_by_one_that_is(home, serve):
    first, second = serve(ollama("qwen3-embedding:0.6b", "jim/qwen3-embedding:latest")), serve(lm_studio("chat-7b"))
    home.look(ollama=first, lm_studio=second)
    said = home.not_served("qwen3-embedding")
    assert said.count("\n") == 1 and "No runtime on this machine has qwen3-embedding" in said
    assert "Ollama at" in said and "qwen3-embedding:0.6b" in said and "LM Studio at" in said
    assert "`ollama pull qwen3-embedding`" in said and "ask for qwen3-embedding:0.6b, which is there" in said
    assert first.posts() == second.posts() == []
    assert "ask for" not in home.not_served("bge-m3")


@pytest.mark.requirement("CONTRACT-7", "VECT-7")
def test_with_no_runtime_there_serve_says_so_and_what_to_do(home):
    home.look(ollama=unused_port())
    said = home.not_served("qwen3-embedding:0.6b")
    assert "No model runtime runs on this machine" in said and "`ollama pull qwen3-embedding:0.6b`" in said


@pytest.mark.requirement("VECT-6")
def test_names_that_are_none_and_reserved_ones_are_refused_before_anything_is_asked(home, serve):
    server = serve(ollama("builtin:latest", "none:latest"))
    home.look(ollama=server)
    assert "the encoder that comes with Link Memory" in home.not_served("builtin", status=REFUSED)
    assert "no model is used" in home.not_served("none", status=REFUSED)
    for name in ("", "a b", "../x", "-x", "a:b:c", "x" * 121, "a\nb"):
        home.refused(USAGE if name == "-x" else INVALID, "model", "serve", name)
    assert server.asked == []


def test_a_person_is_told_the_same_in_words(home, serve):
    home.look(ollama=serve(ollama("bge-m3:latest")))
    process = subprocess.Popen(
        [LNK, "model", "serve", "bge-m3"],
        env=home.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    said = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert (process.communicate(timeout=WAIT_S), process.returncode) == (("", "\n"), INTERRUPTED)
    assert said.startswith("bge-m3:latest is served at http://127.0.0.1:") and "Ctrl-C ends it" in said


# ---------------------------------------------------------------- serve: runtimes that are not to be trusted


def _embeds(reply: Reply | None) -> Answering:
    return instead(ollama("bge-m3:latest"), "/v1/embeddings", reply)


NUMBERS = [0.5] * DIMS
DEEP = b'{"data":' + b"[" * 100_000
HOSTILE: dict[str, tuple[Answering, str]] = {
    "silent": (lambda _: None, "did not answer in time"),
    "silent list": (instead(ollama(), "/api/tags", None), "did not answer in time"),
    "endless": (lambda _: Reply(200, b" " * 65536, {}, endless=True), "answered with more than"),
    "endless drops": (lambda _: Reply(200, b" ", {}, endless=True), "("),
    "no JSON": (lambda _: Reply(200, b"<html>It works!"), "what is no JSON"),
    "deep": (lambda _: Reply(200, DEEP), "what is no JSON"),
    "another's": (lambda _: as_json({"status": "ok"}), "not as Ollama does"),
    "no list": (instead(ollama(), "/api/tags", as_json({"models": 5})), "does not list its models"),
    "error": (lambda _: as_json({"error": {"message": "out\nof memory."}}, 500), "status 500: out of memory"),
    "does not embed": (_embeds(as_json({"error": "this model does not support embeddings"}, 501)), "not support embed"),
    "silent vector": (_embeds(None), "gave no vector of bge-m3:latest in time"),
    "NaN": (_embeds(Reply(200, json.dumps(embedding([float("nan")] * DIMS)).encode())), "what is no JSON"),
    "null": (_embeds(as_json(embedding([None] * DIMS))), "with no vector"),
    "NaN in base64": (_embeds(as_json(embedding(in_base64([float("nan"), 1.0])))), "not finite"),
    "too large": (_embeds(Reply(200, b'{"data":[{"embedding":[1e400]}]}')), "("),
    "zeros": (_embeds(as_json(embedding([0.0] * DIMS))), "all zero"),
    "words": (_embeds(as_json(embedding(["a"] * DIMS))), "with no vector"),
    "broken base64": (_embeds(as_json(embedding("?"))), "with no vector"),
    "empty": (_embeds(as_json(embedding([]))), "a vector of 0 numbers"),
    "vast": (_embeds(as_json(embedding([0.5] * 9000))), "a vector of 9,000 numbers"),
    "no data": (_embeds(as_json({"data": []})), "with no vector"),
    "text": (_embeds(as_json("text")), "with no vector"),
}


@pytest.mark.requirement("CONTRACT-7")
@pytest.mark.parametrize("how", HOSTILE)
def test_a_runtime_that_is_slow_or_lies_is_passed_over_and_said(home, serve, how):
    answer, why = HOSTILE[how]
    bad, good = serve(answer), serve(lm_studio("text-embedding-bge-m3"))
    home.look(ollama=bad, lm_studio=good)
    with home.serving("bge-m3", "--wait", SHORT) as served:
        assert served.line["url"] == f"{good.url}/v1"
        status, said = served.end()
    assert status == 128 + signal.SIGTERM
    assert said.count("\n") == 1 and said.startswith(f"lnk: Ollama at {bad.url}/v1 ") and why.strip("(") in said


@pytest.mark.requirement("CONTRACT-7")
@pytest.mark.parametrize("how", ["silent", "endless drops", "silent vector", "does not embed", "NaN in base64"])
def test_with_no_other_it_is_unavailable_in_one_sentence_within_the_time(home, serve, how):
    answer, why = HOSTILE[how]
    bad = serve(answer)
    home.look(ollama=bad)
    said = home.not_served("bge-m3")
    assert f"Ollama at {bad.url}/v1 " in said and why.strip("(") in said


def test_what_speaks_no_http_is_passed_over(home, serve):
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listening.accept()
                    client.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                    client.close()

        threading.Thread(target=hang_up, daemon=True).start()
        home.look(ollama=listening.getsockname()[1])
        assert "broke off, or speaks no HTTP" in home.not_served("bge-m3")


@pytest.mark.parametrize("path", ["/api/version", "/api/tags", "/v1/embeddings"])
def test_no_redirect_is_followed(home, serve, path):
    elsewhere = serve(ollama("bge-m3:latest"))
    server = serve(
        instead(ollama("bge-m3:latest"), path, Reply(307, b"", {"Location": f"{elsewhere.url}{path}"})),
    )
    home.look(ollama=server)
    assert f"sends on from {path} to another address, which is not followed" in home.not_served("bge-m3")
    assert elsewhere.asked == []


def test_a_runtime_that_stands_behind_the_one_that_serves_is_not_talked_of(home, serve):
    home.look(ollama=serve(ollama("bge-m3:latest")), llama_cpp=serve(lambda _: Reply(404, b"<html>")))
    with home.serving("bge-m3") as served:
        assert served.end() == (128 + signal.SIGTERM, "")


def test_a_server_that_the_settings_name_and_that_is_down_is_said(home, serve):
    port = unused_port()
    home.look(f'url = "http://127.0.0.1:{port}/v1"', ollama=serve(ollama("bge-m3:latest")))
    with home.serving("bge-m3") as served:
        _, said = served.end()
    assert said == f"lnk: The server at http://127.0.0.1:{port}/v1 does not run; passed over.\n"


# ---------------------------------------------------------------- serve: staying


@pytest.mark.requirement("CONTRACT-7")
def test_when_the_runtime_is_gone_serve_ends_and_says_so(home, serve):
    server = serve(ollama("bge-m3:latest"))
    home.look(ollama=server)
    with home.serving("bge-m3", "--look", "0.05") as served:
        served.vector()
        server.close()
        status, said = served.rest()
    assert (status, said) == (UNAVAILABLE, f"lnk: Ollama at {server.url}/v1 is gone; start it again.\n")


def test_a_runtime_that_misses_a_look_and_answers_again_stays_served(home, serve):
    """Three looks in a row without an answer end it: this one answers every third."""
    looks: list[Request] = []
    enough = threading.Event()

    def answer(request: Request) -> Reply | None:
        if request.path == "/api/version":
            looks.append(request)
            if len(looks) > 12:
                enough.set()
            if len(looks) % 3 != 1:
                return Reply(200, b"", {"Content-Length": "x"})
        return ollama("bge-m3:latest")(request)

    home.look(ollama=serve(answer))
    with home.serving("bge-m3", "--look", "0.02") as served:
        assert enough.wait(WAIT_S)
        assert served.end() == (128 + signal.SIGTERM, "")


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_it_and_leaves_the_runtime_alone(home, serve, number):
    server = serve(ollama("bge-m3:latest"))
    home.look(ollama=server)
    with home.serving("bge-m3", "--port", str(unused_port())) as served:
        status, said = served.end(number)
    assert (status, said.strip()) == (128 + number, "")
    assert urllib.request.urlopen(f"{server.url}/api/version", timeout=WAIT_S).status == 200


def test_it_ends_when_nobody_is_there_to_hear_the_line(home, serve):
    home.look(ollama=serve(ollama("bge-m3:latest")))
    hearing, saying = os.pipe()
    os.close(hearing)
    done = home.model("serve", "bge-m3", "--json", stdout=saying, stderr=subprocess.PIPE)
    os.close(saying)
    assert (done.returncode, done.stderr) == (0, "")


STARTER = """\
import os, subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)
print(child.pid, child.stdout.readline().decode(), end="", flush=True)
sys.stdin.readline()
"""


def test_it_ends_when_the_process_that_started_it_does(home, serve):
    home.look(ollama=serve(ollama("bge-m3:latest")))
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, LNK, "model", "serve", "bge-m3", "--json"],
        env=home.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert starter.stdout
    number, line = starter.stdout.readline().split(" ", 1)
    assert json.loads(line)["runtime"] == "ollama"
    starter.kill()
    starter.communicate()
    assert ended(int(number))


# ---------------------------------------------------------------- serve: a port that was chosen before


@pytest.mark.requirement("CONTRACT-6")
def test_with_a_port_a_relay_leads_to_the_runtime_that_runs(home, serve):
    server, port = serve(ollama("bge-m3:latest")), unused_port()
    home.look(ollama=server)
    with home.serving("bge-m3", "--port", str(port)) as served:
        assert served.line == {
            "model": "bge-m3:latest",
            "url": f"http://127.0.0.1:{port}/v1",
            "dims": DIMS,
            "runtime": "ollama",
        }
        found: list[list[float]] = []
        threads = [threading.Thread(target=lambda: found.append(served.vector())) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert found == [[0.5] * DIMS] * 8
        served.end()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), WAIT_S)


def test_the_relay_passes_much_both_ways_and_the_ends_of_both(home, serve):
    """A stranger's protocol too: it only moves bytes, and an end of one direction leaves the other open."""
    server, port = serve(ollama("bge-m3:latest")), unused_port()
    home.look(ollama=server)
    much = os.urandom(1 << 20)
    with home.serving("bge-m3", "--port", str(port)) as served:
        server.close()
        with socket.create_server(("127.0.0.1", server.port)) as listening:
            client = socket.create_connection(("127.0.0.1", port), WAIT_S)
            behind, _ = listening.accept()
            sender = threading.Thread(target=lambda: (client.sendall(much), client.shutdown(socket.SHUT_WR)))
            sender.start()
            with behind, client:
                assert _all_of(behind) == much
                behind.sendall(much[::-1])
                behind.shutdown(socket.SHUT_WR)
                assert _all_of(client) == much[::-1]
            sender.join(WAIT_S)
            idle = [socket.create_connection(("127.0.0.1", port), WAIT_S) for _ in range(60)]
            for each in idle:  # more than it takes at once: none of them is refused
                each.close()
        with socket.create_connection(("127.0.0.1", port), WAIT_S) as client:
            assert client.recv(1) == b""  # nothing is behind it
        served.end()


def _all_of(stream: socket.socket) -> bytes:
    stream.settimeout(WAIT_S)
    return b"".join(iter(lambda: stream.recv(1 << 16), b""))


@pytest.mark.requirement("CONTRACT-6")
@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("ollama", ollama("hf.co/gpustack/bge-m3-GGUF:Q8_0")),
        ("lm_studio", lm_studio("text-embedding-bge-m3@q8_0")),
        ("llama_cpp", llama_cpp("/models/bge-m3-Q8_0.gguf")),
    ],
)
def test_at_the_port_the_model_has_the_name_it_was_asked_for_by_and_its_own(home, serve, kind, answer):
    """An engine asks for the name in its spec, and was told the address before anybody knew which runtime has it."""
    server, port = serve(answer), unused_port()
    home.facts('[bge-m3]\nollama = ["hf.co/gpustack/bge-m3-GGUF"]\n')
    home.look(**{kind: server})
    with home.serving("bge-m3", "--port", str(port)) as served:
        own = served.line["model"]
        for name in ("bge-m3", own):
            served.line["model"] = name
            assert served.vector() == [0.5] * DIMS
        served.end()
    assert [body["model"] for body in server.posts()] == [own] * 3
    assert {"model": own, "input": "a note"} in server.posts()


def test_at_the_port_the_model_is_under_v1_wherever_its_server_has_it(home, serve):
    answer = lambda request: as_json(embedding([0.1, 0.2])) if request.path == "/api/embeddings" else Reply(404)  # noqa: E731
    server, port = serve(answer), unused_port()
    home.look(f'[models.serve.bge-m3]\nurl = "{server.url}/api"\n')
    with home.serving("bge-m3", "--port", str(port), "--look", "0.05") as served:
        assert served.line["url"] == f"http://127.0.0.1:{port}/v1"
        assert served.vector() == served.vector() == [0.1, 0.2]
        served.end()


@pytest.fixture(scope="module")
def renamed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, int]]:
    """A server behind a relay that puts a model's name right, and the relay's port."""
    home, server, port = Home(tmp_path_factory.mktemp("renamed")), Server(lm_studio("text-embedding-bge-m3")), 0
    home.look(lm_studio=server)
    port = unused_port()
    with home.serving("bge-m3", "--port", str(port)) as served:
        yield server, port
        served.end()
    server.close()


def test_requests_on_one_connection_are_each_put_right(renamed):
    server, port = renamed
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    for number in range(3):
        connection.request("POST", "/v1/embeddings", json.dumps({"model": "bge-m3", "input": f"né {number}"}))
        answer = connection.getresponse()
        assert (answer.status, json.load(answer)["object"]) == (200, "list")
    connection.request("GET", "/v1/models")
    assert json.load(connection.getresponse())["data"][0]["id"] == "text-embedding-bge-m3"
    connection.close()
    assert server.posts()[-3:] == [{"model": "text-embedding-bge-m3", "input": f"né {number}"} for number in range(3)]


@pytest.mark.parametrize(
    "request_",
    [
        b"POST /v1/embeddings HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"POST /v1/embeddings HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"POST /v1/embeddings HTTP/1.1\r\nContent-Length: -2\r\n\r\n{}",
        b"POST /v1/embeddings HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n{}",
        b"POST /v1/embeddings HTTP/1.1\r\nX: " + b"x" * (1 << 17) + b"\r\n\r\n",
        b"\0\xff no request\r\n\r\n",
        b"POST\r\n\r\n",
    ],
)
def test_what_cannot_be_put_right_breaks_off_and_reaches_nobody(renamed, request_):
    server, port = renamed
    before = len(server.asked)
    with socket.create_connection(("127.0.0.1", port), WAIT_S) as client, contextlib.suppress(OSError):
        client.sendall(request_)
        assert client.recv(1) == b""
    assert len(server.asked) == before


def test_the_port_that_the_runtime_itself_has_needs_no_relay(home, serve):
    server = serve(ollama("bge-m3:latest"))
    home.look(ollama=server)
    with home.serving("bge-m3", "--port", str(server.port)) as served:
        assert served.line["url"] == f"{server.url}/v1"


def test_a_port_that_another_has_is_said(home, serve):
    other = serve(ollama())
    home.look(ollama=serve(ollama("bge-m3:latest")))
    assert f"the port {other.port} is taken" in home.not_served("bge-m3", "--port", str(other.port))
    install(home.programs, "ollama", models=["bge-m3:latest"])
    home.look(ollama=unused_port())
    assert f"the port {other.port} is taken" in home.not_served("bge-m3", "--port", str(other.port))
    for wrong in ("0", "65536", "x"):
        assert home.model("serve", "bge-m3", "--port", wrong).returncode == USAGE


@pytest.mark.requirement("CONTRACT-7")
def test_a_runtime_that_comes_up_late_is_found_at_the_port_that_was_chosen_before(home, serve):
    late, port = unused_port(), str(unused_port())
    home.look(lm_studio=late)
    home.not_served("bge-m3", "--port", port)
    serve(lm_studio("text-embedding-bge-m3"), late)
    for _ in range(2):  # also at once after one that ended: its connections may linger
        with home.serving("bge-m3", "--port", port) as served:
            assert served.line["url"] == f"http://127.0.0.1:{port}/v1"
            assert served.vector() == [0.5] * DIMS
            served.end()


# ---------------------------------------------------------------- serve: again, beside another process


@pytest.mark.requirement("CONTRACT-7")
def test_again_waits_for_a_runtime_and_finds_it_anew_after_it_was_gone(home, serve):
    late, port = unused_port(), str(unused_port())
    home.look(lm_studio=late)
    with home.waiting("bge-m3", "--port", port, "--look", "0.05") as process:
        assert "No model runtime runs" in process.stderr.readline()
        for _ in range(2):
            server = serve(lm_studio("text-embedding-bge-m3"), late)
            assert Served(process).vector() == [0.5] * DIMS
            server.close()
            assert "is gone" in process.stderr.readline()


def test_again_starts_a_program_that_is_no_use_once_and_goes_on_looking(home, serve):
    program, late = Started(home, "ollama", models=["all-minilm:latest"]), unused_port()
    home.look(ollama=unused_port(), lm_studio=late)
    with home.waiting("bge-m3") as process:
        assert "was started, but does not have bge-m3" in process.stderr.readline()
        assert program.gone()
        Path(home.root / "ollama.started").unlink()
        assert "No model runtime runs" in process.stderr.readline()
        serve(lm_studio("text-embedding-bge-m3"), late)
        assert Served(process).line["runtime"] == "lm-studio"
    assert not Path(home.root / "ollama.started").exists()


def test_again_takes_a_wrong_file_for_one_that_is_mended(home, serve):
    home.settings("[models]\nport = 1\n")
    with home.waiting("bge-m3") as process:
        assert "'port' in [models]" in process.stderr.readline()
        home.look(ollama=serve(ollama("bge-m3:latest")))
        assert Served(process).line["model"] == "bge-m3:latest"


def test_again_refuses_at_once_what_no_runtime_can_have(home):
    for model, status in (("none", REFUSED), ("-x", USAGE), ("a:b:c", INVALID)):
        assert home.model("serve", model, "--again").returncode == status


def test_beside_a_process_that_has_ended_it_ends(home, serve):
    home.look(ollama=serve(ollama("bge-m3:latest")))
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    told = home.model("serve", "bge-m3", "--json", "--again", "--beside", done.stdout.decode().strip())
    assert told.returncode == 128 + signal.SIGTERM
    assert home.model("serve", "bge-m3", "--beside", "0").returncode == USAGE


# ---------------------------------------------------------------- serve: what is started


class Started:
    """A program of the person's, and what it told of itself when it was started."""

    def __init__(self, home: Home, program: str, **told: Any) -> None:
        self._file = home.root / f"{program}.started"
        install(home.programs, program, started=str(self._file), **told)

    @property
    def told(self) -> dict[str, Any]:
        return json.loads(self._file.read_text())

    def gone(self) -> bool:
        """Whether it, and what it started, has ended."""
        return ended(self.told["pid"]) and ended(self.told["runner"])


@pytest.mark.requirement("CONTRACT-6")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_ollama_is_started_where_it_does_not_run_and_ended_with_us(home, number):
    if number == signal.SIGKILL and sys.platform != "linux":
        pytest.skip("only Linux ends a server whose starter was killed")
    program, port = Started(home, "ollama", models=["bge-m3:latest"]), unused_port()
    home.look(ollama=unused_port())
    with home.serving("bge-m3", "--port", str(port), OLLAMA_HOST="192.0.2.1:11434") as served:
        assert served.line == {
            "model": "bge-m3:latest",
            "url": f"http://127.0.0.1:{port}/v1",
            "dims": DIMS,
            "runtime": "ollama",
        }
        assert served.vector() == [0.5] * DIMS
        assert program.told["argv"] == ["serve"]
        status, said = served.end(number)
    assert (status, said.strip()) == (-number if number == signal.SIGKILL else 128 + number, "")
    assert ended(program.told["pid"])
    if number == signal.SIGKILL:
        os.kill(program.told["runner"], signal.SIGKILL)  # Ollama itself, told to end, ends it
    assert program.gone()


def test_an_ollama_that_runs_elsewhere_or_is_not_looked_for_is_not_started(home, serve):
    program = Started(home, "ollama", models=["bge-m3:latest"])
    home.look(lm_studio=unused_port())
    home.not_served("bge-m3")
    home.look(ollama=serve(ollama("all-minilm:latest")))
    home.not_served("bge-m3")
    home.look(ollama=serve(lambda _: Reply(500)))
    home.not_served("bge-m3")
    with pytest.raises(FileNotFoundError):
        _ = program.told


@pytest.mark.requirement("VECT-6", "CONTRACT-7")
@pytest.mark.parametrize(
    ("told", "wait", "why"),
    [
        ({"models": ["all-minilm:latest"]}, "15", "was started, but does not have bge-m3"),
        ({"fails": "Error: no room left."}, "15", "was started, but ended: Error: no room left"),
        ({"silent": True}, "3.5", "was started, but did not answer in time"),
    ],
)
def test_what_was_started_and_is_no_use_is_ended_again(home, told, wait, why):
    program = Started(home, "ollama", **told)
    home.look('[models.serve."bge-m3"]\ncommand = ["no-such-program", "{port}"]\n', ollama=unused_port())
    said = home.refused(UNAVAILABLE, "model", "serve", "bge-m3", "--json", "--wait", wait)
    assert why in said and "there is no program no-such-program" in said
    assert program.gone()


def test_a_server_that_was_started_and_ends_takes_us_with_it(home):
    program = Started(home, "ollama", models=["bge-m3:latest"])
    home.look(ollama=unused_port())
    with home.serving("bge-m3") as served:
        os.kill(program.told["pid"], signal.SIGKILL)
        status, said = served.rest()
    assert status == UNAVAILABLE and "is gone; start it again" in said
    assert program.gone()


def test_llama_server_is_started_with_the_file_that_the_settings_name(home):
    program, port = Started(home, "llama-server"), unused_port()
    home.look('[models.serve."qwen3-embedding:0.6b"]\nfile = "~/q.gguf"\n')
    with home.serving("text-embedding-qwen3-embedding-0.6b", "--port", str(port)) as served:
        assert served.line == {
            "model": "text-embedding-qwen3-embedding-0.6b",
            "url": f"http://127.0.0.1:{port}/v1",
            "dims": DIMS,
            "runtime": "llama-cpp",
        }
        argv = program.told["argv"]
        assert served.vector() == [0.5] * DIMS
        served.end()
    given = dict(itertools.pairwise(argv))
    assert given["--model"] == str(home.home / "q.gguf")
    assert (given["--host"], given["--pooling"]) == ("127.0.0.1", "last") and given["--port"] != str(port)
    assert given["--ctx-size"] == given["--ubatch-size"] == "2048" and "--embedding" in argv
    assert program.gone()


def test_a_command_of_the_persons_own_comes_before_what_runs(home, serve):
    program = Started(home, "my-server")
    home.look(
        '[models.serve.bge-m3]\ncommand = ["my-server", "--port", "{port}", "a b"]\n',
        ollama=serve(ollama("bge-m3:latest")),
    )
    with home.serving("bge-m3") as served:
        assert served.line["runtime"] == "settings" and served.line["model"] == "bge-m3"
        assert served.line["url"].endswith(f":{program.told['argv'][1]}/v1") and program.told["argv"][2] == "a b"
        served.end()
    assert program.gone()


def test_a_url_of_the_persons_own_serves_the_model_whatever_it_lists(home, serve):
    """As servers for one model do, which list nothing."""
    server = serve(lambda request: as_json(embedding([0.1, 0.2])) if request.method == "POST" else Reply(404))
    home.look(f'[models.serve.bge-m3]\nurl = "{server.url}/api"\n', ollama=serve(ollama("bge-m3:latest")))
    with home.serving("bge-m3", "--look", "0.05") as served:
        assert served.line == {"model": "bge-m3", "url": f"{server.url}/api", "dims": 2, "runtime": "settings"}
        assert served.end()[1] == ""
