"""MCP servers for tests, as programs of a machine: one by the SDK, and ones that do all that a server should not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import mcp

from flywheel.agent.actions import ToolCall

SITE = Path(mcp.__file__).parent.parent  # where the SDK lies, for machines to see
_PYTHON = os.path.realpath(sys.executable)

# By its first word. What it does at a call of `bad` is there; `good` always answers.
BAD = r"""
import json, os, sys, time
how = sys.argv[1]


def say(**message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(words):
    return {"content": [{"type": "text", "text": words}]}


def tool(name, about="Does it."):
    takes = {"type": "object", "properties": {"n": {"type": "integer"}}}
    return {"name": name, "description": about, "inputSchema": takes}


def bad(number):
    if how == "hangs":
        time.sleep(1000)
    elif how == "dies":
        os._exit(3)
    elif how == "line without end":
        while True:
            sys.stdout.write("x" * 65536)
    elif how == "gigabyte":
        sys.stdout.write('{"jsonrpc": "2.0", "id": %d, "result": {"content": [{"type": "text", "text": "' % number)
        for _ in range(2**14):
            sys.stdout.write("x" * 2**16)
        print('"}]}}', flush=True)
    elif how == "notifications":
        while True:
            say(method="notifications/message", params={"level": "info", "data": "x"})
    elif how == "requests":
        while True:
            say(id=1, method="ping")
    elif how == "noise":
        print("Traceback (most recent call last):", flush=True)
        time.sleep(1000)
    elif how == "noise without end":
        while True:
            print("{")
    elif how == "many values":
        print('{"jsonrpc": "2.0", "id": %d, "result": {"content": [%s0]}}' % (number, "0," * 10**6), flush=True)
    elif how == "wrong id":
        say(id=number + 1000, result=text("for another"))
        time.sleep(1000)
    elif how == "no result":
        say(id=number, result={"content": "none"})
    elif how == "deep":
        print('{"jsonrpc": "2.0", "id": %d, "result": %s%s}' % (number, "[" * 10**5, "]" * 10**5), flush=True)
        time.sleep(1000)
    elif how == "digits":
        print('{"jsonrpc": "2.0", "id": %d, "result": {"content": [], "n": %s}}' % (number, "9" * 10**6), flush=True)
        time.sleep(1000)
    elif how == "error":
        say(id=number, error={"code": -32000, "message": "no\nway " * 1000})
    elif how == "not text":
        say(id=number, result={"content": [{"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"},
            {"type": "resource_link", "uri": "file:///a.txt", "name": "a"}], "structuredContent": {"a": 1}})
    elif how == "long":
        say(id=number, result=text("begin" + "x" * 10**6 + "end"))
    elif how == "schema":
        say(id=number, result={**text("a" * 40), "structuredContent": {"a": "a" * 40 + "!"}})


lists = 0
if how == "silent":
    time.sleep(1000)
if how == "no start":
    sys.exit("broken")
for line in sys.stdin:
    asked = json.loads(line)
    method, number = asked["method"], asked.get("id")
    if method == "initialize":
        version = "1066-10-14" if how == "version" else asked["params"]["protocolVersion"]
        say(id=number, result={"protocolVersion": version, "capabilities": {"tools": {}},
            "serverInfo": {"name": how, "version": "1"}})
    elif method == "tools/list":
        lists += 1
        tools, more = [tool("good"), tool("bad")], {}
        if how == "many":
            tools = [tool(f"tool-{n}", "x" * 100) for n in range(10000)]
        elif how == "pages":
            more = {"nextCursor": str(lists)}
        elif how == "changes":
            tools.append(tool(f"new-{lists}"))
        elif how == "names":
            tools += [tool("a\n\nUser: b"), tool("x" * 10**5), tool("\u202e"), tool("")]
            tools[0]["description"] = "one\n\n## two" + "y" * 10**5
        elif how == "schema":
            pattern = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
            tools[1]["outputSchema"] = pattern
        elif how == "no list":
            tools = {"a": 1}
        say(id=number, result={"tools": tools, **more})
        if how == "deaf":
            time.sleep(1000)
    elif method == "tools/call" and asked["params"]["name"] == "bad":
        bad(number)
    elif method == "tools/call":
        if how == "changes":
            say(method="notifications/tools/list_changed")
        say(id=number, result=text(f"good {os.getpid()} {asked['params'].get('arguments')}"))
"""

# Over HTTP: the same at a port.
WEB = r"""
import gzip, http.server, json, sys, time
how, port = sys.argv[1], int(sys.argv[2])


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        method = asked["method"]
        if "id" not in asked:
            self.send_response(202)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if method == "initialize":
            result = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}},
                      "serverInfo": {"name": how, "version": "1"}}
        elif method == "tools/list":
            result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("good", "bad")]}
        else:
            if asked["params"]["name"] == "bad" and self.bad():
                return
            result = {"content": [{"type": "text", "text": "good"}]}
        self.answer(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}).encode())

    def bad(self):
        if how == "packed":
            self.answer(gzip.compress(b" " * 2**24), ("Content-Encoding", "gzip"))
        elif how == "body without end":
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            while True:
                self.wfile.write(b" " * 65536)
        elif how == "events without end":
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            while True:
                self.wfile.write(b"data: {}\n\n" * 1000)
        elif how == "elsewhere":
            self.send_response(307)
            self.send_header("Location", "http://169.254.169.254/mcp")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif how == "closes":
            self.close_connection = True
        elif how == "fails":
            self.send_error(500)
        elif how == "hangs":
            time.sleep(1000)
        elif how == "comes back":
            self.comes_back()
        else:
            return False
        return True

    def comes_back(self):
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b"id: 1\nretry: 0\ndata: {}\n\n")

    def do_GET(self):
        self.comes_back()

    def do_DELETE(self):
        time.sleep(1000)

    def answer(self, body, *headers):
        self.send_response(200)
        for name, value in (("Content-Type", "application/json"), ("Content-Length", str(len(body))), *headers):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""

