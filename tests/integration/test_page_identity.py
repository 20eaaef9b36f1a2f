"""The end is the task's own or none: a policy that chooses its seed, its variant or its luck is paid nothing for it."""

from __future__ import annotations

import pytest
import pytest_asyncio
import yaml
from night import by_day
from page_sources import Sources

from flywheel.agent.actions import Click, Hotkey, Navigate, NavigateBack, Point
from flywheel.config import SandboxSettings
from flywheel.envs.browser.pages import manifest
from flywheel.envs.browser.pages.session import ManifestPages
from flywheel.envs.browser.pool import BrowserPool
from flywheel.envs.tasks.page_tasks import make_page_task

pytestmark = pytest.mark.asyncio(loop_scope="module")
SEED = 3
CLICK = Click(Point(0.5, 0.5))
SAID = {
    "title": "Clicks",
    "folder": ".",
    "instruction": {"expression": "document.querySelector('p').textContent"},
    "reward": "clicks / wanted",
    "success": 1,
    "max_steps": 20,
    "reset": {"parameter": "seed"},
    "viewport": [320, 240],
}
# As pages read their seed: leniently, from wherever it may stand.
PAGE = """<body><p></p><button style="position:fixed;inset:0;opacity:.2"></button><script>
  const said = decodeURIComponent(decodeURIComponent(location.href)).toLowerCase().match(/seed=(\\d+)(?!.*seed=)/);
  let clicks = 0, wanted = 1 + Number(said ? said[1] : 0);
  document.querySelector("p").textContent = `Click ${wanted} times.`;
  document.querySelector("button").onclick = () => { clicks += 1; };
  addEventListener("hashchange", () => { wanted = 1; clicks = 0; });
</script>"""


def lay(folder, files, **fields):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    said = {key: value for key, value in {"name": "clicks", **SAID, **fields}.items() if value is not None}
    (folder / "page.yaml").write_text(yaml.safe_dump(said))
    return manifest.load_page_manifest(folder / "page.yaml")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def play():
    """play(manifest, *actions): the results of a reset and of the actions."""
    sources = Sources()
    async with BrowserPool(SandboxSettings(browsers=1, pages=1, timeout_s=60), sources) as pool:

        async def run(manifest, *actions, variant=None):
            async with ManifestPages({manifest.name: manifest}) as pages:
                sources.now = pages
                async with pool.env() as env:
                    task = make_page_task(manifest, variant or manifest.variants[0], SEED, "train")
                    results = [await env.reset(task, SEED)]
                    for action in actions:
                        results.append(await env.step(action))
                        if results[-1].terminated:
                            break
                    return results

        yield run


# -- as an attacker ---
CHOSEN = (
    "?seed=0",
    "index.html?seed=0",
    "/",
    "/index.html",
    "?seed=3&seed=0",
    "?seed=0&seed=3",
    "?%73eed=0",
    "?seed=3&%73eed=0",
    "?seed=3&%2573eed=0",
    "?SEED=0",
    "?seed=3&SEED=0",
    "?seed=3#seed=0",
    "?seed=3;seed=0",
    "?seed=3&x=seed=0",
    "?seed=03&seed=0",
    "?seed=00",
    "?seed=3&seed%5B%5D=0",
    "?seed=+0",
    "?seed=3&+seed=0",
    "#seed=0",
    "?x=1#?seed=0",
    "other/?seed=0",
    "?seed=3%26seed%3D0",
)


async def test_a_seed_that_the_policy_chose_is_paid_nothing(tmp_path, play):
    manifest = lay(tmp_path, {"index.html": PAGE, "other/index.html": PAGE})
    for address in CHOSEN:
        *_, there, last = await play(manifest, Navigate(address), CLICK)
        assert not last.terminated, address
        assert last.info["score"] == 0, address
        assert "another task, and nothing counts here" in there.info["note"], address


async def test_the_task_itself_is_still_paid(tmp_path, play):
    manifest = lay(tmp_path, {"index.html": PAGE})
    assert (await play(manifest, *[CLICK] * 4))[-1].reward == 1.0
    # So it is on the same task, loaded again, and after an excursion.
    for way in ([Navigate("?seed=3")], [Navigate("?seed=0"), CLICK, NavigateBack()], [Navigate("?lang=en&seed=3#top")]):
        results = await play(manifest, *way, *[CLICK] * 4)
        assert (results[-1].terminated, results[-1].reward) == (True, 1.0), way


