"""Define the explorer's routes (pages and a JSON API), and serve it on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import html
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import resources
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import parse_qs

from anyio.from_thread import start_blocking_portal
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json
from starlette.types import ASGIApp

from flywheel.config.run_lock import WorkspaceBusy
from flywheel.config.workspace import Workspace
from flywheel.store import labels, saved_queries
from flywheel.store.versioning import git_tags
from flywheel.ui.explorer import auth, iterations, recordings, review, runs, trajectories
from flywheel.ui.explorer.auth import LoginSessions
from flywheel.ui.explorer.catalog_reader import QUERIES, CatalogReader, NotInStore
from flywheel.ui.explorer.counterfactuals import CounterfactualBody, CounterfactualRunner, RunsNotAllowed
from flywheel.ui.explorer.media import ScreenImages, SessionAudio, TokenTexts
from flywheel.ui.explorer.sql import SqlWorkerPool
from flywheel.ui.report import charts
from flywheel.utils import credentials, processes
from flywheel.utils.errors import BadInput, FlywheelError, QueryTimeout
from flywheel.utils.local_ports import bind_local_port
from flywheel.utils.local_server import LocalServer

_DATA_DOCS = "docs/index.html"  # within the report's folder


@dataclass
class ServerLinks:
    """Hold the URLs of the other servers; "" where there is none, or it is not running yet."""

    prefect: str = ""
    report: str = ""

    def docs(self, ws: Workspace) -> str:
        """Return the URL of the Data Docs of `ws`; "" where they are not served or not written."""
        return f"{self.report}/{_DATA_DOCS}" if self.report and (ws.report / _DATA_DOCS).is_file() else ""


_POLL_S = 1.0
_KEEPALIVE_S = 15.0  # without changes, a comment is sent so often, so that the page knows that the server lives


class ChangeStream:
    """Tell open pages when the workspace changes, by server-sent events.

    standing: returns the digest of the workspace (`CatalogReader.digest`); called in a thread. All streams run in one
    event loop.
    """

    def __init__(self, standing: Callable[[], str]) -> None:
        self._standing = standing
        self._one = asyncio.Lock()
        self._looked, self._seen = float("-inf"), ""
        self._over = asyncio.Event()

    def end(self) -> None:
        """End the streams; their pages reconnect once the server is back."""
        self._over.set()

    async def stream(self) -> AsyncIterator[str]:
        """Yield server-sent events with the digest of the workspace, at once and about a second after each change.

        After 15 seconds without a change a comment is sent. It ends after `end`. Raises as `standing`.
        """
        told, quiet = "", time.monotonic()
        while not self._over.is_set():
            now = await self._look()
            if now != told or time.monotonic() - quiet > _KEEPALIVE_S:
                yield f"data: {now}\n\n" if now != told else ": still so\n\n"
                told, quiet = now, time.monotonic()
            try:
                async with asyncio.timeout(_POLL_S):
                    await self._over.wait()
            except TimeoutError:
                continue

    async def _look(self) -> str:
        async with self._one:
            if time.monotonic() - self._looked > _POLL_S / 2:
                self._seen = await asyncio.to_thread(self._standing)
                self._looked = time.monotonic()
            return self._seen


_PACKAGE = resources.files("flywheel.ui.explorer")
_CACHE_FOREVER = {"cache-control": "private, max-age=31536000, immutable"}
_STATUS = (
    (NotInStore, 404),
    (RunsNotAllowed, 403),
    (BadInput, 400),
    (WorkspaceBusy, 409),
    (QueryTimeout, 504),
)  # the first class that an error belongs to counts
_MEDIA_TYPES = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}
RequestBody = TypeVar("RequestBody", bound=BaseModel)
_OFFSET = Query(ge=0, le=10**9)


def create_explorer_app(
    asking: CatalogReader,
    login: LoginSessions,
    sql: SqlWorkerPool,
    changing: ChangeStream,
    near: ServerLinks,
    runner: CounterfactualRunner,
    other: CatalogReader | None = None,
) -> ASGIApp:
    """Create the explorer's web application.

    asking: reads the workspace. login: sessions of browsers. sql: runs users' SQL. changing: stream of changes. near:
    servers that pages link to. runner: begins counterfactual runs, where it may. other: reads a second workspace, whose
    iterations are shown for comparison.
    """
    app = FastAPI(title="flywheel", docs_url=None, redoc_url=None, openapi_url=None)
    page = _page_renderer(asking.ws, near)
    _add_error_handlers(app, page)
    _add_login_routes(app, login)
    _add_list_routes(app, asking, changing)
    _add_trajectory_routes(app, asking)
    _add_run_routes(app, asking, runner)
    _add_iteration_routes(app, asking, other)
    _add_sql_routes(app, asking, sql)
    _add_review_routes(app, asking)
    _add_recording_routes(app, asking)
    _add_page_routes(app, page)
    return auth.AuthMiddleware(app, login)


def json_response(found: Any, status: int = 200) -> Response:
    """Return a response of the HTTP `status` with `found` as JSON.

    Numbers that are not finite become null, values that JSON does not have their text.
    """
    return Response(to_json(found, inf_nan_mode="null", fallback=str), status, media_type="application/json")


def _add_list_routes(app: FastAPI, asking: CatalogReader, changing: ChangeStream) -> None:
    @app.get("/api/trajectories")
    def listed(
        where: Annotated[list[str], Query(max_length=30)] = [],  # noqa: B006 (FastAPI copies it)
        q: Annotated[str, Query(max_length=400)] = "",
        within: Annotated[str, Query(alias="in")] = "both",
        sort: Annotated[str, Query(max_length=400)] = "",
        offset: Annotated[int, _OFFSET] = 0,
        limit: Annotated[int, Query(ge=1, le=trajectories.MAX_ROWS)] = 100,
    ) -> Response:
        return json_response(trajectories.query_trajectory_page(asking, where, q, within, sort, offset, limit))

    @app.get("/api/columns")
    def columns() -> Response:
        return json_response(trajectories.list_trajectory_columns(asking))

    @app.get("/api/values/{column}")
    def values(column: str) -> Response:
        return json_response(trajectories.count_column_values(asking, column))

    @app.get("/api/changes")
    async def changes() -> Response:
        return StreamingResponse(changing.stream(), media_type="text/event-stream")


def _add_trajectory_routes(app: FastAPI, asking: CatalogReader) -> None:
    screens, tokens, sound = ScreenImages(asking), TokenTexts(asking.ws), SessionAudio(asking)

    @app.get("/api/trajectories/{name}")
    def trajectory(name: str) -> Response:
        return json_response(trajectories.load_trajectory_detail(asking, tokens, name))

    @app.get("/api/trajectories/{name}/waveform")
    def waveform(name: str) -> Response:
        return json_response(sound.waveform(name))

    @app.get("/sound/{name}")
    def spoken(name: str) -> Response:
        path, kind = sound.file(name)
        return FileResponse(path, media_type=kind)

    @app.get("/screens/{iteration}/{sha256}")
    def screen(iteration: int, sha256: str) -> Response:
        data, kind = screens.read_screen(iteration, sha256)
        return Response(data, media_type=kind, headers=_CACHE_FOREVER)

    @app.get("/thumbnails/{iteration}/{sha256}")
    def thumbnail(iteration: int, sha256: str) -> Response:
        data, kind = screens.read_thumbnail(iteration, sha256)
        return Response(data, media_type=kind, headers=_CACHE_FOREVER)


def _add_run_routes(app: FastAPI, asking: CatalogReader, runner: CounterfactualRunner) -> None:
    """Add the routes of tasks and their runs. The one that begins runs accepts only POST with JSON (`auth.py`)."""

    @app.get("/api/tasks")
    def tasks(
        q: Annotated[str, Query(max_length=400)] = "",
        offset: Annotated[int, _OFFSET] = 0,
        limit: Annotated[int, Query(ge=1, le=trajectories.MAX_ROWS)] = 100,
    ) -> Response:
        return json_response(runs.list_tasks(asking, q, offset, limit))

    @app.get("/api/tasks/{task_id}/runs")
    def side_by_side(task_id: str, choice: Annotated[runs.RunChoice, Query()]) -> Response:
        return json_response(runs.load_task_runs(asking, task_id, choice))

    @app.get("/api/counterfactuals")
    def counterfactuals(task: Annotated[str, Query(max_length=200)]) -> Response:
        return json_response(runner.describe(task))

    @app.post("/api/counterfactuals")
    async def begin(request: Request) -> Response:
        await asyncio.to_thread(runner.start, await _read_body(request, CounterfactualBody))
        return Response(status_code=204)


def _add_recording_routes(app: FastAPI, asking: CatalogReader) -> None:
    """Add the routes of recordings under review. The route that writes accepts only POST with JSON (`auth.py`)."""
    tokens, ws = TokenTexts(asking.ws), asking.ws

    @app.get("/api/review/recordings")
    def listed(reviewer: str) -> Response:
        return json_response(recordings.list_recordings(ws, reviewer))

    @app.get("/api/review/recordings/{name}")
    def item(name: str, reviewer: str) -> Response:
        return json_response(recordings.load_recording_item(asking, tokens, name, reviewer))

    @app.post("/api/review/recordings")
    async def said(request: Request) -> Response:
        verdict = await _read_body(request, recordings.VerdictRequest)
        return json_response(await asyncio.to_thread(recordings.save_recording_verdict, ws, verdict))

    @app.get("/screens/recordings/{name}/{sha256}")
    def screen(name: str, sha256: str) -> Response:
        data, kind = recordings.read_recorded_screen(ws, name, sha256)
        return Response(data, media_type=kind, headers=_CACHE_FOREVER)

    @app.get("/sound/recordings/{name}")
    def spoken(name: str) -> Response:
        path, kind = recordings.find_recorded_sound(ws, name)
        return FileResponse(path, media_type=kind)


def _add_iteration_routes(app: FastAPI, asking: CatalogReader, other: CatalogReader | None) -> None:
    @app.get("/api/iterations")
    def overview() -> Response:
        return json_response(iterations.query_overview(asking, other))

    @app.get("/api/revisions")
    def revisions() -> Response:
        return json_response([{"tag": tag, "commit": commit} for tag, commit in git_tags.iteration_tags(asking.ws)])

    @app.get("/api/held-out/{first}/{last}")
    def held_out(first: int, last: int) -> Response:
        return json_response(asking.rows("FROM held_out_between($first, $last)", {"first": first, "last": last}))

    @app.get("/api/curves/{stage}/{name}")
    def curves(
        stage: str,
        name: str,
        iteration: Annotated[list[int], Query(max_length=50)] = [],  # noqa: B006
    ) -> Response:
        own, theirs = (
            iterations.query_learning_curves(one, stage, name, iteration) if one else [] for one in (asking, other)
        )
        return json_response({"own": own, "theirs": theirs})


def _add_sql_routes(app: FastAPI, asking: CatalogReader, sql: SqlWorkerPool) -> None:
    @app.get("/api/sql/names")
    async def names() -> Response:
        await sql.prepare()
        return json_response(await asyncio.to_thread(asking.rows, QUERIES["schema"]))

    @app.post("/api/sql")
    async def asked(request: Request) -> Response:
        question = await _read_body(request, SqlRequest)
        result = await sql.ask(question.sql, question.form)
        if question.form == "json":
            told = to_json(result.told)
            return Response(told[:-1] + b',"data":' + result.data + b"}", media_type="application/json")
        headers = {
            "content-disposition": f'attachment; filename="result.{question.form}"',
            "x-result": to_json({name: result.told[name] for name in ("rows", "cut")}).decode(),
        }
        return Response(result.data, media_type=_MEDIA_TYPES[question.form], headers=headers)

    @app.get("/api/queries")
    def saved() -> Response:
        return json_response([asdict(one) for one in saved_queries.list_saved_queries(asking.ws)])

    @app.post("/api/queries")
    async def save(request: Request) -> Response:
        query = await _read_body(request, SaveQueryRequest)
        await sql.ask(query.sql)  # one that cannot be answered here is not saved
        facts = query.model_dump(exclude={"replace"}) | {"at": datetime.now(UTC).isoformat(timespec="seconds")}
        named = saved_queries.SavedQuery(**facts)
        await asyncio.to_thread(saved_queries.save_query, asking.ws, named, replace=query.replace)
        return Response(status_code=204)

    @app.post("/api/queries/{name}/rename")
    async def rename(name: str, request: Request) -> Response:
        new = (await _read_body(request, RenameQueryRequest)).name
        await asyncio.to_thread(saved_queries.rename_saved_query, asking.ws, name, new)
        return Response(status_code=204)

    @app.post("/api/queries/{name}/delete")
    async def delete(name: str) -> Response:
        await asyncio.to_thread(saved_queries.delete_saved_query, asking.ws, name)
        return Response(status_code=204)


class SqlRequest(BaseModel):
    """Hold a SQL query and the format of its result."""

    sql: str
    form: Literal["json", "csv", "parquet"] = "json"


class SaveQueryRequest(BaseModel):
    """Hold a query to save. replace: whether it takes the place of one of that name."""

    name: str
    sql: str
    description: str = ""
    author: str
    replace: bool = False


class RenameQueryRequest(BaseModel):
    """Hold the new name of a saved query."""

    name: str


async def _read_body(request: Request, kind: type[RequestBody]) -> RequestBody:
    """Parse the JSON body of a request as `kind`. Raises BadInput."""
    try:
        return kind.model_validate_json(await request.body())
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(f"what was sent cannot be read: {'.'.join(map(str, first['loc']))} {first['msg']}") from None


def _add_review_routes(app: FastAPI, asking: CatalogReader) -> None:
    """Add the routes of reviews. Routes that write accept only POST with JSON (`auth.py`)."""
    tokens, ws = TokenTexts(asking.ws), asking.ws

    @app.get("/api/review/choices")
    def choices() -> Response:
        return json_response(review.list_review_choices(asking))

    @app.get("/api/review/queue")
    def queue(draw: Annotated[review.SampleDraw, Query()]) -> Response:
        return json_response(review.draw_review_queue(asking, draw))

    @app.get("/api/review/items/{name}")
    def item(name: str, reviewer: str) -> Response:
        return json_response(review.load_review_item(asking, tokens, name, reviewer))

    @app.post("/api/review/labels")
    async def said(request: Request) -> Response:
        await asyncio.to_thread(review.save_review_label, asking, await _read_body(request, review.LabelRequest))
        return Response(status_code=204)

    @app.post("/api/review/owners")
    async def assigned(request: Request) -> Response:
        await asyncio.to_thread(review.assign_review_samples, asking, await _read_body(request, review.OwnerRequest))
        return Response(status_code=204)

    @app.get("/api/review/agreement")
    def agreement() -> Response:
        found = review.query_agreement(asking)
        return json_response(found | {"recordings": recordings.query_recording_agreement(ws)})

    @app.get("/api/promotions")
    def waiting() -> Response:
        return json_response(review.list_waiting_promotions(ws))

    @app.get("/api/decisions")
    def decisions() -> Response:
        return json_response(review.list_decisions(asking))

    @app.get("/api/promotions/{iteration}")
    def case(iteration: int) -> Response:
        return json_response(review.load_promotion_case(ws, iteration))

    @app.post("/api/promotions/{iteration}")
    async def decided(iteration: int, request: Request) -> Response:
        decision = await _read_body(request, review.PromotionRequest)
        return json_response(await asyncio.to_thread(review.submit_promotion_decision, ws, iteration, decision))


def _page_renderer(ws: Workspace, near: ServerLinks) -> Callable[[int], Response]:
    """Return a function that renders the common HTML page with a given HTTP status."""
    page = (_PACKAGE / "page.html").read_text(encoding="utf-8")

    def shown(status: int = 200) -> Response:
        nonce = secrets.token_urlsafe(16)
        text, values = page, {"NONCE": nonce, "PREFECT": near.prefect, "DOCS": near.docs(ws)}
        values["REVIEWER_PATTERN"] = labels.REVIEWER_INPUT_PATTERN
        for word, value in (values | {"WORKSPACE": ws.root.name}).items():
            text = text.replace(word, html.escape(value))
        return HTMLResponse(text, status, headers={"content-security-policy": auth.content_security_policy(nonce)})

    return shown


def _add_page_routes(app: FastAPI, page: Callable[[int], Response]) -> None:
    def shown() -> Response:
        return page(200)

    @app.get("/")
    def start() -> Response:
        return RedirectResponse("/iterations", 307)

    listed = ("/trajectories", "/trajectories/{name}", "/tasks", "/tasks/{task_id}")
    for path in (*listed, "/iterations", "/compare", "/review", "/sql"):
        app.get(path)(shown)

    @app.get("/tones.css")
    def tones() -> Response:
        return Response(charts.tone_stylesheet(), media_type="text/css")

    app.mount("/static", StaticFiles(packages=[("flywheel.ui.explorer", "static")]))


def _add_login_routes(app: FastAPI, login: LoginSessions) -> None:
    form = (_PACKAGE / "login.html").read_text(encoding="utf-8")

    def shown(status: int, said: str, then: str) -> Response:
        text = form.replace("SAID", html.escape(said)).replace("NEXT", html.escape(then))
        return HTMLResponse(text, status)

    def let_in(session: str, then: str) -> Response:
        return RedirectResponse(then, 303, headers={"set-cookie": login.set_cookie(session)})

    @app.get("/login")
    def asked(key: str = "", next: str = "/") -> Response:
        if key and (session := login.exchange_key(key)):
            return let_in(session, _own_address(next))
        said = "This address was used already: it works once." if key else ""
        return shown(401, said, _own_address(next))

    @app.post("/login")
    async def typed(request: Request) -> Response:
        fields = parse_qs((await request.body()).decode("utf-8", "replace"))
        secret, then = fields.get("secret", [""])[0], _own_address(fields.get("next", ["/"])[0])
        if session := login.exchange_secret(secret):
            return let_in(session, then)
        return shown(401, "That is not the secret of this workspace.", then)


def _own_address(address: str) -> str:
    """Return `address` if it is a path on this server, else "/"."""
    return address if address.startswith("/") and not address.startswith(("//", "/\\")) else "/"


def _add_error_handlers(app: FastAPI, page: Callable[[int], Response]) -> None:
    """Add handlers that turn each error into one line of JSON."""

    def said(status: int, what: str) -> Response:
        return json_response({"error": what}, status)

    @app.exception_handler(FlywheelError)
    def failed(request: Request, error: FlywheelError) -> Response:
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
        return said(status, str(error))

    @app.exception_handler(RequestValidationError)
    def wrong(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return said(400, f"{'.'.join(map(str, first['loc'][1:]))}: {first['msg']}")

    @app.exception_handler(auth.RequestTooLong)
    def too_long(request: Request, error: auth.RequestTooLong) -> Response:
        return said(413, f"a request may have {auth.MAX_REQUEST_BYTES // 1024} KiB, this one is longer")

    @app.exception_handler(404)
    def nothing(request: Request, error: Exception) -> Response:
        if request.method == "GET" and "text/html" in request.headers.get("accept", ""):
            return page(404)  # the common page, which shows that there is nothing
        return said(404, "there is nothing at this address")


@dataclass(frozen=True)
class ExplorerServer:
    """Hold the running explorer of `ws`. url: its own. login: sessions of browsers. beside: URLs of other servers."""

    ws: Workspace
    url: str
    login: LoginSessions
    beside: ServerLinks

    def entrance(self) -> str:
        """Return a URL that logs in the first browser that opens it."""
        return f"{self.url}/login?key={self.login.key()}"


@contextlib.contextmanager
def serve_explorer(
    ws: Workspace, port: int, other: Workspace | None = None, *, allow_runs: bool = False
) -> Iterator[ExplorerServer]:
    """Serve the explorer, web pages that show a workspace's trajectories, on 127.0.0.1 in a thread within the block.

    port: 0 takes a free one. other: a workspace whose iterations are shown for comparison; None: none. allow_runs:
    whether pages may begin counterfactual runs, which end with the block. Yields the server, whose `entrance` logs a
    browser in. The workspace's credentials are made where it has none. Raises BadInput where the port is in use,
    OverflowError for a number that is no port, OSError where it cannot be bound or the credentials not be read,
    DiskFull, and FlywheelError where the server does not answer within 20 seconds.
    """
    processes.limit_malloc_arenas()
    with contextlib.closing(bind_local_port(port)) as listener, start_blocking_portal(name="explorer") as portal:
        port = listener.getsockname()[1]
        login = LoginSessions(credentials.workspace_credentials(ws.state), port)
        beside = ServerLinks()
        with portal.wrap_async_context_manager(_serving(ws, other, login, beside, listener, allow_runs)):
            yield ExplorerServer(ws, f"http://127.0.0.1:{port}", login, beside)


@contextlib.asynccontextmanager
async def _serving(
    ws: Workspace,
    other: Workspace | None,
    login: LoginSessions,
    beside: ServerLinks,
    listener: socket.socket,
    allow_runs: bool,
) -> AsyncIterator[None]:
    asking, sql = CatalogReader(ws), SqlWorkerPool(ws)
    second = CatalogReader(other, lists=False) if other else None
    changing = ChangeStream(lambda: asking.digest() + (second.digest() if second else ""))
    runner = CounterfactualRunner(ws, allow_runs)
    server = LocalServer(create_explorer_app(asking, login, sql, changing, beside, runner, second), [listener])
    await server.start(where=f"port {listener.getsockname()[1]}", error=FlywheelError)
    try:
        yield
    finally:
        changing.end()
        await asyncio.to_thread(runner.close)
        await sql.aclose()
        await server.stop()
