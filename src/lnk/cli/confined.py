"""The flag by which a person says that a program may run without a sandbox, and what follows from it."""

import argparse

from lnk.sandbox.ways import UNCONFINED, Tried, best


def add_no_sandbox(parser: argparse.ArgumentParser) -> None:
    """The flag, for a command that runs a program in a sandbox."""
    parser.add_argument("--no-sandbox", action="store_true", help="run it unconfined, where nothing can confine it")


def sandbox_of(asked: argparse.Namespace) -> Tried:
    """The sandbox that a command's program gets. Raises NoSandbox where there is none, and the flag was not typed."""
    return UNCONFINED if asked.no_sandbox else best(asked.environment)
