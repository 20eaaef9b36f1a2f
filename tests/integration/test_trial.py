"""What `flywheel env page try` finds: seeds that show late, controls and drags that break a session, and its words."""

from __future__ import annotations

import pytest
import pytest_asyncio
import yaml
from night import by_day
from page_sources import Sources

from flywheel.config import SandboxSettings
from flywheel.envs.browser.page_check import PartResult, judge_seeds, try_controls, try_drags, try_seeds
from flywheel.envs.browser.pages import manifest
from flywheel.envs.browser.pages.session import ManifestPages
from flywheel.envs.browser.pool import BrowserPool
from flywheel.envs.conformance import CLAUSES, ConformanceCase, SeedComparison
from flywheel.envs.tasks.page_tasks import make_page_task
from flywheel.utils.errors import EnvError

pytestmark = pytest.mark.asyncio(loop_scope="module")
SAID = {"title": "t", "folder": ".", "instruction": "Win.", "reward": "0", "success": 1, "max_steps": 5}


def lay(folder, text, **fields):
    (folder / "index.html").write_text(text)
    (folder / "page.yaml").write_text(yaml.safe_dump({"name": "tried", **SAID, "viewport": [320, 320], **fields}))
    return manifest.load_page_manifest(folder / "page.yaml")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tried():
    """tried(manifest, how): what `how(pool, task)` finds on the manifest's page."""
    sources = Sources()
    async with BrowserPool(SandboxSettings(browsers=1, pages=2, timeout_s=8), sources) as pool:

        async def run(manifest, how):
            async with ManifestPages({manifest.name: manifest}) as pages:
                sources.now = pages
                return await how(pool, make_page_task(manifest, "page", 7, "eval"))

        yield run


def seeds_of(manifest):
    return lambda pool, task: try_seeds(pool, manifest, task)


# -- seeds ---
# As in chess against a player of chance: a click on one of one's own men shows where he may go, a click there moves
# him, and then the other side answers by lot.
DUEL = """<body><style>
  b { position: absolute; width: 40px; height: 40px; background: tan } .on { background: lime }
</style><script>
  let chosen = null, answers = [];
  for (let i = 0; i < 64; i++) {
    const cell = document.body.appendChild(document.createElement("b"));
    cell.style.left = `${i % 8 * 40}px`; cell.style.top = `${(i >> 3) * 40}px`;
    cell.textContent = i > 47 ? "m" : "";
    cell.onclick = () => {
      const may = cell.classList.contains("on");
      document.querySelectorAll(".on").forEach((one) => one.classList.remove("on"));
      if (may) { chosen.textContent = ""; cell.textContent = "m"; answer(); }
      else if (cell.textContent === "m") { chosen = cell; for (const up of [8, 16]) document.body.children[i - up + 2]
        ?.classList.add("on"); }
    };
  }
  const answer = () => { document.body.children[2 + Math.floor(CHANCE * 16)].textContent = "x"; };
</script>"""


async def test_a_seed_that_shows_only_after_some_moves_is_found(tmp_path, tried):
    manifest = lay(tmp_path, DUEL.replace("CHANCE", "Math.random()"))
    verdict = await tried(manifest, seeds_of(manifest))
    assert verdict.found.startswith("holds: another seed shows after ")
    assert (verdict.wrong, verdict.doubtful) == ("", "")


async def test_the_conformance_suite_itself_sees_it(tmp_path, tried):
    manifest = lay(tmp_path, DUEL.replace("CHANCE", "Math.random()"))
    await tried(manifest, lambda pool, task: CLAUSES["seeding"](ConformanceCase(pool.env, task, seeded=True)))


@pytest.mark.parametrize(
    ("text", "fields", "kind", "part"),
    by_day(
        [
            (DUEL.replace("CHANCE", "0.5"), {}, "wrong", "there is no chance in this page"),
            (
                DUEL.replace("CHANCE", "0.5") + "<script>const start = () => {}</script>",
                {"reset": "start(seed)"},
                "wrong",
                "the seed is ignored, as far as can be seen",
            ),
            ("<p>still</p>", {"reset": {"parameter": "seed"}}, "wrong", "the seed is ignored, as far as can be seen"),
            ("<script>const id = Math.random()</script>", {}, "doubtful", "drew 1 numbers from its seeded chance"),
            ("<script>const later = () => Math.random()</script>", {}, "doubtful", "name Math.random"),
        ]
    ),
    ids=["none", "ignored", "ignored in the address", "unseen", "later"],
)
async def test_what_seeds_do_is_told_as_it_is(tmp_path, tried, text, fields, kind, part):
    manifest = lay(tmp_path, text, **fields)
    verdict = await tried(manifest, seeds_of(manifest))
    assert part in getattr(verdict, kind)
    assert not getattr(verdict, {"wrong": "doubtful", "doubtful": "wrong"}[kind])
    if kind == "wrong":
        with pytest.raises(EnvError, match="4 other seeds all gave the same task, over 24 steps"):
            await tried(manifest, lambda pool, task: CLAUSES["seeding"](ConformanceCase(pool.env, task, seeded=True)))


