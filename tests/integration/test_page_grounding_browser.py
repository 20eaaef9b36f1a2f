"""Grounding examples of pages that training tasks are on, in a real browser."""

from __future__ import annotations

import io
import re

import manifest_pages
import pytest
import pytest_asyncio
import synthetic
from pages import task_of
from PIL import Image as Picture

from flywheel.agent.actions import Click
from flywheel.agent.parsing.parser import parse_response
from flywheel.config import SandboxSettings, Settings
from flywheel.envs.browser.pool import open_browser_pool
from flywheel.envs.suites.oracle import next_expert_step
from flywheel.envs.tasks.drawing import draw_training_tasks, training_filter
from flywheel.envs.tasks.grounding import make_grounding_examples
from flywheel.envs.tasks.held_out import is_held_out
from flywheel.pipeline.stage import StageContext, run_stage
from flywheel.pipeline.stages import synthesize
from flywheel.store import images
from flywheel.synthesis import page_grounding
from flywheel.synthesis.exploration.page_view import read_page_view
from flywheel.synthesis.page_grounding import list_named_elements, make_page_examples, visit_screens
from flywheel.utils.errors import EnvError

PLAYED = pytest.mark.asyncio(loop_scope="module")
SETTINGS = Settings.model_validate({"sandbox": SandboxSettings(timeout_s=60), "synthesis": {"train_tasks": 12}})
# What the page says of an element -> the name that its template gives it.
NAMED = {
    "shop": "home", "search field": "search", "add to cart": "add", "back to shop": "back", "checkout": "checkout",
    "your name field": "name", "pay": "pay", "main": "page main", "look": "page look", "user": "page user",
    "small": "size small", "normal": "size normal", "large": "size large", "save": "save", "name field": "name field",
}  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool():
    async with open_browser_pool(SETTINGS) as opened:
        yield opened


@PLAYED
async def test_elements_lie_where_the_templates_say(pool):
    seen = set()
    for task in (task_of("shop", "buy", level=2), task_of("settings", "colour"), task_of("settings", "name", level=2)):
        async with pool.env() as env:
            result = await env.reset(task, task.seed)
            while not (result.terminated or result.truncated):
                boxes = {one["name"]: one for one in result.info["state"]["elements"]}
                for element in list_named_elements(await read_page_view(env.tab), 100):
                    if (name := element.names[0]) in NAMED:
                        box, middle = boxes[NAMED[name]], element.box.centre
                        assert box["x"] <= middle.x <= box["x"] + box["w"], name
                        assert box["y"] <= middle.y <= box["y"] + box["h"], name
                        seen.add(name)
                result = await env.step(next_expert_step(task, result.info["state"])[1])
    assert seen == set(NAMED)


@PLAYED
async def test_the_screens_are_those_of_the_experts_way(pool):
    task = task_of("shop", "buy", level=2)
    screens = await visit_screens(pool, task, SETTINGS)
    addresses = [screen.view.address.rpartition("/")[2] for screen in screens]
    assert [name for name in ("cart", "checkout") if name in addresses] == ["cart", "checkout"]
    assert len(screens) == len({screen.png for screen in screens}) >= 6
    assert [bool(screen.focused) for screen in screens].count(True) >= 2, "the search field at the end, the name before"
    assert screens[-1].view.regions == screens[0].view.regions
    assert {screen.world for screen in screens} == {"shop"}


@PLAYED
async def test_a_page_that_crashes_is_opened_again_once(pool, monkeypatch):
    task, left = task_of("settings", "turn_on"), [1]

    async def read(tab):
        if left[0]:
            left[0] -= 1
            raise EnvError("the page crashed")
        return await read_page_view(tab)

    monkeypatch.setattr(page_grounding, "read_page_view", read)
    assert await visit_screens(pool, task, SETTINGS)
    left[0] = 2
    with pytest.raises(EnvError, match="the page crashed"):
        await visit_screens(pool, task, SETTINGS)


