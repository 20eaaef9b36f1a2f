"""The explorer's application: its pages, and what they ask for. Who may ask says `guard.py`."""

from __future__ import annotations

import asyncio
import html
import secrets
from collections.abc import Callable
from importlib import resources
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import parse_qs

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json
from starlette.types import ASGIApp

from flywheel.errors import BadInput, FlywheelError, QueryTimeout
from flywheel.explorer import beside, guard, iterations, promotions, replays, samples, trajectories
from flywheel.explorer.asking import Asking, NotHere
from flywheel.explorer.changes import Changes
from flywheel.explorer.login import Login
from flywheel.explorer.screens import Screens
from flywheel.explorer.sound import Sound
from flywheel.explorer.sql import Sql
from flywheel.explorer.tokens import Tokens
from flywheel.report import palette
from flywheel.workspace import Workspace

_PACKAGE = resources.files("flywheel.explorer")
_FOR_EVER = {"cache-control": "private, max-age=31536000, immutable"}
_STATUS = ((NotHere, 404), (BadInput, 400), (QueryTimeout, 504))  # of an error, the first that it is one of
_MEDIA = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}
Sent = TypeVar("Sent", bound=BaseModel)
_OFFSET = Query(ge=0, le=10**9)


def application(
    asking: Asking, login: Login, sql: Sql, changing: Changes, near: beside.Beside, other: Asking | None = None
) -> ASGIApp:
    """The explorer of a workspace, to whoever `login` lets in. other: of a workspace whose iterations are shown too."""
    app = FastAPI(title="flywheel", docs_url=None, redoc_url=None, openapi_url=None)
    page = _frame(asking.ws, near)
    _errors(app, page)
    _logging_in(app, login)
    _list(app, asking, changing)
    _one(app, asking)
    _over_time(app, asking, other)
    _queries(app, asking, sql)
    _reviews(app, asking)
    _pages(app, page)
    return guard.Guard(app, login)


def answer(found: Any) -> Response:
    """As JSON; what has no number there is null."""
    return Response(to_json(found, inf_nan_mode="null", fallback=str), media_type="application/json")


def _list(app: FastAPI, asking: Asking, changing: Changes) -> None:
    @app.get("/api/trajectories")
    def listed(
        where: Annotated[list[str], Query(max_length=30)] = [],  # noqa: B006 (FastAPI copies it)
        q: Annotated[str, Query(max_length=400)] = "",
        within: Annotated[str, Query(alias="in")] = "both",
        sort: Annotated[str, Query(max_length=400)] = "",
        offset: Annotated[int, _OFFSET] = 0,
        limit: Annotated[int, Query(ge=1, le=trajectories.MOST)] = 100,
    ) -> Response:
        return answer(
            trajectories.page(asking, where=where, search=q, within=within, sort=sort, offset=offset, limit=limit)
        )

    @app.get("/api/columns")
    def columns() -> Response:
        return answer(trajectories.columns(asking))

    @app.get("/api/values/{column}")
    def values(column: str) -> Response:
        return answer(trajectories.values(asking, column))

    @app.get("/api/changes")
    async def changes() -> Response:
        return StreamingResponse(changing.stream(), media_type="text/event-stream")


def _one(app: FastAPI, asking: Asking) -> None:
    screens, tokens, sound = Screens(asking), Tokens(asking.ws), Sound(asking)

    @app.get("/api/trajectories/{name}")
    def trajectory(name: str) -> Response:
        return answer(replays.load(asking, tokens, name))

    @app.get("/api/trajectories/{name}/waveform")
    def waveform(name: str) -> Response:
        return answer(sound.waveform(name))

    @app.get("/sound/{name}")
    def spoken(name: str) -> Response:
        path, kind = sound.file(name)
        return FileResponse(path, media_type=kind)

    @app.get("/screens/{iteration}/{sha256}")
    def screen(iteration: int, sha256: str) -> Response:
        data, kind = screens.whole(iteration, sha256)
        return Response(data, media_type=kind, headers=_FOR_EVER)

    @app.get("/thumbnails/{iteration}/{sha256}")
    def thumbnail(iteration: int, sha256: str) -> Response:
        data, kind = screens.small(iteration, sha256)
        return Response(data, media_type=kind, headers=_FOR_EVER)


