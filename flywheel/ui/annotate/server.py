"""Serve the annotation page: a login, static files, and a WebSocket on which an annotator works.

Messages are JSON objects; `do` says what the page asks for, and pictures go to it as binary messages. What comes from
an environment or from the model is data in them, which the page shows as text.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import json
import logging
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web

from flywheel.agent import actions as act
from flywheel.agent.actions import Action
from flywheel.config.workspace import Workspace
from flywheel.envs.base import Gesture, LatestPicture, LiveView, MachineAccess
from flywheel.envs.remote.watch import (
    OWN_PAGE_HEADERS,
    open_websocket,
    pump_streams,
    require_own_origin,
    static_response,
)
from flywheel.recordings.annotation.overrides import action_of_gestures
from flywheel.recordings.annotation.session import Candidate
from flywheel.store.labels import normalise_reviewer
from flywheel.ui.annotate.desk import AnnotationDesk, Desk, DeskSession
from flywheel.ui.annotate.speech import MAX_SPEECH_BYTES
from flywheel.ui.explorer.auth import LoginSessions
from flywheel.utils.errors import BadInput, EnvError, FlywheelError
from flywheel.utils.files import write_json
from flywheel.utils.local_ports import bind_local_port

log = logging.getLogger(__name__)
_STATIC = Path(__file__).parent / "static"
_FILES = {"annotate.css": "text/css"} | dict.fromkeys(("annotate.js", "speech.js", "samples.js"), "text/javascript")
_SHARED = ("page.js", "socket.js", "vnc.js")  # of the watch page
_OPEN_S = 10.0  # that a desktop's VNC may take to answer
_MAX_TEXT = 4000  # characters of a text to read that are shown, and of a thought
_MAX_GESTURES, _MAX_PLAYED, _THOUGHTS = 64, 50, 40


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AnnotationPages:
    """Serve the annotation page of a `Desk`: its files, its WebSocket, the screen of a remote desktop, and speech.

    find_desk: returns the desk of a request. guard: wraps each handler but those of static files, and lets in whom the
    server knows. values: returns the placeholders of `index.html` and their values, for a request.
    """

    def __init__(
        self,
        find_desk: Callable[[web.Request], Desk],
        guard: Callable[[Handler], Handler],
        values: Callable[[web.Request], Mapping[str, str]],
    ) -> None:
        self._find_desk, self._guard, self._values = find_desk, guard, values
        self._open: set[web.WebSocketResponse] = set()

    def routes(self, prefix: str) -> list[web.RouteDef]:
        """Return the routes of the page. prefix: of their paths, with a slash at its end."""
        guarded = {"": self._index, "work": self._work, "screen/{session}": self._screen}
        return [
            *(web.get(prefix + path, self._guard(handler)) for path, handler in guarded.items()),
            web.post(f"{prefix}speech/{{session}}", self._guard(self._speech)),
            web.get(f"{prefix}static/{{name}}", _own_file),
        ]

    async def end(self, _: web.Application) -> None:
        """Close the open WebSockets; called at the application's shutdown."""
        for page in list(self._open):
            await page.close()

    async def _index(self, request: web.Request) -> web.Response:
        return _page("index.html", **self._values(request))

    async def _work(self, request: web.Request) -> web.WebSocketResponse:
        socket = await open_websocket(request)
        self._open.add(socket)
        try:
            await AnnotatorConnection(self._find_desk(request), socket).serve()
        finally:
            self._open.discard(socket)
            with contextlib.suppress(ConnectionError, RuntimeError):
                await socket.close()
        return socket

    async def _screen(self, request: web.Request) -> web.StreamResponse:
        """Relay the VNC of a session's desktop; what the page does goes by `work`, so that it is journalled."""
        session = self._session(request)
        env = await session.holder.env()
        if not isinstance(env, MachineAccess):
            raise web.HTTPNotFound(text="it has no desktop")
        try:
            async with asyncio.timeout(_OPEN_S):
                streams = await env.screen()
        except (EnvError, TimeoutError) as error:
            raise web.HTTPBadGateway(text=str(error)) from None
        try:
            socket = await open_websocket(request, ("binary",))
        except BaseException:
            streams[1].close()
            raise
        await pump_streams(socket, streams)
        return socket

    async def _speech(self, request: web.Request) -> web.Response:
        """Answer with the words that are said in 16-bit mono samples, at the query's `rate`: `heard`, and `text`."""
        require_own_origin(request)
        desk, session, data = self._find_desk(request), self._session(request), bytearray()
        async for part in request.content.iter_chunked(2**16):
            data += part
            if len(data) > MAX_SPEECH_BYTES:
                return web.json_response({"error": "that is longer than a minute: say less at once"}, status=413)
        try:
            rate = int(request.query.get("rate", ""))
            return web.json_response(await desk.speech.hear(bytes(data), rate, session.engine))
        except ValueError:
            return web.json_response({"error": "no rate of samples is given"}, status=400)
        except FlywheelError as error:
            return web.json_response({"error": str(error)}, status=422)

    def _session(self, request: web.Request) -> DeskSession:
        found = self._find_desk(request).sessions.get(request.match_info["session"])
        if found is None or found.closed:
            raise web.HTTPNotFound(text="this session is over")
        return found


