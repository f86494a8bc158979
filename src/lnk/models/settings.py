"""The person's `~/.config/lnk/settings.toml`, its part `[models]`: where models are looked for, and how one is started.

    [models]
    url = "http://127.0.0.1:9000/v1"             # or a list: OpenAI-compatible servers, asked before all others
    look = ["ollama", "lm-studio", "llama-cpp"]  # the runtimes looked for, in this order; all three where left out
    ollama = "http://127.0.0.1:11434"            # where one listens, where that is not its usual address;
    lm-studio = "http://127.0.0.1:1234"          # `ollama` stands over $OLLAMA_HOST
    llama-cpp = "http://127.0.0.1:8080"

    [models.serve."qwen3-embedding:0.6b"]        # how one model is served: one of the three
    url = "http://127.0.0.1:9001/v1"             # a server that has it, whatever it lists
    command = ["my-server", "--port", "{port}"]  # starts one, which then has it at http://127.0.0.1:{port}/v1
    file = "~/models/Qwen3-Embedding-0.6B-Q8_0.gguf"  # what `llama-server` is started with, after all else

Every address is this machine's own: 127.x.y.z, localhost or [::1].
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from lnk.contract.embedding import Address
from lnk.contract.shape import Value
from lnk.contract.spec import check_model
from lnk.errors import Invalid, LinkError
from lnk.models.files import config_file, read_toml

FILE: Final = "settings.toml"
URLS_MAX: Final = 8  # each is asked at every start of a session
SERVED_MAX: Final = 100
WORDS_MAX: Final = 100  # of a command

OLLAMA, LM_STUDIO, LLAMA_CPP = "ollama", "lm-studio", "llama-cpp"
PORTS: Final = {OLLAMA: 11434, LM_STUDIO: 1234, LLAMA_CPP: 8080}  # where each listens by itself
BASE: Final = "/v1"
PORT_WORD: Final = "{port}"

_LOCAL: Final = "127.0.0.1"
_URL = re.compile(r"http://(127(?:\.\d{1,3}){3}|localhost|\[::1\])(?::(\d{1,5}))?((?:/[A-Za-z0-9._~-]+)*)/?")
_OLLAMA_HOST = re.compile(r"(http://)?(\[[0-9A-Fa-f:]*\]|[^:/\[\]]*)(?::(\d{1,5}))?/?")
_HERE: Final = ("", "0.0.0.0", "[::]", "localhost")  # as Ollama binds them: this machine is among them


class Serve(Value, frozen=True):
    """How a model is served: by the server at `url`, by one that `command` starts, or by llama-server with `file`."""

    url: Address | None = None
    command: tuple[str, ...] | None = None
    file: str | None = None

    @property
    def by(self) -> str:
        """Which of the three."""
        return "url" if self.url else "command" if self.command else "file"


class Settings(Value, frozen=True):
    """`urls`: the servers asked first; `look`: the runtimes looked for after, in order; `at`: where each listens."""

    path: str
    urls: tuple[Address, ...]
    look: tuple[str, ...]
    at: dict[str, Address]
    serve: dict[str, Serve]


def read_settings(environment: Mapping[str, str]) -> Settings:
    """The person's settings, or what stands where there are none. Raises Invalid and Corrupt, naming file and key."""
    path = config_file(environment, FILE)
    whole = read_toml(path)
    _only(path, "", whole, ("models",))
    said = whole.get("models", {})
    _only(path, "models", said, ("url", "look", *PORTS, "serve"))
    at = {name: Address(host=_LOCAL, port=port, base=BASE) for name, port in PORTS.items()}
    at[OLLAMA] = ollama_address(environment.get("OLLAMA_HOST", "")) or at[OLLAMA]
    at |= {name: _runtime(f"{path}, [models] {name}", said[name]) for name in PORTS if name in said}
    urls = said.get("url", [])
    urls = urls if isinstance(urls, list) else [urls]
    if len(urls) > URLS_MAX:
        raise Invalid(f"{path}, [models] url has {len(urls)} addresses; keep it to {URLS_MAX}.")
    return Settings(
        path=path,
        urls=tuple(parse_url(f"{path}, [models] url", url) for url in urls),
        look=_look(path, said.get("look", [*PORTS])),
        at=at,
        serve=_served(path, said.get("serve", {})),
    )


