"""Pages that nobody here wrote, by manifest alone: all sorts of pages run, and what is wrong is told by its field."""

from __future__ import annotations

import pytest
import pytest_asyncio
from manifest_pages import BUTTON, COUNTER, GAME, lay
from night import by_day
from page_sources import Sources

from flywheel.agent import actions as act
from flywheel.agent.actions import Click, Point, Wait
from flywheel.config import SandboxSettings, parse_settings
from flywheel.envs.browser.pages.session import ManifestPages
from flywheel.envs.browser.pool import BrowserPool, open_browser_pool
from flywheel.envs.conformance import check_env
from flywheel.envs.registry import EnvRouter
from flywheel.envs.tasks.drawing import make_tasks
from flywheel.envs.tasks.page_tasks import fetch_page_instructions, make_page_task
from flywheel.utils.errors import BadInput, EnvError

pytestmark = pytest.mark.asyncio(loop_scope="module")
MIDDLE = Click(Point(0.5, 0.5))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def play():
    """play(manifest, *actions): the results of a reset and of the actions."""
    sources = Sources()
    settings = SandboxSettings(browsers=1, pages=2, timeout_s=60)
    async with BrowserPool(settings, sources) as pool:

        async def run(manifest, *actions, seed=1):
            async with ManifestPages({manifest.name: manifest}) as pages:
                sources.now = pages
                async with pool.env() as env:
                    results = [await env.reset(make_page_task(manifest, manifest.variants[0], seed, "train"), seed)]
                    return results + [await env.step(action) for action in actions]

        run.pool, run.sources = pool, sources
        yield run


# -- pages that ask ---
ENTER, ESCAPE = act.Hotkey(("enter",)), act.Hotkey(("esc",))
ASKS = {
    "index.html": GAME
    + BUTTON.replace("game.clicks", "if (confirm(`more?`)) game.clicks")
    + """<script>
    game.name = prompt('Who are you?', 'me');
    game.reset = (seed) => { game.seed = seed; return confirm('Begin?'); };
</script>"""
}


async def test_a_page_that_asks_first_is_reset_once_it_is_answered(tmp_path, play):
    """The first screen is its question; what the manifest's own script asks is answered, and no one else hears."""
    page = lay(
        tmp_path / "asks",
        ASKS,
        reset="game.begun = game.reset(seed)",
        success="confirm('Won?') ? 1 : 2",
        state={"name": "game.name", "seed": "game.seed", "begun": "game.begun"},
    )
    results = await play(page, act.Type("you\n"), MIDDLE, ESCAPE, MIDDLE, ENTER, seed=5)
    asked, begun, more, refused, again, last = (result.info["state"] for result in results)
    assert (asked["dialog"]["message"], asked["values"], asked["reward"]) == ("Who are you?", {}, 0)
    assert begun["values"] == {"name": "you", "seed": 5, "begun": True}
    assert [state["reward"] for state in (more, refused, again, last)] == [0, 0, 0, 1]
    assert [("dialog" in state) for state in (more, refused, again, last)] == [True, False, True, False]
    assert 'confirm "Begin?": answered OK' in results[1].info["note"]
    assert results[-1].terminated


@pytest.mark.exhaustive
async def test_a_page_that_asks_passes_the_conformance_suite(tmp_path, play):
    page = lay(tmp_path / "asks", ASKS, reset="game.reset(seed)")
    async with ManifestPages({page.name: page}) as play.sources.now:
        await check_env(play.pool.env, make_page_task(page, page.variants[0], 1, "train"))


async def test_an_instruction_is_read_behind_a_question(tmp_path, play):
    page = lay(tmp_path / "asks", ASKS, reset="reload", instruction={"expression": "'Be ' + game.name"})
    async with ManifestPages({page.name: page}) as play.sources.now:
        [task] = await fetch_page_instructions(
            [make_page_task(page, page.variants[0], 1, "train")], EnvRouter({"browser": play.pool}).env
        )
    assert task.instruction == "Be me"