async def test_advice_never_says_the_opposite_of_what_was_found(tmp_path):
    """`seeded: false` forbids training and evaluating on one page: it is advised for good only where there is no
    chance."""
    manifest = lay(tmp_path, "")
    for named in (False, True):
        assert judge_seeds(manifest, SeedComparison(3, 24, 5), named).found == (
            "holds: another seed shows after 3 steps of the same actions"
        )
        assert not judge_seeds(manifest, SeedComparison(None, 24, 5), named).wrong
    assert "Write seeded: false" in judge_seeds(manifest, SeedComparison(None, 24, 0), named=False).wrong
    handed = manifest.model_copy(update={"reset": "start(seed)"})
    assert "seeded: false" not in judge_seeds(handed, SeedComparison(None, 24, 0), named=True).wrong


# -- controls ---
SIMPLE = """<input name=t><input type=password><input type=number><input type=checkbox><input type=radio name=r checked>
<input type=radio name=r><input type=range><textarea></textarea><select size=3><option>1<option>2<option>3</select>
<p contenteditable>edit</p><details><summary>more</summary>x</details><input type=hidden><input readonly>
<p style="height: 900px"></p><input type=email>"""


def in_a_tree(page: str) -> str:
    """The same in the shadow tree of an element in another one."""
    tree = f"<template shadowrootmode=open>{page}</template>"
    return f"<div><template shadowrootmode=open><p>{tree}</p></template></div>"


@pytest.mark.parametrize("placed", [str, in_a_tree])
async def test_one_of_each_control_is_tried_and_changed(tmp_path, tried, placed):
    found = await tried(lay(tmp_path, placed(SIMPLE)), try_controls)
    assert not [one for one in found if one.wrong or not one.seen]
    assert {one.part for one in found} == {
        "input of type text",
        "input of type password",
        "input of type number",
        "input of type checkbox",
        "input of type radio",
        "input of type range",
        "input of type email",
        "textarea",
        "select (list)",
        "editable text",
        "details",
    }


async def test_a_control_that_breaks_the_session_or_takes_nothing_is_found(tmp_path, tried):
    page = "<input type=checkbox onclick='for (;;);'><input oninput='this.value = \"\"'><input type=range>"
    found = await tried(lay(tmp_path, page), try_controls)
    harmed, stuck, sound = found
    assert "did not answer" in harmed.wrong or "hung" in harmed.wrong
    assert stuck == PartResult("input of type text", seen=False)
    assert sound == PartResult("input of type range")


# -- drags ---
SORTED = """<style>i { display: block; height: 40px; width: 300px; cursor: move; user-select: none }</style>
<i>one</i><i>two</i><script>
  let held = null;
  onmousedown = (event) => { held = event.target.closest("i"); };
  onmouseup = (event) => { event.target.closest("i")?.after(held); };
</script>"""


async def test_what_can_be_dragged_is_dragged(tmp_path, tried):
    assert await tried(lay(tmp_path, SORTED), try_drags) == [PartResult("a pointer drag")]
    tiles = "<style>i { display: block; height: 40px; cursor: move } :active { color: red }</style><i>one</i><i>two</i>"
    assert await tried(lay(tmp_path, in_a_tree(tiles)), try_drags) == [PartResult("a pointer drag")]
    assert await tried(lay(tmp_path, "<p>nothing</p>"), try_drags) == []


async def test_a_drag_that_breaks_the_session_or_does_nothing_is_found(tmp_path, tried):
    hangs = SORTED + "<script>onmousemove = (event) => { if (event.buttons) for (;;); }</script>"
    (found,) = await tried(lay(tmp_path, hangs), try_drags)
    assert found.wrong.startswith("it broke the session: ")
    still = "<style>i { display: block; cursor: grab; user-select: none }</style><i>one</i><i>two</i>"
    assert await tried(lay(tmp_path, still), try_drags) == [PartResult("a pointer drag", seen=False)]
