"""`lnk model list | serve | facts`: embedding models in runtimes on this machine.

`lnk.models` is imported by the command that needs it: every other start of `lnk` does without.
"""

import argparse
import sys
from typing import Any, Final

from lnk.cli.output import (
    as_typed,
    command,
    counted,
    discard,
    faint,
    say,
    say_json,
    say_styled,
    say_table,
    tell,
    write,
)
from lnk.contract.shape import format_value
from lnk.contract.spec import MODEL_ASKED
from lnk.errors import Usage, from_os

SECONDS_MAX: Final = 3600.0
FROM: Final = {"link": "Link", "person": "you"}


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """The commands, under `lnk model`."""
    listing = commands.add_parser("list", parents=[common], help="the runtimes on this machine and their models")
    listing.set_defaults(run=_list)
    serving = commands.add_parser("serve", parents=[common], help="serve a model until it is ended (Link runs it)")
    serving.add_argument("model", metavar="MODEL", help=f"e.g. {MODEL_ASKED} or {MODEL_ASKED}:0.6b")
    serving.add_argument("--port", type=_port, metavar="N", help="serve it at this port, whichever runtime has it")
    serving.add_argument("--wait", type=_seconds, metavar="S", help="give up after so many seconds (default: 10)")
    serving.add_argument(
        "--look",
        type=_seconds,
        metavar="S",
        help="look whether it still answers every so many seconds (default: 30)",
    )
    serving.add_argument("--again", action="store_true", help="look for a runtime until one has it, and again after")
    serving.add_argument("--beside", type=_process, metavar="PID", help="end with this process, which started this one")
    serving.add_argument(
        "--opening",
        type=_descriptor,
        metavar="FD",
        help="the port is one inside a sandbox, and this descriptor leads there",
    )
    serving.set_defaults(run=_serve)
    facts = commands.add_parser("facts", parents=[common], help="what is known of a model, and where that is from")
    facts.add_argument("model", nargs="?", metavar="MODEL", help="as any runtime names it; without it, all models")
    facts.set_defaults(run=_facts)


def _port(text: str) -> int:
    port = int(text)
    if not 0 < port < 65_536:
        raise argparse.ArgumentTypeError(f"{text} is no port; give a number from 1 to 65535")
    return port


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"{text} is no time; give a number of seconds, at most {SECONDS_MAX:g}")
    return seconds


def _process(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is no process; give its number")
    return number


def _descriptor(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is no descriptor; give its number")
    return number


# ---------------------------------------------------------------- list


def _list(asked: argparse.Namespace) -> int:
    from lnk.models.overview import machine

    found = machine(asked.environment)
    if asked.json:
        say_json(found)
        return 0
    if found["runtimes"]:
        _say_runtimes(found["runtimes"])
    else:
        say("No model runtime answers on this machine.")
    for each in found["settings"]:
        say(f"{each['model']} is served by the {each['by']} that your settings.toml names.")
    for each in found["skipped"]:
        say(f"Passed over: {each['title']} at {each['url']} {each['why']}.")
    if "advice" in found:
        say(as_typed(found["advice"]))
    return 0


def _say_runtimes(running: list[dict[str, Any]]) -> None:
    rows: list[list[str]] = []
    others = 0
    for each in running:
        shown = [model for model in each["models"] if model["embeds"] != "unknown"]
        others += len(each["models"]) - len(shown)
        rows += [[each["title"], each["url"], model["model"], model["embeds"]] for model in shown]
        if not shown:
            rows.append([each["title"], each["url"], "no embedding model", ""])
    say_table(rows, head=("runtime", "address", "model", "embeds"))
    if others:
        say_styled(faint(f"({counted(others, 'other model')}, not known to embed)"))


# ---------------------------------------------------------------- serve


def _serve(asked: argparse.Namespace) -> int:
    from lnk.models.opening import Opening
    from lnk.models.processes import end_with_parent
    from lnk.models.serve import EVERY_S, WAIT_S, Line, serve, serve_again

    def say_line(line: Line) -> None:
        _say_now(
            format_value(line)
            if asked.json
            else f"{line.model} is served at {line.url} ({line.dims:,} numbers a vector); Ctrl-C ends it."
        )

    if asked.opening is not None and asked.port is None:
        raise Usage("--opening leads to a port inside a sandbox; say which with --port.")
    end_with_parent(asked.beside)
    opening = None if asked.opening is None else Opening(asked.opening, asked.port)
    wait_s, every_s = asked.wait or WAIT_S, asked.look or EVERY_S
    model, environment = asked.model, asked.environment
    if asked.again:
        serve_again(
            model,
            environment,
            port=asked.port,
            opening=opening,
            wait_s=wait_s,
            every_s=every_s,
            heard=say_line,
            tell=_tell_passed,
        )
    with serve(model, environment, port=asked.port, opening=opening, wait_s=wait_s, tell=_tell_passed) as serving:
        say_line(serving.line)
        serving.stay(every_s)
    return 0


def _tell_passed(said: str) -> None:
    tell(f"lnk: {said}")


def _say_now(text: str) -> None:
    """One line, written at once. Raises BrokenPipeError where nobody is there to read it, Full and so on."""
    write(text + "\n")
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard()
        raise from_os(error, "write the output") from None


# ---------------------------------------------------------------- facts


def _facts(asked: argparse.Namespace) -> int:
    from lnk.models.overview import all_facts, facts_of

    found = facts_of(asked.model, asked.environment) if asked.model else all_facts(asked.environment)
    if asked.json:
        say_json(found)
    elif asked.model:
        _say_facts(found)
    else:
        _say_all_facts(found)
    return 0


def _say_facts(found: dict[str, Any]) -> None:
    if found["model"] != found["known"]:
        say(f"{found['model']} is {found['known']}.")
    fields = found["fields"]
    say_table([[name, _plain(field["value"]), FROM[field["from"]]] for name, field in fields.items()])
    say_styled(faint(f"(what {found['file']} says stands over what Link knows)"))


def _say_all_facts(found: dict[str, Any]) -> None:
    rows = []
    for each in found["models"]:
        fields = {name: field["value"] for name, field in each["fields"].items()}
        kept = fields.get("dims") or fields.get("native")
        numbers = [f"{number:,}" if number else "" for number in (kept, fields.get("tokens"))]
        sources = sorted({FROM[field["from"]] for field in each["fields"].values()})
        rows.append([each["known"], *numbers, fields.get("pooling", ""), fields.get("terms", ""), ", ".join(sources)])
    say_table(rows, head=("model", "numbers", "tokens", "pooling", "terms", "from"))
    say_styled(faint(f"({command()} model facts MODEL shows all of one; what {found['file']} says stands over it)"))


def _plain(value: Any) -> str:
    """A field's value as a person reads it; an instruction in quotes, since its end counts."""
    if isinstance(value, list):
        return ", ".join(value)
    return f"{value:,}" if isinstance(value, int) else format_value(value)