# -- all sorts of pages ---
async def test_a_page_is_a_task_with_reward_and_end(tmp_path, play):
    lamp = lay(tmp_path / "counter", COUNTER, reset="game.start(seed)", state={"seed": "game.seed"})
    first, second, third, last = await play(lamp, MIDDLE, MIDDLE, MIDDLE, seed=9)
    assert first.info["state"]["values"] == {"seed": 9}
    assert [r.info["score"] for r in (first, second, third, last)] == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert (last.terminated, last.reward) == (True, 1.0)
    assert first.observation.url == "counter/index.html"


async def test_the_pages_own_end_is_an_end(tmp_path, play):
    lost = lay(tmp_path / "lost", COUNTER, end="game.clicks > 0")
    *_, last = await play(lost, MIDDLE)
    assert (last.terminated, last.truncated, last.reward) == (True, False, pytest.approx(1 / 3))


async def test_viewport_and_page_time_are_the_manifests(tmp_path, play):
    files = {"index.html": "<script>var ticks = 0; setInterval(() => { ticks += 1; }, 100)</script>"}
    page = lay(tmp_path / "ticks", files, viewport=[321, 111], step_ms=1000, settle_ms=0, reward="ticks", success=100)
    first, second = await play(page, Wait())
    assert (first.observation.width, first.observation.height) == (321, 111)
    assert second.info["state"]["reward"] - first.info["state"]["reward"] == 10


@pytest.mark.parametrize(
    ("files", "fields"),
    by_day(
        [
            # Its variables are those of classic scripts, which are no properties of the window.
            (
                {"index.html": f"<script>let clicks = 0; class Game {{}}</script>{BUTTON.replace('game.', '')}"},
                {"reward": "clicks"},
            ),
            # Absolute paths, and a start page in a subfolder.
            (
                {
                    "deep/play.html": f"<script src=/static/js/game.js></script>{BUTTON}",
                    "static/js/game.js": "window.game = {clicks: 0}",
                },
                {"start": "deep/play.html?level=1#x"},
            ),
            # Module scripts: what they define is read from the document.
            (
                {
                    "index.html": "<script type=module src=./main.mjs></script><output id=n>0</output>"
                    "<button style='position:fixed;inset:0'></button>",
                    "main.mjs": "import {next} from './lib/next.js'; document.querySelector('button').onclick = () => {"
                    "document.querySelector('#n').value = next(document.querySelector('#n').value); }",
                    "lib/next.js": "export const next = (n) => Number(n) + 1;",
                },
                {"reward": "Number(document.querySelector('#n').value)"},
            ),
            # Fetches its level, relative to itself, and is not there before.
            (
                {
                    "index.html": "<script>fetch('data/level.json').then(r => r.json())"
                    ".then(l => { window.game = l; })</script>" + BUTTON,
                    "data/level.json": '{"clicks": 0}',
                },
                {},
            ),
            # Is made by a timer long after its load.
            (
                {"index.html": f"<script>setTimeout(() => {{ window.game = {{clicks: 0}}; }}, 3000)</script>{BUTTON}"},
                {"ready": "typeof game !== 'undefined'"},
            ),
            # A canvas game with a loop of its own: clicks count in the next frame.
            (
                {
                    "index.html": "<canvas width=200 height=200 style='position:fixed;inset:0'></canvas><script>"
                    "let clicked = 0, drawn = 0, x = 0; onclick = () => { clicked += 1; };"
                    "const pen = document.querySelector('canvas').getContext('2d');"
                    "(function loop(now) { drawn = clicked; x = (x + Math.random() * 9) % 200;"
                    "pen.fillStyle = `hsl(${now % 360} 80% 50%)`; pen.fillRect(x, 50, 20, 20);"
                    "requestAnimationFrame(loop); })(0)</script>"
                },
                {"reward": "drawn"},
            ),
            # Routed by the fragment: clicks lead on.
            (
                {
                    "index.html": "<script>const at = () => Number(location.hash.slice(2));"
                    "onclick = () => { location.hash = '/' + (at() + 1); }</script>"
                },
                {"start": "index.html#/0", "reward": "at()"},
            ),
            # Forbids eval, and everything from elsewhere.
            (
                {
                    "index.html": "<meta http-equiv=Content-Security-Policy content=\"default-src 'self'\">"
                    "<script src=game.js></script><button style='position:fixed;inset:0'></button>",
                    "game.js": "window.game = {clicks: 0}; onclick = () => { game.clicks += 1; }",
                },
                {},
            ),
            # Statements and promises in its reset; it asks elsewhere for what is not there.
            (
                {
                    "index.html": "<link rel=stylesheet href=https://example.invalid/x.css>"
                    "<img src=https://example.invalid/x.png>" + GAME + BUTTON
                },
                {
                    "reset": "const half = seed / 2; await Promise.resolve(); game.start(half * 2)",
                    "end": "game.seed !== 1",
                },
            ),
            (
                COUNTER,
                {
                    "reset": "new Promise(done => setTimeout(() => { game.start(1); done() }, 500))",
                    "end": "game.seed !== 1",
                },
            ),
            # Its seed comes in the address.
            (
                {
                    "index.html": "<script>const seed = Number(new URLSearchParams(location.search).get('s'));"
                    f"var game = {{clicks: seed - 1}}</script>{BUTTON}"
                },
                {"reset": {"parameter": "s"}},
            ),
        ],
        6,
    ),
    ids=["globals", "absolute", "modules", "fetch", "timer", "canvas", "hash", "policy", "reset", "promise", "address"],
)
async def test_all_sorts_of_pages_run_and_are_the_same_each_time(tmp_path, play, files, fields):
    page = lay(tmp_path / "sort", files, **fields)
    first = await play(page, MIDDLE, MIDDLE, MIDDLE)
    assert [result.info["state"]["reward"] for result in first] == [0, 1, 2, 3]
    assert first[-1].terminated
    assert await play(page, MIDDLE, MIDDLE, MIDDLE) == first