def _over_time(app: FastAPI, asking: Asking, other: Asking | None) -> None:
    @app.get("/api/iterations")
    def overview() -> Response:
        return answer(iterations.overview(asking, other))

    @app.get("/api/revisions")
    def revisions() -> Response:
        return answer(beside.revisions(asking.ws))

    @app.get("/api/held-out/{first}/{last}")
    def held_out(first: int, last: int) -> Response:
        return answer(asking.rows("FROM held_out_between($first, $last)", {"first": first, "last": last}))

    @app.get("/api/curves/{stage}/{name}")
    def curves(
        stage: str,
        name: str,
        iteration: Annotated[list[int], Query(max_length=50)] = [],  # noqa: B006
    ) -> Response:
        own, theirs = (iterations.curves(one, stage, name, iteration) if one else [] for one in (asking, other))
        return answer({"own": own, "theirs": theirs})


_NAMES = """
    SELECT c.table_name AS "table", column_name AS name, data_type AS type, coalesce(c.comment, '') AS meaning,
        coalesce(v.comment, '') AS about
    FROM duckdb_columns() c LEFT JOIN duckdb_views() v ON v.view_name = c.table_name
    WHERE NOT c.internal AND c.schema_name = 'main' AND NOT ends_with(c.table_name, '_in_files')
    ORDER BY c.table_name, column_index"""


def _queries(app: FastAPI, asking: Asking, sql: Sql) -> None:
    @app.get("/api/sql/names")
    async def names() -> Response:
        await sql.prepare()
        return answer(await asyncio.to_thread(asking.rows, _NAMES))

    @app.post("/api/sql")
    async def asked(request: Request) -> Response:
        question = await _sent(request, Question)
        result = await sql.ask(question.sql, question.form)
        if question.form == "json":
            told = to_json(result.told)
            return Response(told[:-1] + b',"data":' + result.data + b"}", media_type="application/json")
        headers = {
            "content-disposition": f'attachment; filename="result.{question.form}"',
            "x-result": to_json({name: result.told[name] for name in ("rows", "cut")}).decode(),
        }
        return Response(result.data, media_type=_MEDIA[question.form], headers=headers)


class Question(BaseModel):
    """A query, and the form that its result is wanted in."""

    sql: str
    form: Literal["json", "csv", "parquet"] = "json"


async def _sent(request: Request, kind: type[Sent]) -> Sent:
    """What a page has sent as JSON. Raises BadInput."""
    try:
        return kind.model_validate_json(await request.body())
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(f"what was sent cannot be read: {'.'.join(map(str, first['loc']))} {first['msg']}") from None


def _reviews(app: FastAPI, asking: Asking) -> None:
    """All that writes: by POST alone, in JSON (`guard.py`)."""
    tokens, ws = Tokens(asking.ws), asking.ws

    @app.get("/api/review/choices")
    def choices() -> Response:
        return answer(samples.choices(asking))

    @app.get("/api/review/queue")
    def queue(draw: Annotated[samples.Draw, Query()]) -> Response:
        return answer(samples.queue(asking, draw))

    @app.get("/api/review/items/{name}")
    def item(name: str, reviewer: str) -> Response:
        return answer(samples.item(asking, tokens, name, reviewer))

    @app.post("/api/review/labels")
    async def said(request: Request) -> Response:
        await asyncio.to_thread(samples.say, asking, await _sent(request, samples.Said))
        return Response(status_code=204)

    @app.get("/api/review/agreement")
    def agreement() -> Response:
        return answer(samples.agreement(asking))

    @app.get("/api/promotions")
    def waiting() -> Response:
        return answer(promotions.waiting(ws))

    @app.get("/api/promotions/{iteration}")
    def case(iteration: int) -> Response:
        return answer(promotions.open_case(ws, iteration))

    @app.post("/api/promotions/{iteration}")
    async def decided(iteration: int, request: Request) -> Response:
        decision = await _sent(request, promotions.Decision)
        return answer(await asyncio.to_thread(promotions.decide, ws, iteration, decision))