async def _own_file(request: web.Request) -> web.Response:
    name = request.match_info["name"]
    if name not in _FILES:
        raise web.HTTPNotFound
    return web.Response(
        body=(_STATIC / name).read_bytes(), content_type=_FILES[name], charset="utf-8", headers=OWN_PAGE_HEADERS
    )


def annotate_application(desk: AnnotationDesk, login: LoginSessions, port: int, annotator: str) -> web.Application:
    """Make the web application of `flywheel annotate`, with its login and the annotation page.

    login: whose key or secret lets a browser in. port: at which it is served. annotator: name that is filled in on the
    page at first.
    """
    own = {f"{host}:{port}" for host in ("127.0.0.1", "localhost", "[::1]")}

    @web.middleware
    async def guard(request: web.Request, handler: Handler):
        if request.host not in own:
            raise web.HTTPMisdirectedRequest(text="another host is served here")
        if request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none") and (
            request.method != "GET" or request.headers.get("Sec-Fetch-Mode") != "navigate"
        ):
            raise web.HTTPForbidden(text="only its own pages may ask")
        if not request.path.startswith(("/login", "/static/")) and not login.holds(request.headers.get("Cookie", "")):
            if request.path == "/":
                raise web.HTTPSeeOther("/login")
            raise web.HTTPUnauthorized(text="log in first")
        return await handler(request)

    async def log_in(request: web.Request) -> web.Response:
        given = (await request.post()).get("secret", "") if request.method == "POST" else ""
        key = request.query.get("key", "")
        session = login.exchange_key(key) if key else login.exchange_secret(str(given)) if given else ""
        if session:
            return web.Response(status=303, headers={"Location": "/", "Set-Cookie": login.set_cookie(session)})
        said = "This address was used already: it works once." if key else "That is not the secret." if given else ""
        return _page("login.html", 401 if said else 200, SAID=said)

    async def shared(request: web.Request) -> web.Response:
        if request.match_info["name"] not in _SHARED:
            raise web.HTTPNotFound
        return static_response(request.match_info["name"])

    values = {"WORKSPACE": desk.ws.root.name, "ANNOTATOR": annotator, "BEGIN": "Begin the next task", "LOGIN": "/login"}
    pages = AnnotationPages(lambda _: desk, lambda handler: handler, lambda _: values)  # the middleware guards all
    application = web.Application(middlewares=[guard], client_max_size=2**16)
    application.on_shutdown.append(pages.end)
    application.add_routes(
        [
            *pages.routes("/"),
            web.get("/login", log_in),
            web.post("/login", log_in),
            web.get("/watch/static/{name}", shared),
        ]
    )
    return application


