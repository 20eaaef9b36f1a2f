"""Pages with a server of their own for each session: started, logged into, verified over its state, ended.

Those with `isolation_mode` run twice: under bubblewrap, where the machine has it, and without.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest
import pytest_asyncio
from page_servers import SAID, lay

from flywheel.agent.actions import Click, Navigate, Point
from flywheel.config import SandboxSettings
from flywheel.envs.browser.pages.session import ManifestPages
from flywheel.envs.browser.pool import BrowserPool
from flywheel.envs.conformance import CLAUSES, ConformanceCase
from flywheel.envs.tasks.page_tasks import make_page_task
from flywheel.utils.errors import BadInput, EnvError

pytestmark = pytest.mark.asyncio(loop_scope="module")
MUG, CUP = Click(Point(0.5, 0.3)), Click(Point(0.5, 0.7))


class Sources:
    """The pages of the test that runs."""

    start_s = 60.0

    def open(self, task, seed):
        return self.now.open(task, seed)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool():
    sources = Sources()
    async with BrowserPool(SandboxSettings(browsers=1, pages=3, timeout_s=60), sources) as opened:
        opened.sources = sources
        yield opened


@contextlib.asynccontextmanager
async def serving(pool, manifest):
    async with ManifestPages({manifest.name: manifest}) as pages:
        pool.sources.now = pages
        yield pages


def task_of(manifest, seed=1):
    return make_page_task(manifest, "page", seed, "eval")


async def play(env, manifest, *actions, seed=1):
    results = [await env.reset(task_of(manifest, seed), seed)]
    return results + [await env.step(action) for action in actions]


# -- a session ---
async def test_a_server_is_logged_into_played_and_verified(tmp_path, pool, isolation_mode):
    manifest = lay(tmp_path)
    async with serving(pool, manifest), pool.env() as env:
        first, mug, last = await play(env, manifest, MUG, MUG, seed=3)
        assert first.info["state"]["values"] == {"seed": 3, "old": 3}
        assert [one.info["score"] for one in (first, mug, last)] == [0, 0.5, 1]
        assert (last.terminated, last.reward, last.observation.url) == (True, 1.0, "orders/orders")
        # The next session's server knows nothing of this one.
        again, over = await play(env, manifest, CUP, seed=2)
        assert (again.info["state"]["reward"], again.info["state"]["values"]["old"]) == (0, 2)
        assert (over.terminated, over.reward) == (True, 0.0)


async def test_sessions_at_once_have_servers_of_their_own(tmp_path, pool, isolation_mode):
    manifest = lay(tmp_path)
    async with serving(pool, manifest), pool.env() as one, pool.env() as other, pool.env() as third:
        ends = await asyncio.gather(
            play(one, manifest, MUG, MUG), play(other, manifest, MUG), play(third, manifest, CUP)
        )
        assert [results[-1].info["state"]["reward"] for results in ends] == [2, 1, 0]
        assert len({env.tab.url for env in (one, other, third)}) == 3
        folders = {env.env.backend.folder for env in (one, other, third)}
        assert all(folder.is_dir() for folder in folders)
    assert not any(folder.exists() for folder in folders)


@pytest.mark.parametrize("clause", ["determinism", "reset in the middle"])
async def test_it_passes_clauses_of_the_conformance_suite(tmp_path, pool, clause):
    manifest = lay(tmp_path)
    async with serving(pool, manifest):
        await CLAUSES[clause](ConformanceCase(pool.env, task_of(manifest), seeded=True))


async def test_a_checkpoint_is_played_again_on_a_fresh_server(tmp_path, pool):
    manifest = lay(tmp_path, success=3)
    async with serving(pool, manifest), pool.env() as env:
        *_, reached = await play(env, manifest, MUG)
        checkpoint = await env.checkpoint()
        after = await env.step(MUG)
        assert await env.restore(checkpoint) == reached
        assert await env.step(MUG) == after


async def test_a_session_without_its_login_is_told(tmp_path, pool):
    login = {**SAID["login"], "fill": {"[name=user]": "ada", "[name=password]": "wrong"}}
    manifest = lay(tmp_path, login=login)
    async with serving(pool, manifest), pool.env() as env:
        with pytest.raises(EnvError, match=r"login\.done: it is still not true on the first page"):
            await play(env, manifest)
    manifest = lay(tmp_path, login={**login, "submit": "#none"})
    async with serving(pool, manifest), pool.env() as env:
        with pytest.raises(EnvError, match="login: there is no #none on this page"):
            await play(env, manifest)


@pytest.mark.parametrize("how", [{"cookies": {"session": "ada"}}, {"headers": {"X-Key": "ada"}}], ids=str)
async def test_cookies_and_headers_are_sent(tmp_path, pool, how):
    manifest = lay(tmp_path, login=how, reward="Number(document.title === 'Orders')", success=2)
    async with serving(pool, manifest), pool.env() as env:
        assert (await play(env, manifest))[0].info["state"]["reward"] == 1


async def test_a_server_that_dies_in_play_is_an_error_with_its_last_words(tmp_path, pool, isolation_mode):
    manifest = lay(tmp_path)
    async with serving(pool, manifest), pool.env() as env:
        await play(env, manifest)
        with pytest.raises(EnvError, match=r"ended by itself with status 3: I was told to die"):
            await env.step(Navigate("/die"))
    async with serving(pool, manifest), pool.env() as env:
        assert len(await play(env, manifest, MUG)) == 2  # and the next session is sound


# -- what is refused before anything is started ---
@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"server": {"command": ["no-such-program"]}}, "there is no program no-such-program"),
        ({"server": {"packages": ["nothing-here==1.0"]}}, "what its server needs is not installed: nothing-here==1.0"),
    ],
)
async def test_a_program_that_is_missing_is_told_with_what_to_type(tmp_path, fields, part):
    manifest = lay(tmp_path, **fields)
    with pytest.raises(BadInput) as caught:
        ManifestPages({"orders": manifest})
    assert part in str(caught.value)