@pytest.mark.parametrize("kind", by_day(["seeded", "random"]))
async def test_a_manifest_page_passes_the_conformance_suite(tmp_path, play, kind):
    where = {"seeded": "game.seed", "random": "Math.random() * 1e6"}[kind]
    dot = (
        "<i style='position:fixed;width:20px;height:20px;background:red' id=dot></i><script>function place() {"
        f"dot.style.left = ({where}) % 150 + 'px'; }}</script><input style='position:fixed;bottom:0'>"
    )
    page = lay(tmp_path / kind, {"index.html": GAME + BUTTON + dot}, reset="game.start(seed); place()", max_steps=5)
    async with ManifestPages({page.name: page}) as pages:
        play.sources.now = pages
        await check_env(play.pool.env, make_page_task(page, "page", 7, "train"), seeded=True)


async def test_a_page_that_is_left_for_one_that_is_not_there_rewards_nothing(tmp_path, play):
    files = {**COUNTER, "more.html": "<script>var game = {clicks: 99}</script>"}
    page = lay(tmp_path / "left", files, reset="game.start(1)")
    first, lost, other, again = await play(
        page, act.Navigate("/nowhere.html"), act.Navigate("/more.html"), act.Navigate("/index.html")
    )
    assert [result.info["state"]["reward"] for result in (first, lost, other, again)] == [0, 0, 0, 0]
    assert "reward" in lost.info["state"]["unread"]
    assert not any(result.terminated for result in (lost, other, again))


