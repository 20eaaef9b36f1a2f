"""What a page offers to be dragged, dragged: by HTML5 drag and drop, and by a library that follows the pointer."""

from __future__ import annotations

from dataclasses import dataclass

from flywheel.agent.actions import Drag, Point, Wait
from flywheel.environments.env import Task
from flywheel.errors import FlywheelError
from flywheel.sandbox.pool import BrowserPool
from flywheel.sandbox.trial_controls import BELOW
from flywheel.sandbox.trial_neighbour import Neighbour

_FROM = 0.2  # of the viewport, that a lone thing is dragged
# The middles of two things of each kind that are seen: the first is dragged onto the second.
_SCRIPT = (
    f"(() => {{ {BELOW}"
    + """
  const handles = (node) => /^(move|grab|all-scroll)$/.test(getComputedStyle(node).cursor)
    || node.matches(".ui-draggable, .ui-sortable > *, [class*=sortable i] > *, [class*=draggable i]");
  const ways = { "HTML5 drag and drop": (node) => node.getAttribute("draggable") === "true",
    "a pointer drag": (node) => node.getAttribute("draggable") !== "true" && handles(node) };
  const found = {};
  for (const node of below(document.body, "*")) {
    const box = node.getBoundingClientRect(), x = box.x + box.width / 2, y = box.y + box.height / 2;
    const top = topOf(node, x, y);
    if (!top || !(node.contains(top) || top.contains(node))) continue;
    for (const [way, takes] of Object.entries(ways))
      if (takes(node) && !(found[way] ??= []).some((one) => one.node.contains(node))) found[way].push({ node, x, y });
  }
  return Object.entries(found).map(([way, places]) =>
    [way, places.slice(0, 2).map(({ x, y }) => [x / innerWidth, y / innerHeight])]);
})()"""
)


@dataclass(frozen=True)
class Dragged:
    """What came of one kind of drag. wrong: what broke, or differs from one time to the next. seen: it did something
    that the screen shows."""

    way: str
    wrong: str = ""
    seen: bool = True


async def try_drags(pool: BrowserPool, task: Task) -> list[Dragged]:
    """Each kind of drag that the page has something for, twice, beside a quiet session in the same browser."""
    async with pool.env() as env:
        await env.reset(task, task.seed)
        offered = await env.tab.evaluate(_SCRIPT)
    found = []
    async with Neighbour(pool, task) as neighbour:
        for way, places in offered:
            dragged = await _drag(pool, task, way, places)
            if harm := await neighbour.harm():
                dragged = Dragged(way, dragged.wrong or harm)
            found.append(dragged)
    return found


async def _drag(pool: BrowserPool, task: Task, way: str, places: list[list[float]]) -> Dragged:
    start = Point(*places[0])
    end = Point(*places[1]) if len(places) > 1 else Point((start.x + _FROM) % 1, start.y)
    try:
        screens = []
        async with pool.env() as env:
            for _ in range(2):
                results = [await env.reset(task, task.seed), await env.step(Drag(start, end))]
                if not results[-1].terminated:
                    results.append(await env.step(Wait()))
                screens.append([result.observation.screenshot for result in results])
    except FlywheelError as error:
        return Dragged(way, f"it broke the session: {error.what}")
    if screens[0] != screens[1]:
        return Dragged(way, "the same drag gave other pixels the second time")
    return Dragged(way, seen=len(set(screens[0])) > 1)
