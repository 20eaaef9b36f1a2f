"""Pages for the sandbox's benchmarks: a moving game, and MiniWoB's folder. No benchmark itself.

`Pages` serves them on 127.0.0.1 and is a page source of the sandbox, so that ours and the peer open the same address.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from flywheel.envs.base import Task

GAME, MINIWOB = "bench_game", "bench_miniwob"  # names of worlds
MINIWOB_PAGE = "miniwob/click-checkboxes.html"
MINIWOB_SIZE = (498, 321)  # pixels of BrowserGym's screenshot of a MiniWoB page
# As many frames as the display shows, a clock of its own, a heading in the DOM: every step changes the whole picture.
_GAME = """<!doctype html><html><head><meta charset="utf-8"><title>balls</title><style>
html, body { margin: 0; height: 100%; overflow: hidden; background: #eef1f6; font: 16px sans-serif }
header { position: absolute; top: 4px; left: 8px }
canvas { display: block }
</style></head><body><header>0</header><canvas></canvas><script>
const canvas = document.querySelector("canvas"), pen = canvas.getContext("2d");
const wide = canvas.width = innerWidth, high = canvas.height = innerHeight;
let chance = SEED, frames = 0, ticks = 0, clicks = 0, hits = 0;
const random = () => (chance = (chance * 1103515245 + 12345) % 2147483648) / 2147483648;
const balls = Array.from({ length: 24 }, (_, n) => ({
  x: random() * wide, y: random() * high, u: random() * 4 - 2, v: random() * 4 - 2, r: 6 + random() * 14, hue: n * 15,
}));
const frame = () => {
  frames += 1;
  pen.clearRect(0, 0, wide, high);
  for (const ball of balls) {
    ball.x += ball.u; ball.y += ball.v;
    if (ball.x < 0 || ball.x > wide) ball.u = -ball.u;
    if (ball.y < 0 || ball.y > high) ball.v = -ball.v;
    pen.fillStyle = `hsl(${ball.hue} 70% 50%)`;
    pen.beginPath(); pen.arc(ball.x, ball.y, ball.r, 0, 7); pen.fill();
  }
  document.querySelector("header").textContent = `${clicks} clicks, ${hits} hits, ${ticks}`;
  requestAnimationFrame(frame);
};
requestAnimationFrame(frame);
setInterval(() => { ticks += 1; }, 30);
addEventListener("click", (event) => {
  clicks += 1;
  for (const ball of balls) {
    if (Math.hypot(ball.x - event.clientX, ball.y - event.clientY) < ball.r) { hits += 1; ball.hue += 90; }
  }
});
window.__env__ = { getState: () => ({ frames, ticks, clicks, hits, now: performance.now(), terminated: false }) };
</script></body></html>"""
_MINIWOB_START = """
core.EPISODE_MAX_TIME = 1e6; Math.seedrandom("SEED"); core.startEpisodeReal();
"""
_MINIWOB_STATE = "({ reward: Number(WOB_RAW_REWARD_GLOBAL) || 0, terminated: Boolean(WOB_DONE_GLOBAL) })"


def task_of(world: str, number: int = 0) -> Task:
    """A task without an end."""
    return Task(
        f"bench{number:03d}", "games", world, "bench", 1, number, "Click.", {}, 1_000_000, "eval", "bench", 1.0, ""
    )


@dataclass
class Session:
    """One page of the sandbox's protocol (`flywheel.envs.browser.page_source`), without state on the server."""

    url: str
    allowed: tuple[str, ...]
    viewport: tuple[int, int] | None = None
    step_ms: int | None = None
    prepare: str = ""
    state_expression: str = ""
    restorable: bool = False
    files: None = None

    def state(self, seen: Mapping[str, Any]) -> dict[str, Any]:
        return dict(seen.get("game") or {})

    def score(self, state: Mapping[str, Any]) -> float:
        return 0.0  # without an end: the benchmarks count steps

    def save_server_state(self) -> bytes:
        return b""

    def restore_server_state(self, kept: bytes) -> None:
        pass

    def close(self) -> None:
        pass


class Pages:
    """The pages' addresses under `url`. rest: the source of every other task."""

    def __init__(self, url: str, rest: Any = None) -> None:
        self.url, self._rest = url, rest

    def address(self, world: str, seed: int) -> str:
        return f"{self.url}/game.html?seed={seed}" if world == GAME else f"{self.url}/{MINIWOB_PAGE}"

    def open(self, task: Task, seed: int) -> Any:
        if task.world not in (GAME, MINIWOB):
            return self._rest.open(task, seed)
        address, allowed = self.address(task.world, seed), (self.url + "/",)
        if task.world == GAME:
            return Session(address, allowed)
        start = _MINIWOB_START.replace("SEED", str(seed))
        return Session(address, allowed, MINIWOB_SIZE, prepare=start, state_expression=_MINIWOB_STATE)


class _Handler(SimpleHTTPRequestHandler):
    """The game, and what lies in a folder."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        if asked.path != "/game.html":
            super().do_GET()
            return
        seed = int(parse_qs(asked.query).get("seed", ["0"])[0])
        body = _GAME.replace("SEED", str(seed)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A killed browser drops its connections: no news."""


@contextmanager
def serve(folder: Path, rest: Any = None) -> Iterator[Pages]:
    """Serve while the block runs. folder: MiniWoB's `html`, or any."""
    server = _Server(("127.0.0.1", 0), functools.partial(_Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield Pages(f"http://127.0.0.1:{server.server_port}", rest)
    finally:
        server.shutdown()
        server.server_close()
