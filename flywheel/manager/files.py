"""Files of a session's machine, listed, read and written for a person who watches."""

from __future__ import annotations

import hashlib

from aiohttp import web

from flywheel.computer.machine import GuestRefused
from flywheel.environments.watchable import Watchable

_MOST = 2**18  # bytes of a file that is shown


async def folder(request: web.Request, env: Watchable) -> web.Response:
    """Its entries as JSON. path: from the home; "." is the home itself."""
    try:
        return web.json_response(await env.listed(_path(request)))
    except GuestRefused as error:
        raise web.HTTPNotFound(text=error.what) from None


async def file(request: web.Request, env: Watchable) -> web.Response:
    """`text`, and `digest`, by which it is written back; or `why` it is not shown."""
    text, digest, why = await _read(request, env)
    return web.json_response({"text": text, "digest": digest, "why": why})


async def write(request: web.Request, env: Watchable) -> web.Response:
    """digest: of the file as it was read; one that has changed since is not written over."""
    _, digest, why = await _read(request, env)
    if why or digest != request.query.get("digest"):
        raise web.HTTPConflict(text="The file has changed meanwhile: open it again.")
    content = await request.read()
    if len(content) > _MOST:
        raise web.HTTPRequestEntityTooLarge(_MOST, len(content), text=f"A file here has {_MOST} bytes at most.")
    try:
        await env.write(_path(request), content)
    except GuestRefused as error:
        raise web.HTTPConflict(text=error.what) from None
    return web.json_response({"digest": hashlib.sha256(content).hexdigest()})


def _path(request: web.Request) -> str:
    return request.query.get("path", "") or "."


async def _read(request: web.Request, env: Watchable) -> tuple[str, str, str]:
    try:
        data = await env.read(_path(request), _MOST)
    except GuestRefused as error:
        raise web.HTTPNotFound(text=error.what) from None
    if len(data) > _MOST:
        return "", "", f"It has more than {_MOST // 2**10} KB, and is not shown here."
    try:
        return data.decode(), hashlib.sha256(data).hexdigest(), ""
    except UnicodeDecodeError:
        return "", "", "It is not a text in UTF-8, and is not shown here."