# -- what is wrong ---
@pytest.mark.parametrize(
    ("files", "fields", "parts"),
    [
        (COUNTER, {"reward": "game..clicks"}, ["page.yaml: reward: SyntaxError", "one JavaScript expression"]),
        (COUNTER, {"end": "if (1) true"}, ["page.yaml: end: SyntaxError"]),
        (COUNTER, {"reward": "game.board[3].value"}, ["reward: TypeError: Cannot read properties of undefined"]),
        (COUNTER, {"reward": "gaem.clicks"}, ["reward: ReferenceError: gaem is not defined", "give `ready:"]),
        (COUNTER, {"reward": "game.click"}, ["reward: it gives undefined", "a number is needed"]),
        (COUNTER, {"reward": "game.clicks / 0"}, ["reward: it gives NaN"]),
        (COUNTER, {"reward": "'3'"}, ['it gives the text "3"', "write Number(...) around it"]),
        (COUNTER, {"reward": "document.body"}, ["it gives an element of the page"]),
        (COUNTER, {"reward": "game.start"}, ["it gives a function: call it"]),
        (COUNTER, {"reward": "Promise.resolve(1)"}, ["it gives a promise"]),
        (COUNTER, {"end": "document.querySelector('.over')"}, ["end: it gives null", "Boolean(...)"]),
        (COUNTER, {"success": "game.clicks"}, ["success: it gives 0, which is not above floor: 0"]),
        (COUNTER, {"state": {"all": "window"}}, ["state.all: TypeError"]),
        (COUNTER, {"state": {"long": "'x'.repeat(1e6)"}}, ["state.long: it gives 1000002 characters of JSON"]),
        (COUNTER, {"instruction": {"expression": "document.title"}}, ['instruction: it gives the text ""']),
        (COUNTER, {"reset": "game.restart(seed)"}, ["reset: TypeError: game.restart is not a function"]),
        (COUNTER, {"reset": "game.start(seed"}, ["reset: SyntaxError", "reset must be JavaScript"]),
        (COUNTER, {"reset": "throw 'no'"}, ["reset: it threw no"]),
        (COUNTER, {"ready": "game.loaded"}, ["ready: Error: it is still not true after 5 s of page time"]),
        (
            {"index.html": "<script type=module>let game = {clicks: 0}</script>"},
            {},
            ["game is not defined", "are modules"],
        ),
        (
            {"index.html": "<script src=https://cdn.invalid/game.js></script>"},
            {},
            ["game is not defined", "could not load https://cdn.invalid/game.js", "no other machine is reached"],
        ),
        ({"index.html": "<script src=lib/game.js></script>"}, {}, ["could not load http://127.0.0.1", "/lib/game.js"]),
    ],
)
async def test_a_wrong_manifest_is_told_by_its_field_in_one_line(tmp_path, play, files, fields, parts):
    page = lay(tmp_path / "wrong", files, **fields)
    with pytest.raises(EnvError) as caught:
        await play(page)
    for part in parts:
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_a_page_that_breaks_in_play_is_an_error_and_no_score(tmp_path, play):
    page = lay(tmp_path / "breaks", {"index.html": GAME + BUTTON.replace("game.clicks += 1", "game = null")})
    with pytest.raises(EnvError, match=r"page.yaml: reward: TypeError"):
        await play(page, MIDDLE)
    assert (await play(page))[0].info["score"] == 0  # and the next session is sound


# -- in the flywheel ---
async def test_worlds_and_pages_stand_in_one_sandbox(tmp_path):
    lay(
        tmp_path / "pages" / "counter",
        COUNTER,
        reset="game.start(seed)",
        instruction={"expression": "`Click three times, ${seed}.`"},
    )
    chosen = {"manifests": ["pages/counter"], "train_tasks": 12, "eval_tasks": 1}
    settings = parse_settings(
        {"synthesis": chosen, "sandbox": {"browsers": 1, "pages": 1, "timeout_s": 60}}, where="test"
    )
    tasks = make_tasks(settings, 0, "train", tmp_path)
    async with open_browser_pool(settings, tmp_path) as pool:
        tasks = await fetch_page_instructions(tasks, EnvRouter({"browser": pool}).env)
        async with pool.env() as env:
            for task in tasks:
                if task.world in ("counter", "shop", "tiles"):
                    assert (await env.reset(task, task.seed)).info["score"] < 1
    asked = {task.world: task.instruction for task in tasks}
    assert asked["counter"].startswith("Click three times, ")
    assert "counter" in asked
    assert len(asked) > 2


async def test_a_page_that_asks_for_a_file_is_given_one_of_the_manifests(play, tmp_path):
    upload = "<input type=file id=i onchange='i.files[0].text().then((t) => game.clicks = Number(t))'>"
    files = {"index.html": GAME + upload, "given/three.txt": "3"}
    manifest = lay(tmp_path / "upload", files, files="given", reset="reload")
    results = await play(manifest, Click(Point(0.1, 0.1)), act.Type("three.txt\n"))
    assert "three.txt" in results[1].info["note"]
    assert results[-1].reward == 1
    with pytest.raises(BadInput, match="files: there is no folder"):
        lay(tmp_path / "none", {"index.html": GAME}, files="missing")
