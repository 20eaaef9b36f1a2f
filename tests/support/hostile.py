"""Pages that misbehave, served on 127.0.0.1, as a page source of the sandbox. Beside them a quiet one.

A page is a small HTML document with one big button. `load` runs in it at once, `click` in the button's handler; what
they `tell` comes back in the state. The score is kept here, not in the page: nothing that a page does can raise it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from flywheel.agent.actions import Click, Point
from flywheel.envs.base import Task

BUTTON = Click(Point(0.5, 0.35))
QUIET = "quiet"
_PAGE = """<!doctype html><html><head><meta charset="utf-8"><title>page</title>HEAD</head>
<body style="margin: 0; font: 16px sans-serif; background: #eef1f6">
<button id="button" data-el="button" style="position: absolute; left: 20%; top: 20%; width: 60%; height: 30%">go
</button><p id="count">0</p>
<script>
let clicks = 0;
const told = [];
const tell = (what) => { told.push(String(what).slice(0, 60)); };
window.__env__ = { getState: () => ({ clicks, told, now: performance.now() }) };
document.getElementById("button").addEventListener("click", () => {
  clicks += 1;
  document.getElementById("count").textContent = clicks;
  CLICK
});
LOAD
</script>BODY</body></html>"""
# All of the picture changes with page time and with chance: what disturbs either is seen.
_QUIET = """<!doctype html><html><head><meta charset="utf-8"><title>quiet</title><style>
@keyframes slide { from { left: 0 } to { left: 80% } }
i { position: absolute; top: 70%; width: 10%; height: 10%; background: #357; animation: slide 2s linear infinite }
</style></head><body><canvas width="64" height="64"></canvas><p></p><i></i><script>
const pen = document.querySelector("canvas").getContext("2d");
let frames = 0, clicks = 0;
const frame = () => {
  frames += 1;
  pen.fillStyle = `hsl(${frames * 7} 60% 50%)`;
  pen.fillRect(Math.random() * 60, Math.random() * 60, 9, 9);
  document.querySelector("p").textContent = `${frames} ${clicks} ${Date.now()}`;
  requestAnimationFrame(frame);
};
requestAnimationFrame(frame);
addEventListener("click", () => { clicks += 1; });
window.__env__ = { getState: () => ({ frames, clicks, now: performance.now() }) };
</script></body></html>"""


@dataclass(frozen=True)
class Page:
    """head, body: further HTML. status, headers: of the answer. send: answers by itself instead."""

    load: str = ""
    click: str = ""
    head: str = ""
    body: str = ""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    send: Callable[[Any], None] | None = None


class Site:
    """Serves pages by name at /p/NAME and counts the requests of each path. `over` is set at the end."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self.pages, self.hits, self.over = dict(pages), {}, threading.Event()
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path = urlsplit(self.path).path
                site.hits[path] = site.hits.get(path, 0) + 1
                site.answer(self, path)

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """A page that is thrown away drops its connections."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> Site:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: Any, path: str) -> None:
        page = self.pages.get(path.removeprefix("/p/"))
        if page is None:
            reply(request, 404, "nothing here")
        elif page.send is not None:
            page.send(request)
        else:
            html = _PAGE.replace("HEAD", page.head).replace("BODY", page.body)
            html = html.replace("CLICK", page.click).replace("LOAD", page.load)
            reply(request, page.status, self.filled(html), page.headers)

    def filled(self, text: str) -> str:
        return text.replace("{site}", self.url)


def reply(request: Any, status: int, body: str | bytes, headers: Mapping[str, str] | None = None) -> None:
    data = body.encode() if isinstance(body, str) else body
    request.send_response(status)
    for name, value in {"Content-Type": "text/html; charset=utf-8", **(headers or {})}.items():
        request.send_header(name, value)
    if status != 204:
        request.send_header("Content-Length", str(len(data)))
    request.end_headers()
    if status != 204:
        request.wfile.write(data)


def redirect(to: Callable[[str], str]) -> Callable[[Any], None]:
    """Answers with a redirect to what `to` makes of the path that was asked for."""
    return lambda request: reply(request, 302, "", {"Location": to(request.path)})


def endless(site_over: threading.Event, headers: Mapping[str, str], chunk: bytes) -> Callable[[Any], None]:
    """Headers, then `chunk` for ever; an empty one is silence."""

    def send(request: Any) -> None:
        request.send_response(200)
        for name, value in headers.items():
            request.send_header(name, value)
        request.end_headers()
        request.close_connection = True
        while not site_over.wait(0.01):
            request.wfile.write(chunk)

    return send


def silence(site_over: threading.Event) -> Callable[[Any], None]:
    """Takes the request and says nothing."""

    def send(request: Any) -> None:
        request.close_connection = True
        site_over.wait()

    return send


@dataclass
class Session:
    """As `flywheel.envs.browser.page_source.PageSession` asks. The score is 0 here, whatever the page tells."""

    url: str
    allowed: tuple[str, ...]
    viewport: tuple[int, int] | None = None
    step_ms: int | None = None
    prepare: str = ""
    state_expression: str = ""
    restorable: bool = False
    files: None = None

    def state(self, seen: Mapping[str, Any]) -> dict[str, Any]:
        game = seen.get("game")
        return {**(game if isinstance(game, dict) else {}), "score": 0.0, "terminated": False}

    def score(self, state: Mapping[str, Any]) -> float:
        return float(state["score"])

    def save_server_state(self) -> bytes:
        return b""

    def restore_server_state(self, kept: bytes) -> None:
        pass

    def close(self) -> None:
        pass


class Source:
    """A task's template names its page of the site."""

    def __init__(self, site: Site) -> None:
        site.pages[QUIET] = Page(send=lambda request: reply(request, 200, _QUIET))
        self.site = site

    def open(self, task: Task, seed: int) -> Session:
        return Session(f"{self.site.url}/p/{task.template}", (f"{self.site.url}/",))


def task_on(page: str, max_steps: int = 50) -> Task:
    """A task on one page of a site. Its session says the score."""
    return Task(
        f"task of {page}",
        "sites",
        "hostile",
        page,
        1,
        7,
        "Click the button.",
        {},
        max_steps,
        "train",
        "hostile",
        1.0,
        "",
    )
