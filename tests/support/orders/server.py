"""A small site for tests, as one would install it: orders in SQLite, a form to log in, a cookie.

`server.py PORT` serves the folder that it is started in: /login, /orders, /order (POST), /orders.json, /told
(the headers of the request), /slow and /die.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, parse_qsl, urlsplit

LOGIN = """<form method=post action=/login>
<input name=user><input name=password type=password><button>Log in</button></form>"""
ORDERS = """<title>Orders</title><form method=post action=/order style="position:fixed;inset:0;margin:0">
<button name=item value=mug style="position:absolute;inset:0 0 50% 0;width:100%">Order a mug</button>
<button name=item value=cup style="position:absolute;inset:50% 0 0 0;width:100%">Order a cup</button></form>
<p style="position:fixed;top:0">{}</p>"""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def say(self, status, text="", kind="text/html", **headers):
        body = text.encode()
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(body)

    def base(self):
        return sqlite3.connect("shop.db")

    def known(self):
        return "session=ada" in self.headers.get("Cookie", "") or self.headers.get("X-Key") == "ada"

    def taken(self, where, mb):
        """Take so many MB of the machine in pieces of 4: in memory without a name, or in a folder's files."""
        for number in range(int(mb) // 4):
            try:
                if where == "memfd":
                    file = os.memfd_create("x")
                elif where == "deleted":
                    file, name = tempfile.mkstemp()
                    Path(name).unlink()
                else:
                    file = os.open(f"{where}/{number}", os.O_WRONLY | os.O_CREAT)
                if os.write(file, bytes(4 * 2**20)) < 4 * 2**20:
                    os.write(file, b"x")  # which says why
            except OSError as error:
                return {"mb": 4 * number, "refused": error.strerror}
        return {"mb": int(mb), "refused": ""}

    def do_GET(self):
        path = urlsplit(self.path).path
        if path == "/login":
            self.say(200, LOGIN)
        elif path == "/up":
            self.say(200, "up")
        elif path == "/orders.json":
            with self.base() as base:
                rows = [{"item": item} for (item,) in base.execute("select item from orders")]
            self.say(200, json.dumps({"rows": rows}), "application/json")
        elif path == "/told":
            told = {"key": self.headers.get("X-Key"), "cookie": self.headers.get("Cookie")}
            self.say(200, json.dumps(told), "application/json")
        elif path == "/where":
            names = ("HOME", "TMPDIR", "PWD")
            self.say(200, json.dumps([str(Path.cwd()), *map(os.environ.get, names)]), "application/json")
        elif path == "/take":
            self.say(200, json.dumps(self.taken(**dict(parse_qsl(urlsplit(self.path).query)))), "application/json")
        elif path == "/slow":
            time.sleep(60)
        elif path == "/die":
            print("I was told to die", flush=True)
            os._exit(3)
        elif path == "/fork":  # a program that leaves the server's group
            child = subprocess.Popen(["sleep", f"600.{sys.argv[1]}"], start_new_session=True)
            self.say(200, str(child.pid))
        elif path == "/reach":  # what a program of this server can do beside
            self.say(200, json.dumps(reached(parse_qs(urlsplit(self.path).query))), "application/json")
        elif not self.known():
            self.say(303, Location="/login")
        else:
            with self.base() as base:
                count = base.execute("select count(*) from orders").fetchone()[0]
            self.say(200, ORDERS.format(f"{count} orders"))

    def do_POST(self):
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        if self.path == "/login":
            right = form.get("user") == ["ada"] and form.get("password") == ["secret"]
            cookie = {"Set-Cookie": "session=ada; Path=/"} if right else {}
            self.send_response(303)
            for name, value in {"Location": "/orders", "Content-Length": 0, **cookie}.items():
                self.send_header(name, str(value))
            self.end_headers()
        elif self.known():
            with self.base() as base:
                base.execute("insert into orders values (?)", (form["item"][0],))
            self.say(303, Location="/orders")
        else:
            self.say(403)


def reached(asked):
    import socket

    def can(what):
        try:
            what()
            return True
        except OSError:
            return False

    return {
        "port": can(lambda: socket.create_connection(("127.0.0.1", int(asked["port"][0])), 2)),
        "file": can(Path(asked["file"][0]).read_bytes),
        "write": can(Path(asked["write"][0]).touch),
        "environment": sorted(os.environ),
    }


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
