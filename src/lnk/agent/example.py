"""The example folder that comes with Link Memory: notes, conversations and a skill of one invented person."""

import os
import shutil
from datetime import datetime
from typing import Final

import msgspec

from lnk.errors import Missing

QUESTION: Final = "What is the gate code of the holiday house?"


def folder() -> str:
    """Where the example lies in this installation."""
    path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "example")
    if not os.path.isdir(path):
        raise Missing("The example folder did not come with this installation; give --documents DIR instead.")
    return path


def lay_out(home: str, own: str) -> None:
    """A copy of the example as an agent's Home and own folder, each file of the time that its writer gave it.

    The times are kept in `dates.json`, since neither git nor an installer keeps a file's own.
    """
    source = folder()
    for part, at in (("memory", home), ("chats", own), ("skills", own)):
        shutil.copytree(f"{source}/{part}", f"{at}/{part}", dirs_exist_ok=True)
    with open(f"{source}/dates.json", "rb") as file:
        dates = msgspec.json.decode(file.read(), type=dict[str, datetime])
    for path, moment in dates.items():
        at = f"{home if path.startswith('memory/') else own}/{path}"
        os.utime(at, (moment.timestamp(), moment.timestamp()))