def _page(name: str, status: int = 200, **values: str) -> web.Response:
    text = (_STATIC / name).read_text(encoding="utf-8")
    for word, value in values.items():
        text = text.replace(word, html.escape(value))
    return web.Response(text=text, status=status, content_type="text/html", headers=OWN_PAGE_HEADERS)


def bind_annotation_port(ws: Workspace, port: int | None) -> tuple[socket.socket, str]:
    """Bind a port of 127.0.0.1 for the annotation page, and store it in the workspace, so that a bookmark stays good.

    port: the wanted one; 0: a free one; None: that of the last time, or, where that cannot be had, a free one, which is
    not stored. Returns the socket, which the caller closes, and a remark for the person who starts the server: why it
    is not that of the last time; "" for none. Raises for a wanted port BadInput where it is in use, OverflowError for a
    number that is no port, OSError; DiskFull.
    """
    path, note = ws.state / "annotation" / "port.json", ""
    try:
        known = int(json.loads(path.read_text(encoding="utf-8"))["port"])
    except (OSError, ValueError, KeyError, TypeError):  # none yet, or damaged
        known = 0
    try:
        listener = bind_local_port(known if port is None else port)
    except (BadInput, OSError, OverflowError) as error:
        if port is not None:
            raise
        note = f"port {known} of the last time cannot be had ({error}); another one is taken this time"
        listener = bind_local_port(0)
    if not note and (found := listener.getsockname()[1]) != known:
        try:
            write_json(path, {"port": found})
        except BaseException:
            listener.close()
            raise
    return listener, note


@contextlib.asynccontextmanager
async def serve_annotation(
    desk: AnnotationDesk, secret: str, listener: socket.socket, annotator: str = ""
) -> AsyncIterator[tuple[str, LoginSessions]]:
    """Serve the annotation page at a socket within the block; yield its URL, and the login, whose keys let browsers in.

    desk: begins and ends the annotators' sessions; it stays open. secret: `flywheel:PASSWORD`
    (`workspace_credentials`). listener: bound on 127.0.0.1; it is closed at the end of the block. annotator: name that
    is filled in on the page at first. The end of the block waits up to 2 s for running requests.
    """
    port = listener.getsockname()[1]
    login = LoginSessions(secret, port)
    runner = web.AppRunner(annotate_application(desk, login, port, annotator), access_log=None, shutdown_timeout=2.0)
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
        yield f"http://127.0.0.1:{port}", login
    finally:
        await runner.cleanup()