def _frame(ws: Workspace, near: beside.Beside) -> Callable[[int], Response]:
    """The page that all pages are made in, by its status."""
    page = (_PACKAGE / "page.html").read_text(encoding="utf-8")

    def shown(status: int = 200) -> Response:
        nonce = secrets.token_urlsafe(16)
        text, values = page, {"NONCE": nonce, "PREFECT": near.prefect, "DOCS": near.docs(ws)}
        for word, value in (values | {"WORKSPACE": ws.root.name}).items():
            text = text.replace(word, html.escape(value))
        return HTMLResponse(text, status, headers={"content-security-policy": guard.policy(nonce)})

    return shown


def _pages(app: FastAPI, page: Callable[[int], Response]) -> None:
    def shown() -> Response:
        return page(200)

    @app.get("/")
    def start() -> Response:
        return RedirectResponse("/iterations", 307)

    for path in ("/trajectories", "/trajectories/{name}", "/iterations", "/compare", "/review", "/sql"):
        app.get(path)(shown)

    @app.get("/tones.css")
    def tones() -> Response:
        return Response(palette.css(), media_type="text/css")

    app.mount("/static", StaticFiles(packages=[("flywheel.explorer", "static")]))


def _logging_in(app: FastAPI, login: Login) -> None:
    form = (_PACKAGE / "login.html").read_text(encoding="utf-8")

    def shown(status: int, said: str, then: str) -> Response:
        text = form.replace("SAID", html.escape(said)).replace("NEXT", html.escape(then))
        return HTMLResponse(text, status)

    def let_in(session: str, then: str) -> Response:
        return RedirectResponse(then, 303, headers={"set-cookie": login.set_cookie(session)})

    @app.get("/login")
    def asked(key: str = "", next: str = "/") -> Response:
        if key and (session := login.by_key(key)):
            return let_in(session, _own(next))
        said = "This address was used already: it works once." if key else ""
        return shown(401, said, _own(next))

    @app.post("/login")
    async def typed(request: Request) -> Response:
        fields = parse_qs((await request.body()).decode("utf-8", "replace"))
        secret, then = fields.get("secret", [""])[0], _own(fields.get("next", ["/"])[0])
        if session := login.by_secret(secret):
            return let_in(session, then)
        return shown(401, "That is not the secret of this workspace.", then)


def _own(address: str) -> str:
    """A page of ours, whatever was asked for."""
    return address if address.startswith("/") and not address.startswith(("//", "/\\")) else "/"


def _errors(app: FastAPI, page: Callable[[int], Response]) -> None:
    """Each failure is one line, as JSON."""

    def said(status: int, what: str) -> Response:
        response = answer({"error": what})
        response.status_code = status
        return response

    @app.exception_handler(FlywheelError)
    def failed(request: Request, error: FlywheelError) -> Response:
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
        return said(status, str(error))

    @app.exception_handler(RequestValidationError)
    def wrong(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return said(400, f"{'.'.join(map(str, first['loc'][1:]))}: {first['msg']}")

    @app.exception_handler(guard.TooLong)
    def too_long(request: Request, error: guard.TooLong) -> Response:
        return said(413, f"a request may have {guard.LONGEST // 1024} KiB, this one is longer")

    @app.exception_handler(404)
    def nothing(request: Request, error: Exception) -> Response:
        if request.method == "GET" and "text/html" in request.headers.get("accept", ""):
            return page(404)  # the frame of all pages, which says so
        return said(404, "there is nothing at this address")
