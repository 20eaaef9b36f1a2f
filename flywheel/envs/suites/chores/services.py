"""Draw chores that start, end and change services. A request to their port tells whether they run."""

from __future__ import annotations

import random
from typing import Any

from flywheel.agent.actions import ReadFile, Terminal
from flywheel.envs.suites.chores.family import (
    ChoreFamily,
    ChoreParams,
    ExpertSteps,
    draw_text,
    draw_words,
    step_budgets,
)

_PORTS = range(8000, 9000)


def _serve(level: int, rng: random.Random) -> dict[str, Any]:
    """Draw a folder to serve: at a given port (level 1), a port named in a file (2), chosen by what its page says
    (3)."""
    folder, other, page, *_ = draw_words(rng, 4)
    port, content = str(rng.choice(_PORTS)), draw_text(rng, 1)
    files = {f"{folder}/{page}.html": content}
    where = f"at port {port}"
    if level > 1:
        files["port.txt"], where = f"{port}\n", "at the port that stands in port.txt"
    if level > 2:
        files[f"{other}/{page}.html"] = draw_text(rng, 1)
    which = f"the folder {folder}" if level < 3 else f"the folder whose {page}.html has the words '{content.strip()}'"
    return {"files": files, "served": {port: content}, "ports": {port: f"/{page}.html"}, "which": which, "where": where,
            "port": port, "folder": folder}  # fmt: skip


def _play_serve(p: ChoreParams) -> ExpertSteps:
    yield "I look at the files.", Terminal("find . -type f | xargs head")
    command = f"python3 -m http.server {p['port']} --directory {p['folder']} >/dev/null 2>&1 &"
    yield "I start a server for it.", Terminal(command)
    yield "I see whether it answers.", Terminal(f'sleep 1; python3 -c "{_ask(p)}"')


def _ask(p: ChoreParams) -> str:
    port, path = next(iter(p["ports"].items()))
    return f"from urllib.request import urlopen; print(urlopen('http://127.0.0.1:{port}{path}').read())"


def _started(command: str, port: str) -> str:
    """Return a shell command that starts a service in the background and waits until its port accepts connections."""
    answers = f"(: </dev/tcp/127.0.0.1/{port}) 2>/dev/null"
    return f"setsid {command} >/dev/null 2>&1 & for n in $(seq 100); do {answers} && break; sleep 0.1; done; {answers}"


def _end(level: int, rng: random.Random) -> dict[str, Any]:
    """Draw `level` services, of which one is to be ended."""
    words = draw_words(rng, level)
    ports = [str(port) for port in rng.sample(_PORTS, level)]
    contents = [draw_text(rng, 1) for _ in words]
    files = {f"{word}/index.html": content for word, content in zip(words, contents, strict=True)}
    commands = [f"python3 -m http.server {port} --directory {word}" for port, word in zip(ports, words, strict=True)]
    served = dict(zip(ports, contents, strict=True)) | {ports[0]: None}
    return {"files": files, "setup": [_started(*one) for one in zip(commands, ports, strict=True)],
            "served": served, "ports": dict.fromkeys(ports, "/"), "port": ports[0]}  # fmt: skip


def _play_end(p: ChoreParams) -> ExpertSteps:
    yield "I see what runs.", Terminal("ps ax -o pid,args")
    yield "I end the one of this port.", Terminal(f"pkill -f 'http.server {p['port']}'")
    yield "I see what runs now.", Terminal("ps ax -o pid,args")


def _change(level: int, rng: random.Random) -> dict[str, Any]:
    """Draw a service whose settings are to be changed: its port (level 1), its text (2), both (3)."""
    port, new = (str(one) for one in rng.sample(_PORTS, 2))
    old_text, new_text = draw_words(rng, 2)
    changed_port, changed_text = new if level != 2 else port, new_text if level != 1 else old_text
    asked = [f"the port {new}"] * (level != 2) + [f"the text {new_text}"] * (level != 1)
    return {"files": {"server.py": _SERVER, "server.conf": f"port={port}\ntext={old_text}\n"},
            "setup": [_started("python3 server.py", port)],
            "wanted": {"server.conf": f"port={changed_port}\ntext={changed_text}\n"},
            "served": {changed_port: changed_text} | ({port: None} if level != 2 else {}),
            "ports": dict.fromkeys((changed_port, port), "/"), "asked": " and ".join(asked)}  # fmt: skip


_SERVER = '''"""Serves the text of server.conf at its port. It reads them when it starts."""
from http.server import BaseHTTPRequestHandler, HTTPServer

said = dict(line.strip().split("=", 1) for line in open("server.conf"))


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(said["text"].encode())


HTTPServer(("127.0.0.1", int(said["port"])), Handler).serve_forever()
'''


def _play_change(p: ChoreParams) -> ExpertSteps:
    yield "I read its settings.", ReadFile("server.conf")
    lines = p["wanted"]["server.conf"].replace("\n", "\\n")
    yield "I change them.", Terminal(f"printf '{lines}' > server.conf")
    yield "I start it anew.", Terminal("pkill -f server.py; sleep 0.3; python3 server.py >/dev/null 2>&1 &")
    yield "I wait until it answers.", Terminal("sleep 1; ps ax -o args | grep server.py")


FAMILIES = {
    "serve": ChoreFamily(
        "Serve {which} over HTTP {where}, and let it run.",
        _serve, _play_serve, step_budgets(8, 8, 10),
    ),
    "end": ChoreFamily(
        "End the service that answers at port {port}, and no other.",
        _end, _play_end, step_budgets(8, 8, 8),
    ),
    "change": ChoreFamily(
        "server.py runs and answers by server.conf. Give it {asked}, and let it run with that.",
        _change, _play_change, step_budgets(8, 8, 10),
    ),
}  # fmt: skip