class AnnotatorConnection:
    """Serve the WebSocket of one open page: its requests are done one after the other; only `stop` is done at once."""

    def __init__(self, desk: Desk, socket: web.WebSocketResponse) -> None:
        self._desk, self._socket = desk, socket
        self._annotator = ""
        self._at: DeskSession | None = None
        self._asked: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue(64)
        self._stop = asyncio.Event()
        self._proposing: asyncio.Task[None] | None = None
        self._filming: asyncio.Task[None] | None = None
        self._sending = asyncio.Lock()
        self._thoughts: deque[str] = deque(maxlen=_THOUGHTS)  # that were typed, the newest first

    async def serve(self) -> None:
        """Serve until the page is gone; its session stays open for it until the session's lease ends."""
        working = asyncio.create_task(self._work())
        closing = asyncio.create_task(self._tell_close())
        try:
            async for message in self._socket:
                if message.type is not WSMsgType.TEXT:
                    break
                said = json.loads(message.data)
                if not isinstance(said, dict) or self._asked.full():
                    break
                if said.get("do") == "stop":
                    self._stop.set()
                else:
                    self._asked.put_nowait(said)
        except ValueError:
            pass  # no page of ours
        finally:
            self._stop.set()
            for task in (working, closing):
                task.cancel()
            await asyncio.gather(working, closing, return_exceptions=True)
            await self._leave_session()

    async def _work(self) -> None:
        while True:
            said = await self._asked.get()
            # A decision that was begun is finished, although the page is gone: it stands in the journal.
            doing = asyncio.ensure_future(self._answer(said))
            try:
                await asyncio.shield(doing)
            except asyncio.CancelledError:
                await asyncio.gather(doing, return_exceptions=True)
                raise

    async def _answer(self, said: Mapping[str, Any]) -> None:
        try:
            await self._do(said)
        except FlywheelError as error:
            await self._send(error=str(error), kind=type(error).__name__)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            await self._send(error=f"this cannot be read: {type(error).__name__}", kind="BadInput")
        except (ConnectionError, RuntimeError) as error:
            log.debug("a page is gone: %s", error)
        except Exception:
            log.exception("an annotator's request failed")
            await self._send(error="the server failed; what you decided is kept", kind="Exception")

    async def _do(self, said: Mapping[str, Any]) -> None:
        match said["do"]:
            case "hello" | "begin":
                self._annotator = ""  # a name that is refused leaves no earlier one to work under
                self._annotator = normalise_reviewer(str(said["annotator"]))
                await self._tell_desk()
                if said["do"] == "begin":
                    await self._enter(await self._desk.begin(self._annotator))
            case "resume":
                await self._enter(await self._desk.resume(self._name(), str(said["session"])))
            case "consider":
                await self._consider(self._session(), said)
            case "accept" | "override" | "more" | "undo" | "play" | "finish":
                await self._decide(self._session(), said)
            case "leave" | "skip":
                one = self._session()
                await self._leave_session()  # first: the page is not told that its session was closed
                async with one.lock:
                    await one.close("left", skip=said["do"] == "skip")
                await self._tell_desk()

    def _name(self) -> str:
        if not self._annotator:
            raise BadInput("say your name first", where="annotator")
        return self._annotator

    def _session(self) -> DeskSession:
        if self._at is None or self._at.closed:
            raise BadInput(self._at.closed if self._at else "no session is open", where="session", fix="begin another")
        if self._at.page is not self:
            raise BadInput("this session is open in another tab", where="session", fix="go on there, or resume it here")
        return self._at

    # -- entering and leaving ---------------------------------------------------------------------------------------
    async def _enter(self, one: DeskSession) -> None:
        await self._leave_session()
        if one.page is not None:
            await one.page._quit_proposing()
        self._at, one.page = one, self
        engine, task = one.engine, one.engine.task
        env = await one.holder.env()
        begun = engine.state.begun
        await self._send(
            session={
                "name": engine.name, "instruction": task.instruction, "world": task.world, "template": task.template,
                "level": task.level, "domain": task.domain, "max_steps": task.max_steps, "model": begun["model"],
                "weights": begun["weights"], "drawn_for": begun["task"]["drawn_for"] or "",
                "lease_s": self._desk.settings.annotation.lease_s, "functions": self._desk.settings.policy.functions,
                "touch": env.touch if isinstance(env, LiveView) else self._desk.settings.policy.actions == "mobile",
                "desktop": isinstance(env, MachineAccess) and engine.result.observation.screenshot is not None,
                "proposes": engine.proposes,
            }
        )  # fmt: skip
        await self._show(one)
        self._propose(one)

    async def _leave_session(self) -> None:
        await self._quit_proposing()
        self._filming = await _cancelled(self._filming)
        if self._at is not None and self._at.page is self:
            self._at.page = None
        self._at = None

    async def _tell_desk(self) -> None:
        """Tell the page what may be begun or resumed, and which model proposes."""
        left = await asyncio.to_thread(self._desk.left_by, self._name())
        mine = [(one.engine.name, one.engine.state, one.page) for one in self._desk.sessions.values()
                if one.engine.annotator == self._annotator]  # fmt: skip
        model, weights = self._desk.newest
        await self._send(
            desk={
                "annotator": self._annotator, "model": model, "weights": weights,
                "at_work": len(self._desk.sessions),
                "left": [{"name": name, "instruction": state.task.instruction, "steps": len(state.steps),
                          "old": state.begun["weights"] != weights, "open": page not in (None, self)}
                         for name, state, page in [*mine, *((*one, None) for one in left)]],
            }
        )  # fmt: skip

    async def _tell_close(self) -> None:
        """Tell the page when its session is closed by others: its lease ended, or another tab took it."""
        while True:
            await asyncio.sleep(0.5)
            one = self._at
            if one is not None and (one.closed or one.page is not self) and not self._socket.closed:
                self._at = None
                self._filming = await _cancelled(self._filming)
                why = one.closed if one.page is self else "it was opened in another tab"
                await self._send(closed=why)

    # -- deciding ---------------------------------------------------------------------------------------------------
    async def _decide(self, one: DeskSession, said: Mapping[str, Any]) -> None:
        engine, do = one.engine, said["do"]
        async with one.lock:
            if int(said["step"]) != engine.steps:
                return  # a key that was pressed twice: it was meant for the step before
            await one.renew()
            await self._quit_proposing()
            if do == "more":
                self._propose(one, more=True)
                return
            try:
                match do:
                    case "accept":
                        await engine.accept(int(said["number"]))
                    case "override":
                        thought = str(said.get("thought", ""))[:_MAX_TEXT]
                        await engine.override(self._action(one, said), thought)
                        self._thoughts.appendleft(thought)
                    case "undo":
                        await engine.undo()
                    case "play":
                        await self._play(one, min(int(said["count"]), _MAX_PLAYED))
                    case "finish":
                        if await self._finish(one, said):
                            return
            except EnvError as lost:
                await self._bring_back(one, lost)
            except FlywheelError:
                self._propose(one)
                raise
            await self._show(one)
            self._propose(one)

    async def _play(self, one: DeskSession, count: int) -> None:
        self._stop.clear()
        for _ in range(count):
            if self._stop.is_set() or not await one.engine.play(1):
                return
            await self._show(one, playing=True)
            await one.renew()

    async def _finish(self, one: DeskSession, said: Mapping[str, Any]) -> bool:
        """Finish the session; return whether it is, or the person is asked first, as the verifier says otherwise."""
        engine, (answer, thought) = one.engine, (str(said.get(name, ""))[:_MAX_TEXT] for name in ("answer", "thought"))
        verdict = await engine.finish(answer, thought, ask=True)
        if not engine.state.ended:
            return False
        await self._leave_session()  # first: the page is not told that its session was closed
        await one.close("finished", done=True)
        await self._send(
            done={"steps": engine.steps, "score": verdict.score, "threshold": verdict.threshold, "solved": verdict.v}
        )
        await self._tell_desk()
        return True

    async def _bring_back(self, one: DeskSession, lost: EnvError) -> None:
        """Replace an environment that was lost.

        Raises EnvError or ReplayDiffers where that fails; the session is closed then, and kept.
        """
        try:
            await one.revive()
        except FlywheelError as error:
            await one.close(f"the environment was lost ({lost.what}), and this did not bring it back: {error}")
            raise
        self._filming = await _cancelled(self._filming)
        await self._send(note=f"The environment was lost ({lost.what}). It is back, with all that was decided.")

    def _action(self, one: DeskSession, said: Mapping[str, Any]) -> Action:
        if "command" in said:
            return act.Terminal(str(said["command"])[:_MAX_TEXT])
        if "action" in said:
            return one.engine.read_action(str(said["action"])[:_MAX_TEXT])
        gestures = said["gestures"][:_MAX_GESTURES]
        return action_of_gestures([Gesture.from_json(gesture) for gesture in gestures], bool(said.get("touch")))

    async def _consider(self, one: DeskSession, said: Mapping[str, Any]) -> None:
        """Tell the page what a gesture would be, and thoughts that complete what is typed."""
        engine = one.engine
        if int(said["step"]) != engine.steps:
            return
        chosen, action = engine.read_override(self._action(one, said))
        shown = {name: chosen.get(name) for name in ("action", "action_type", "x", "y", "x2", "y2")}
        same = [c.thought for c in engine.candidates if type(c.action) is type(action)]
        others = [c.thought for c in engine.candidates if type(c.action) is not type(action)]
        earlier = [step["chosen"]["thought"] for step in reversed(engine.state.steps)]
        thoughts = dict.fromkeys([chosen["thought"], *same, *others, *earlier, *self._thoughts])
        await self._send(considered=shown | {"thoughts": [one for one in thoughts if one][:_THOUGHTS]})

    # -- showing ----------------------------------------------------------------------------------------------------
    def _propose(self, one: DeskSession, *, more: bool = False) -> None:
        if one.page is self and one.engine.proposes and not one.engine.over and not one.closed:
            self._proposing = asyncio.create_task(self._tell_candidates(one, more))

    async def _quit_proposing(self) -> None:
        self._proposing = await _cancelled(self._proposing)

    async def _tell_candidates(self, one: DeskSession, more: bool) -> None:
        step, before = one.engine.steps, time.monotonic()
        try:
            found = await one.engine.propose(more=more)
        except FlywheelError as error:
            await self._send(candidates={"step": step, "list": [], "why": str(error)})
            return
        why = "" if found else "In what it said there was no action: do it yourself, or ask for more."
        told = [_candidate_json(candidate) for candidate in found]
        seconds = time.monotonic() - before
        await self._send(candidates={"step": step, "list": told, "why": why, "seconds": round(seconds, 3)})

    async def _show(self, one: DeskSession, *, playing: bool = False) -> None:
        """Show the session as it is: its state, and its picture."""
        engine, seen, at = one.engine, one.engine.result.observation, time.monotonic()
        env = await one.holder.env()
        if isinstance(env, LiveView) and (self._filming is None or self._filming.done()):
            self._filming = asyncio.create_task(self._film(env))
        if seen.screenshot is not None:
            await self._send_bytes(seen.screenshot)
        verdict, line = engine.verdict, engine.state.seen[-1]
        history = [
            {"author": step["chosen"]["author"], "by": step["by"], "thought": step["chosen"]["thought"] or "",
             "action": step["chosen"].get("action") or step["chosen"].get("parse_error") or ""}
            for step in engine.state.steps
        ]  # fmt: skip
        await self._send(
            state={
                "step": engine.steps, "over": engine.over, "score": verdict.score, "solved": verdict.v,
                "verifier": engine.task.verifier, "history": history, "playing": playing, "at": at,
                "note": str(line["result"] or "")[:_MAX_TEXT], "text": (line["observation"] or "")[:_MAX_TEXT],
                "screen": line["screen"],
                "newest": not engine.proposes or engine.state.begun["weights"] == self._desk.newest[1],
            }
        )  # fmt: skip

    async def _film(self, env: LiveView) -> None:
        with env.watch() as pictures:
            await self._send_pictures(pictures)

    async def _send_pictures(self, pictures: LatestPicture) -> None:
        while True:
            await self._send_bytes(await pictures.next())

    async def _send_bytes(self, data: bytes) -> None:
        async with self._sending:
            await self._socket.send_bytes(data)

    async def _send(self, **said: object) -> None:
        async with self._sending:
            with contextlib.suppress(ConnectionError, RuntimeError):
                await self._socket.send_json(said)


def _candidate_json(one: Candidate) -> dict[str, Any]:
    shown = {name: one.chosen.get(name) for name in ("thought", "action", "action_type", "x", "y", "x2", "y2")}
    finishes = isinstance(one.action, act.Finished)
    return shown | {
        "number": one.number, "votes": one.votes, "samples": one.samples, "undone": one.undone, "finishes": finishes,
    }  # fmt: skip


async def _cancelled(task: asyncio.Task[None] | None) -> None:
    """Cancel a task, and wait for its end."""
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
