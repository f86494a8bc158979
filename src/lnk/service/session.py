"""The five calls over MCP: what an engine offers as tools, and each call made and answered."""

import sys
import threading
import traceback
from collections.abc import Callable
from functools import lru_cache

import msgspec

from lnk import __version__
from lnk.errors import Corrupt, LinkError
from lnk.mcp import protocol, server
from lnk.memory.engine import Engine
from lnk.memory.index import Gone, Newer
from lnk.memory.tools import TOOLS, WrongShape, tools_for


def describe(engine: Engine) -> server.Service:
    """What the server says of itself for this engine."""
    return _described(tuple(tool.name for tool in tools_for(engine)))


@lru_cache(maxsize=8)
def _described(names: tuple[str, ...]) -> server.Service:
    """The same for all engines that have the tools of these names."""
    return server.Service(
        name="link-memory",
        title="Link Memory",
        version=__version__,
        tools=[
            server.Tool(
                name=tool.name,
                title=tool.title,
                description=tool.description,
                input_schema=tool.input_schema(),
                output_schema=tool.output_schema(),
                annotations=tool.annotations,
            )
            for tool in TOOLS
            if tool.name in names
        ],
    )


class Work:
    """Makes the calls of one session, one at a time, with one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tools = {tool.name: tool for tool in tools_for(engine)}
        self._lock = threading.Lock()
        self._making: server.Call | None = None
        self.is_outdated = (
            False  # the index is a newer program's by now, or its folder is gone: another process may serve it
        )

    def __call__(
        self, call: server.Call, session: server.Session, progress: Callable[[int, int, str], None]
    ) -> server.Reply | None:
        """The answer to `call`. What a tool could not do is its answer too, in words that a model can act on."""
        with self._lock:
            self._making = call
        try:
            tool = self._tools[call.name]
            asked = tool.parse(call.arguments)
            self._engine.of_thread(dict(call.meta), call.name)
            answer = tool.make(self._engine, asked, _told(progress) if call.progress is not None else None)
            text = msgspec.json.encode(answer)
            return session.result(call, text.decode(), msgspec.Raw(text))
        except WrongShape as error:
            return session.error(call, protocol.INVALID_PARAMS, str(error))
        except Corrupt:
            text_again = (
                "The index was damaged and is being made again; ask again in a moment. No document was touched."
            )
            return session.result(call, text_again, None, failed=True)
        except LinkError as error:
            self.is_outdated = isinstance(error, Newer | Gone)
            return session.result(call, str(error), None, failed=True)
        except Exception as error:  # the top of a session: the fault is logged, and the session goes on
            sys.stderr.write(f"lnk-link-memory: {call.name} failed: {kind_of(error)}\n")
            return session.error(call, protocol.INTERNAL_ERROR, f"{call.name} failed inside; the log says how.")
        finally:
            with self._lock:
                self._making = None

    def instructions(self, *, notes: bool = True) -> str:
        """What memory is for, and the notes; without `notes` that they could not be read."""
        return self._engine.instructions(notes=notes)

    def cancel(self, call: server.Call) -> None:
        """Stop `call` if it is being made."""
        with self._lock:
            if self._making is call:
                self._engine.cancel()


def kind_of(error: Exception) -> str:
    """An error for the log: its kind and where it came from, not its words, which may be a document's."""
    at = traceback.extract_tb(error.__traceback__)[-1:]
    return f"{type(error).__name__}{''.join(f' in {each.name}, line {each.lineno}' for each in at)}"


def _told(progress: Callable[[int, int, str], None]) -> Callable[[int, int], None]:
    return lambda done, of: progress(done, of, f"{done:,} of {of:,} documents are indexed")
