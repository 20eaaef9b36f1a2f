"""Sessions of a node, watched: by HTTP, and in a browser as a person does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import managers

from flywheel.envs.registry import open_environments

SECRET = managers.SECRET


@asynccontextmanager
async def playing(tmp_path, task, sandbox=None, kinds=("shelves",), film=0) -> AsyncIterator[tuple[str, object]]:
    """The node's address, and a session's environment there, reset."""
    sandbox = sandbox or {}
    async with (
        managers.manager(tmp_path) as it,
        managers.node(it.address, settings=managers.chosen(**sandbox), kinds=kinds, film=film) as one,
        open_environments(
            managers.chosen(it.address, **{"acquire_timeout_s": 30.0, **sandbox}), [task]
        ) as environments,
        environments.env(task) as env,
    ):
        await env.reset(task, task.seed)
        yield one.address, env


@asynccontextmanager
async def logged_in(address: str) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(address, cookie_jar=aiohttp.CookieJar(unsafe=True)) as client:
        async with client.post("/watch/login", data={"token": SECRET}) as answer:
            assert answer.status == 200
        yield client


async def told(client: aiohttp.ClientSession) -> dict:
    async with client.get("/watch/sessions") as answer:
        return (await answer.json())[0]


def log_in(page, address: str) -> None:
    page.goto(f"{address}/watch")
    page.fill("[name=token]", SECRET)
    page.click("#login button")


def enter(page, address: str, part: str) -> None:
    """Log in, and open a part of the one session."""
    log_in(page, address)
    page.click(".card")
    page.click(f"#parts button:text-is('{part}')")


def compose(page, text: str) -> None:
    """Write as an input method does."""
    browser = page.context.new_cdp_session(page)
    browser.send("Input.imeSetComposition", {"text": text, "selectionStart": len(text), "selectionEnd": len(text)})
    browser.send("Input.insertText", {"text": text})