async def test_fresh_contents_follow_the_tasks_and_none_is_held_out(monkeypatch):
    tasks = [task for task, _ in draw_training_tasks(SETTINGS, 1)]
    looked_at, visit = [], page_grounding.visit_screens

    async def visited(pool, task, settings):
        looked_at.append(task)
        return await visit(pool, task, settings)

    monkeypatch.setattr(page_grounding, "visit_screens", visited)
    made = await make_page_examples(48, 3, SETTINGS, tasks)
    assert len(made) == len({one.sample_id for one in made}) == 48
    kinds = [one.kind for one in made]
    assert abs(kinds.count("page: shop") - kinds.count("page: settings")) <= 1
    assert {one.kind for one in made} == {"page: shop", "page: settings"}
    own, fit = {task.task_id for task in tasks}, training_filter(SETTINGS)
    assert {task.task_id for task in looked_at} - own, "fresh ones too"
    assert all(fit(task) and task.split == "train" and not is_held_out(SETTINGS, task) for task in looked_at)
    assert {task.template for task in looked_at if task.world == "shop"} == {"open", "add", "remove", "add_two", "buy"}
    named = " ".join(one.instruction + one.response for one in made)
    assert all(re.search(name, named) for name in ("search field", "checkout", "name field", "small|normal|large"))
    actions = [parse_response(one.response, 100).action for one in made]
    assert 24 <= sum(isinstance(action, Click) for action in actions) < 48
    assert Picture.open(io.BytesIO(made[0].png)).size == (224, 224)
    assert await make_page_examples(48, 3, SETTINGS, tasks) == made
    assert await make_page_examples(9, 4, SETTINGS, tasks) != made[:9]


THIRD_PARTY = """<style>body { margin: 0 } * { position: absolute }</style><main>
<label style="left:20px;top:20px;width:400px;height:40px">Town
<input style="left:100px;top:0;width:200px;height:30px"></label>
<button style="left:20px;top:80px;width:120px;height:30px">Order now</button>
<button style="left:20px;top:130px;width:120px;height:30px">Hidden</button>
<div style="left:0;top:120px;width:300px;height:60px;background:#ccc"></div>
<button style="left:20px;top:200px;width:120px;height:30px">Remove</button>
<button style="left:220px;top:200px;width:120px;height:30px">Remove</button>
<button style="left:20px;top:250px;width:5px;height:30px;padding:0;border:0">Tiny</button>
<a href="#more" style="left:20px;top:900px;width:120px;height:30px">Imprint</a>
<script>window.game = {clicks: 0}</script></main>"""


async def test_the_start_of_a_third_party_page_is_asked_for_too(tmp_path):
    manifest_pages.lay(tmp_path / "orders", {"index.html": THIRD_PARTY}, domain="sites", viewport=[640, 320])
    chosen = {"manifests": ["orders/page.yaml"], "domains": {"sites": ["orders"]}, "train_tasks": 2}
    settings = SETTINGS.model_copy(update={"synthesis": SETTINGS.synthesis.model_copy(update=chosen)})
    tasks = [task for task, _ in draw_training_tasks(settings, 1, tmp_path)]
    made = await make_page_examples(9, 1, settings, tasks, tmp_path)
    assert {one.kind for one in made} == {"page: orders"}
    said = " ".join(f"{one.instruction} {one.response}" for one in made).lower()
    assert "town field" in said
    assert "order now" in said
    assert not re.search("hidden|remove|tiny|imprint", said)
    boxes = {"town": (120, 20, 320, 50), "order": (20, 80, 140, 110)}
    for one in made:
        action, box = parse_response(one.response, 100).action, boxes["town" if "town" in one.instruction else "order"]
        if isinstance(action, Click):
            assert box[0] <= action.point.x * 640 <= box[2]
            assert box[1] <= action.point.y * 320 <= box[3]


def rows_of(ws, settings):
    ctx = StageContext(ws, settings, 1, "synthesize")
    run_stage(synthesize.STAGE, ctx)
    rows = ctx.read_rows("grounding_examples", "synthesize")
    assert {row["image_sha256"] for row in rows} == {row["sha256"] for row in ctx.read_rows("images", "synthesize")}
    told = ("sample_id", "kind", "image_sha256", "instruction", "response")
    return ctx, [tuple(row[name] for name in told) for row in rows]


def test_the_stage_mixes_them_in_and_by_default_makes_what_it_made(tmp_path):
    few = {"train_tasks": 6, "eval_tasks": 6, "num_grounding_examples": 12}
    ws, settings = synthetic.workspace(tmp_path / "plain", synthesis=few)
    ctx, rows = rows_of(ws, settings)
    general = make_grounding_examples(12, ctx.seed("general"), settings)
    told = {(one.sample_id, one.kind, images.image_digest(one.png), one.instruction, one.response) for one in general}
    assert set(rows) == told
    ws, settings = synthetic.workspace(tmp_path / "pages", synthesis=few | {"page_grounding_fraction": 0.5})
    mixed = rows_of(ws, settings)[1]
    assert len(mixed) == 12
    assert sorted({kind for _, kind, *_ in mixed if kind.startswith("page: ")}) == ["page: settings", "page: shop"]
    assert sum(kind.startswith("page: ") for _, kind, *_ in mixed) == 6