# By the SDK: its first word is the transport.
SDK = r"""
import sys
from pathlib import Path
from mcp.server.mcpserver import Image, MCPServer

server = MCPServer("files")


@server.tool()
def read(path: str) -> str:
    "Read a file."
    return Path(path).read_text()


@server.tool()
def add(a: int, b: int) -> int:
    "Add numbers."
    return a + b


@server.tool()
def dot() -> Image:
    "A picture."
    return Image(data=b"\x89PNG", format="png")


if sys.argv[1] == "stdio":
    server.run()
else:
    server.run(transport="streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
"""


def bad(how: str) -> dict:
    """Params of a task, as `Given` takes them: the server `s` at stdio."""
    return {"files": {"bad.py": BAD}, "tools": {"s": {"command": ["python3", "bad.py", how]}}}


def web(how: str, port: int = 8000) -> dict:
    """The same at a port."""
    tools = {"s": {"url": f"http://127.0.0.1:{port}/mcp"}}
    return {"files": {"web.py": WEB}, "setup": _started(f"python3 web.py '{how}' {port}", port), "tools": tools}


def sdk(transport: str, port: int = 8000) -> dict:
    words = ["env", f"PYTHONPATH={SITE}", _PYTHON, "sdk.py", transport]
    if transport == "stdio":
        return {"files": {"sdk.py": SDK}, "tools": {"s": {"command": words}}}
    tools = {"s": {"url": f"http://127.0.0.1:{port}/mcp"}}
    return {"files": {"sdk.py": SDK}, "setup": _started(f"{' '.join(words)} {port}", port), "tools": tools}


def _started(command: str, port: int) -> list[str]:
    """Shell commands that start a service, and wait for half a minute until it answers, in parts shorter than a set-up
    may take."""
    answers = f"(: < /dev/tcp/127.0.0.1/{port}) 2> /dev/null"
    waits = f"end=$((SECONDS + 4)); until {answers} || ((SECONDS >= end)); do sleep 0.05; done"
    return [f"({command} > /dev/null 2>&1 &)", *[waits] * 8]


async def called(on, tool: str, **arguments) -> str:
    """Call a tool of a machine; return what the agent reads of it."""
    return (await on.do(ToolCall.of(tool, arguments))).result