def parse_url(what: str, text: object) -> Address:
    """The address of a server on this machine. Without a path it is `/v1`. Raises Invalid, beginning with `what`."""
    found = _URL.fullmatch(text) if isinstance(text, str) else None
    address = found and _address(found[1], int(found[2] or 80), found[3] or BASE)
    if not address:
        raise Invalid(
            f"{what} is {str(text)[:80]!r}; give an address of this machine such as http://127.0.0.1:9000/v1."
        )
    return address


def format_url(address: Address) -> str:
    """`address` as a client takes it; what stands before /embeddings."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"http://{host}:{address.port}{address.base}"


def ollama_address(text: str) -> Address | None:
    """Where `$OLLAMA_HOST`, as Ollama reads it, says that Ollama listens; None where that is not this machine."""
    found = _OLLAMA_HOST.fullmatch(text.strip().strip("\"'"))
    if not found or not text.strip():
        return None
    host = _LOCAL if found[2] in _HERE else found[2]
    port = int(found[3] or (80 if found[1] else PORTS[OLLAMA]))
    return _address(host, port, BASE) if _URL.fullmatch(f"http://{host}") else None


def _address(host: str, port: int, base: str) -> Address | None:
    """None for what can be no address. No name is looked up: `localhost` might be said to be another machine."""
    host = _LOCAL if host == "localhost" else host.strip("[]")
    whole = ":" in host or all(int(part) < 256 for part in host.split("."))
    return Address(host=host, port=port, base=base) if whole and 0 < port < 65_536 else None


def _runtime(what: str, text: object) -> Address:
    """A known runtime's address: it has its own paths, so none is given."""
    address = parse_url(what, text)
    if address.base != BASE:
        raise Invalid(f"{what} is {str(text)[:80]!r}; leave out what stands after the port.")
    return address


def _look(path: str, said: object) -> tuple[str, ...]:
    if not isinstance(said, list) or any(name not in PORTS for name in said) or len(set(said)) < len(said):
        raise Invalid(f"{path}, [models] look is {str(said)[:80]}; list some of {', '.join(PORTS)}, each once.")
    return tuple(said)


def _served(path: str, said: object) -> dict[str, Serve]:
    _only(path, "models.serve", said, None)
    assert isinstance(said, dict)
    if len(said) > SERVED_MAX:
        raise Invalid(f"{path}, [models.serve] has {len(said)} models; keep it to {SERVED_MAX}.")
    return {model: _serve(path, model, table) for model, table in said.items()}


def _serve(path: str, model: str, said: Any) -> Serve:
    where = f'{path}, [models.serve."{model}"]'
    try:
        check_model(model)
    except LinkError:
        raise Invalid(f'{where} names no model; write e.g. [models.serve."qwen3-embedding:0.6b"].') from None
    _only(path, f'models.serve."{model}"', said, ("url", "command", "file"))
    if len(said) != 1:
        raise Invalid(f"{where} has to say one of url, command and file.")
    if "url" in said:
        return Serve(url=parse_url(f"{where} url", said["url"]))
    if "command" in said:
        return Serve(command=_command(where, said["command"]))
    if not isinstance(said["file"], str) or not said["file"] or "\0" in said["file"]:
        raise Invalid(f"{where} file is no path; give the path of a GGUF file.")
    return Serve(file=said["file"])


def _command(where: str, said: object) -> tuple[str, ...]:
    words = said if isinstance(said, list) else []
    plain = all(isinstance(word, str) and "\0" not in word for word in words)
    if not plain or not 0 < len(words) <= WORDS_MAX or not any(PORT_WORD in word for word in words):
        raise Invalid(
            f'{where} command is a list of words with {PORT_WORD} in one: ["my-server", "--port", "{PORT_WORD}"].'
        )
    return tuple(words)


def _only(path: str, table: str, said: object, keys: tuple[str, ...] | None) -> None:
    """Raises Invalid where `said` is no table, or has a key beside `keys`."""
    if not isinstance(said, dict):
        raise Invalid(f"{path}, {table} is no table; write [{table}] above its keys.")
    for key in said:
        if keys is not None and key not in keys:
            where = f"in [{table}]" if table else "at its top"
            raise Invalid(f"{path} has {key!r} {where}, where only {', '.join(keys)} may stand.")
