"""Serve the page on which a person looks through a recording, cuts it, and keeps or discards it."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from flywheel.recordings.recorder import microphone
from flywheel.recordings.recorder.recorder import Stretch, read_events, read_length
from flywheel.recordings.session import InputEvent
from flywheel.utils.errors import BadInput
from flywheel.utils.local_server import LocalServer

_PAGE = Path(__file__).with_name("review_page.html")


@dataclass(frozen=True)
class Decision:
    """Hold what a person decided about a recording. keep: whether a session is made. done: whether the task was done.
    answer: what the person would answer, at most 2,000 characters. cut: stretches that are left out, (from, to) in
    seconds since the recording began."""

    keep: bool
    done: bool = False
    answer: str = ""
    cut: tuple[Stretch, ...] = ()


def _list_actions(events: Sequence[InputEvent]) -> list[dict[str, Any]]:
    """List the actions of the events, as the page shows them: a drag with where it ends (`to`), text with its Enter."""
    rows: list[dict[str, Any]] = []
    for one in events:
        if one.kind == "drop" and rows:
            rows[-1]["to"] = {"x": one.x, "y": one.y}
        elif one.kind == "key" and one.key == "Enter" and one.screen is None and rows and rows[-1]["kind"] == "type":
            rows[-1]["enter"] = True
        else:
            place = {"x": one.x, "y": one.y, "screen": one.screen}
            rows.append({"at": one.time_s, "kind": one.kind, "text": one.text or one.key, **place})
    return rows


async def review_recording(folder: Path, port: int, tell: Callable[[str], None]) -> Decision:
    """Serve the page of the recording in `folder` until a person decides; return the decision.

    port: on 127.0.0.1; 0: any free one. tell: called with the page's address, which holds its key. Raises BadInput for
    a folder that is no recording, or where the port cannot be had; DataError for a damaged file of the recording;
    EnvError where the page's server does not start.
    """
    key, decided = secrets.token_urlsafe(16), asyncio.get_running_loop().create_future()
    events, (seconds, about) = read_events(folder), read_length(folder)
    rows = _list_actions(events)
    sound = folder / microphone.FILE
    sync_s = about["sync_s"] if sound.is_file() else None

    def page(request: Request) -> Response:
        return HTMLResponse(_PAGE.read_text("utf-8"), headers={"Referrer-Policy": "no-referrer"})

    def told(request: Request) -> Response:
        heard = sync_s is not None
        return JSONResponse({"instruction": about["instruction"], "seconds": seconds, "events": rows, "sound": heard})

    def speech(request: Request) -> Response:
        start, end = (request.path_params[name] / 1000 for name in ("start", "end"))
        if sync_s is None or end <= start:
            return Response(status_code=404)
        return Response(microphone.cut_wav(sound, start - sync_s, end - sync_s), media_type="audio/wav")

    def screen(request: Request) -> Response:
        path = folder / "screens" / f"{request.path_params['number']:06d}.png"
        return FileResponse(path) if path.is_file() else Response(status_code=404)

    async def decide(request: Request) -> Response:
        try:
            said = await request.json()
            cut = tuple((float(start), float(end)) for start, end in said["cut"])
            decision = Decision(bool(said["keep"]), bool(said["done"]), str(said["answer"])[:2000], cut)
        except (ValueError, TypeError, KeyError):
            return Response(status_code=400)
        if not decided.done():
            decided.set_result(decision)
        return JSONResponse({})

    routes = [
        Route(f"/{key}/", page),
        Route(f"/{key}/recording", told),
        Route(f"/{key}/screens/{{number:int}}", screen),
        Route(f"/{key}/sound/{{start:int}}/{{end:int}}", speech),
        Route(f"/{key}/decision", decide, methods=["POST"]),
    ]
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            raise BadInput(f"port {port}: {error.strerror}", where="--port", fix="choose another") from None
        server = LocalServer(Starlette(routes=routes), [listener])
        await server.start("the page of the recording")
        try:
            tell(f"http://127.0.0.1:{listener.getsockname()[1]}/{key}/")
            return await decided
        finally:
            await server.stop()