async def test_a_link_that_drops_the_seed_needs_the_authors_word(tmp_path, play):
    more = "<script>var clicks = 4, wanted = 4</script><p>Click 4 times.</p>"
    files = {"index.html": PAGE, "more.html": more}
    assert not (await play(lay(tmp_path, files), Navigate("more.html")))[-1].terminated
    assert (await play(lay(tmp_path, files, follow=True), Navigate("more.html")))[-1].terminated
    # Nor does that word help who chooses a seed.
    results = await play(lay(tmp_path, files, follow=True), Navigate("?seed=0"), CLICK)
    assert not results[-1].terminated


async def test_a_page_may_rewrite_its_own_address(tmp_path, play):
    files = {"index.html": PAGE + "<script>onclick = () => history.pushState(null, '', '/game')</script>"}
    assert (await play(lay(tmp_path, files), *[CLICK] * 4))[-1].reward == 1.0
    files = {"index.html": PAGE + "<script>onclick = () => history.pushState(null, '', '?seed=0')</script>"}
    assert not (await play(lay(tmp_path, files), *[CLICK] * 4))[-1].terminated


async def test_another_instruction_is_another_task(tmp_path, play):
    """A page that keeps its seed where no address shows it: a key makes it play another one when it is loaded."""
    stored = PAGE.replace("const said =", "const said = localStorage.seed ? [0, localStorage.seed] :")
    stored += "<script>onkeydown = () => { localStorage.seed = 0; }</script>"
    manifest = lay(tmp_path, {"index.html": stored})
    *_, there, last = await play(manifest, Hotkey(("a",)), Navigate("?seed=3"), CLICK)
    assert "it asks something else" in there.info["note"]
    assert not last.terminated


async def test_a_page_that_goes_on_as_it_is_solved_is_paid_for_that_and_for_no_more(tmp_path, play):
    page = """<p>Level 1</p><button style="position:fixed;inset:0"></button><script>
      var level = 1; document.querySelector("button").onclick = () => {
        level += 1; document.querySelector("p").textContent = `Level ${level}`; }</script>"""
    said = {"reset": "reload", "seeded": False, "splits": ["eval"]}
    once = lay(tmp_path, {"index.html": page}, reward="level - 1", success=1, **said)
    assert (await play(once, CLICK))[-1].reward == 1.0
    more = lay(tmp_path, {"index.html": page}, reward="level - 1", success=3, **said)
    assert [result.info["state"]["reward"] for result in await play(more, CLICK, CLICK, CLICK)] == [0, 1, 1, 1]


async def test_a_board_that_is_drawn_again_is_another_task(tmp_path, play):
    page = """<button style="position:fixed;inset:0"></button><script>
      var clicks = 0, wanted = LUCK; document.querySelector("button").onclick = () => { clicks += 1; };</script>"""
    said = {"reset": "reload", "instruction": "Click."}
    lucky = lay(tmp_path, {"index.html": page.replace("LUCK", "1 + Math.floor(Math.random() * 2)")}, **said)
    *_, there, _, last = await play(lucky, Navigate("/"), CLICK, CLICK)
    assert "drawn by lot anew" in there.info["note"]
    assert not last.terminated
    still = lay(tmp_path, {"index.html": page.replace("LUCK", "2")}, **said)
    assert (await play(still, Navigate("/"), CLICK, CLICK))[-1].reward == 1.0


@pytest.mark.parametrize("start", by_day(["{variant}.html", "play.html?level={variant}", "play.html#/{variant}"]))
async def test_the_page_of_another_variant_is_another_task(tmp_path, play, start):
    page = (
        "<body>%s<button style='position:fixed;inset:0'></button><script>var clicks = 0, wanted = 1;"
        "onclick = () => { clicks += 1; }</script>"
    )
    files = {name: page % name for name in ("hard.html", "easy.html", "play.html")}
    manifest = lay(
        tmp_path,
        files,
        start=start,
        variants=["hard", "easy"],
        reset="reload",
        instruction="{variant}",
        seeded=False,
        splits=["eval"],
    )
    easy = start.format(variant="easy")
    for address in (
        easy,
        f"/{easy}",
        f"//{'/'}{easy}"[2:],
        easy.replace("easy", "%65asy"),
        easy.replace("easy", "EASY"),
    ):
        results = await play(manifest, Navigate(address), CLICK)
        assert not results[-1].terminated, address
    assert (await play(manifest, CLICK))[-1].terminated
    assert (await play(manifest, CLICK, variant="easy"))[-1].terminated
