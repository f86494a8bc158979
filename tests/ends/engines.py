"""Memory engines that keep only the contract, made by the tests: a few lines of Python each, installed on a PATH."""

import json
import sys
from pathlib import Path

# Keeps the contract and no more. `try` does what the contract's sandbox is to allow or deny, and says how that went.
TOY = """\
#!{python}
import json, os, socket, sys
def attempt(do, *args):
    try: return {{"read": lambda p: open(p).read(), "list": lambda p: sorted(os.listdir(p)),
                 "write": lambda p: open(p, "w").write("x"), "env": lambda n: os.environ.get(n),
                 "connect": lambda p: socket.create_connection(("127.0.0.1", int(p)), 2).recv(9).decode(),
                 "run": lambda p: os.popen(p).read()}}[do](*args)
    except Exception as error: return type(error).__name__
if sys.argv[1] == "install":
    open("installed", "a").write(os.environ["HOME"] + repr(sys.stdin.read()) + "\\n"); {install}; sys.exit()
if sys.argv[1] == "command":
    print(json.dumps({{"argv": [os.path.basename(sys.argv[0]), "serve", *sys.argv[2:]], "allow": ["try"], **{more}}}))
    sys.exit()
for line in sys.stdin:
    asked = json.loads(line)
    call = asked.get("params", {{}}).get("arguments", {{}})
    tools = [{{"name": name, "inputSchema": {{"type": "object"}}}} for name in ("try", "forget-all")]
    answers = {{"initialize": {{"protocolVersion": "2025-11-25", "capabilities": {{"tools": {{}}}},
                             "serverInfo": {{"name": "toy", "version": "1"}}}},
               "tools/list": {{"tools": tools}}}}
    if "id" in asked:
        if asked["method"] == "tools/call":
            text = json.dumps([attempt(*each) for each in call.get("all", [])])
            answers["tools/call"] = {{"content": [{{"type": "text", "text": text}}]}}
        known = asked["method"] in answers
        body = {{"result": answers[asked["method"]]}} if known else {{"error": {{"code": -32601, "message": "no"}}}}
        print(json.dumps({{"jsonrpc": "2.0", "id": asked["id"], **body}}), flush=True)
"""


# Serves many agents from one process, and says of each call which agent's it is, and which process it is.
TOY_MANY = """\
#!{python}
import json, os, socket, sys, threading
def session(stream, agents):
    lines = stream.makefile("rwb", buffering=0)
    agent = json.loads(lines.readline()).get("agent")
    lines.write(json.dumps({{"ok": True}} if agent in agents else {{"error": "who is that?"}}).encode() + b"\\n")
    for line in lines if agent in agents else ():
        asked = json.loads(line)
        if asked.get("params", {{}}).get("arguments", {{}}).get("die"): os._exit(3)
        told = {{"agent": agent, "argv": agents[agent]["argv"], "process": os.getpid(), "said": "x" * 300000}}
        result = {{"content": [{{"type": "text", "text": json.dumps(told)}}], "protocolVersion": "2025-11-25",
                   "capabilities": {{"tools": {{}}}}, "serverInfo": {{"name": "toy", "version": "1"}}}}
        if "id" in asked:
            lines.write(json.dumps({{"jsonrpc": "2.0", "id": asked["id"], "result": result}}).encode() + b"\\n")
    stream.shutdown(socket.SHUT_RDWR)
if sys.argv[1] == "command":
    argv = [os.path.basename(sys.argv[0]), "serve", *sys.argv[2:]]
    print(json.dumps({{"argv": argv, "allow": ["try"], "shared": True}}))
elif sys.argv[1] == "serve-many":
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(sys.argv[2]); listening.listen()
    agents = json.load(open(sys.argv[3]))
    while True:
        threading.Thread(target=session, args=(listening.accept()[0], agents), daemon=True).start()
"""


def toy_many(folder: Path, name: str = "toys") -> Path:
    """Installs an engine that is `shared`, and knows the contract's `serve-many` alone."""
    return _installed(folder, name, TOY_MANY.format(python=sys.executable))


def toy(folder: Path, name: str = "toy", *, install: str = "pass", **more: object) -> Path:
    """Installs the engine typed as `name` in a folder of programs; `more`: further keys of what it prints."""
    return _installed(folder, name, TOY.format(python=sys.executable, install=install, more=repr(more)))


def printing(folder: Path, text: str, *, name: str = "toy", install: str = "exit 0") -> Path:
    """An engine whose `command` prints just this."""
    script = f"#!/bin/sh\ncase \"$1\" in install) {install};; esac\ncat <<'END'\n{text}\nEND\n"
    return _installed(folder, name, script)


def saying(folder: Path, script: str, *, name: str = "toy") -> Path:
    """An engine that is this shell script."""
    return _installed(folder, name, f"#!/bin/sh\n{script}\n")


def serve(**keys: object) -> str:
    """What a good engine prints, with these keys."""
    return json.dumps({"argv": ["lnk-toy", "serve"], **keys})


def _installed(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / f"lnk-{name}"
    program.write_text(script)
    program.chmod(0o755)
    return program
