"""Make grounding examples of the pages that training tasks are on: an element's name, and where a real screen shows it.

General screens teach what a button or a field is, not what is where on the sites that the model acts on. As OS-Atlas,
UGround and the grounding data of UI-TARS do, elements of real pages are named by their accessible names; the questions
and their answers have the form of those on general screens.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import random
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from flywheel.agent.actions import Click, Finished, Point, Type
from flywheel.config import Settings
from flywheel.envs.base import StepResult, Task
from flywheel.envs.browser.pages.manifest import load_page_manifests
from flywheel.envs.browser.pool import BrowserPool, open_browser_pool
from flywheel.envs.screens.questions import ask_click, ask_name_at, ask_text_at, draw_typed_text, format_answer
from flywheel.envs.screens.scene import SCENE_SIDE, SceneBox, SceneItem, SceneQuestion
from flywheel.envs.suites import catalogue
from flywheel.envs.suites.oracle import next_expert_step
from flywheel.envs.tasks.drawing import ContentDrawer
from flywheel.envs.tasks.grounding import GroundingExample, make_grounding_example
from flywheel.envs.tasks.held_out import held_out_templates, is_held_out, list_templates
from flywheel.synthesis.exploration.page_view import PageControl, PageView, read_page_view
from flywheel.utils.errors import BadInput, DataError, EnvError, EnvTimeout

log = logging.getLogger(__name__)

_SETTING = "synthesis.page_grounding_fraction"
_PER_SCREEN = 3  # questions, as of a general screen, and as many ways
_ROUNDS = 20  # of tasks that are looked at, at most
_SPARE = 3  # times as many questions as are wanted, so that pages deep in a site have their turns
_BATCH = 8  # tasks of a world in a round, at least
_ATTEMPTS = 2  # at a task whose page crashes
_FIELDS = 2  # of a start screen that get the focus
_MIN_SIDE = 8  # pixels, of an element that is asked for
_MAX_NAME = 40  # characters
_FOCUSED = """(() => {
  const node = document.activeElement, box = node && node !== document.body && node.getBoundingClientRect();
  return box ? [box.x, box.y, box.width, box.height] : [];
})()"""
_CALLED = {
    "link": "link",
    "button": "button",
    "popupbutton": "button",
    "togglebutton": "button",
    "checkbox": "check box",
    "radio": "option",
    "switch": "switch",
    "tab": "tab",
    "combobox": "list",
    "slider": "slider",
}


KINDS = ("click", "name", "read", "type", "way")  # of questions


@dataclass(frozen=True)
class SeenScreen:
    """Hold a screen of a world: the picture, as PNG, and what the page says of it.

    focused: the box of the element that takes keys, in pixels; () for none. clicked: where the expert clicked next.
    after: what the page said then; None where it was no click, or the last screen.
    """

    world: str
    png: bytes
    view: PageView
    focused: tuple[float, ...] = ()
    clicked: Point | None = None
    after: PageView | None = None


# Questions about a page.


@dataclass(frozen=True)
class NamedElement:
    """Describe an element that can be asked for. called: what it is, such as "field". names: what it is called in an
    instruction, each of which means no other element of the page. box: in pixels of a general screen, to which the page
    is scaled. legible: its text stands in its middle. control: as the page has it."""

    called: str
    names: tuple[str, ...]
    box: SceneBox
    legible: bool
    control: PageControl


def list_named_elements(view: PageView, coordinates: int) -> list[NamedElement]:
    """List the elements of a page that an instruction can name and a point can hit, in the page's order.

    Left out are those that are covered, not wholly in the viewport, smaller than 8 pixels or a cell of the grid of
    `coordinates`, disabled, without a name, or with a name that another element of the page has too.
    """
    width, height = view.size
    smallest = [max(_MIN_SIDE, side / coordinates) for side in view.size]
    spoken = [_spoken_names(control) for control in view.controls]
    meant = Counter(name for names in spoken for name in set(names))
    found = []
    for control, names in zip(view.controls, spoken, strict=True):
        x, y, w, h = control.box
        inside = x >= -1 and y >= -1 and x + w <= width + 1 and y + h <= height + 1
        if not inside or w < smallest[0] or h < smallest[1] or control.off or not _in_its_scroller(control):
            continue
        called, alone = _called(control), [name for name in names if meant[name] == 1]
        if called == "field":
            alone = [name for name in alone if name.endswith(called)]  # "the search" is no field
        if alone:
            scale = SCENE_SIDE / width, SCENE_SIDE / height
            box = SceneBox(x * scale[0], y * scale[1], w * scale[0], h * scale[1])
            # A card has its text below a picture, and a name that is not on the page is a label for readers of screens.
            legible = called != "field" and w >= h and control.name in view.text and meant[names[0]] == 1
            found.append(NamedElement(called, tuple(alone), box, legible, control))
    return found


def _called(control: PageControl) -> str:
    return "field" if control.takes_text else _CALLED.get(control.role, "")


def _spoken_names(control: PageControl) -> tuple[str, ...]:
    """Return what a control may be called in an instruction, its bare name first; () for a name that says nothing."""
    name = control.name if control.named else control.name.split(":")[0]  # words before a field: "Name: not set"
    name = " ".join(name.lower().split())
    if not re.search(r"\w", name) or len(name) > _MAX_NAME or not name.isprintable():
        return ()
    called = _called(control)
    return (name,) if not called or name.endswith(called) else (name, f"{name} {called}")


def _in_its_scroller(control: PageControl) -> bool:
    """Tell whether what a control scrolls in, if anything, shows its middle."""
    if not control.inside:
        return True
    (x, y, w, h), (left, top, across, down) = control.box, control.inside
    return left <= x + w / 2 < left + across and top <= y + h / 2 < top + down


def ask_about_page(
    screen: SeenScreen, rng: random.Random, coordinates: int, limit: int = _PER_SCREEN, kinds: Collection[str] = KINDS
) -> list[SceneQuestion]:
    """Ask about named elements of a page, and about the way to others; `limit` questions of each at most. Kinds of
    elements take turns, so that the one field of a page is asked for as often as its many links.

    rng: draws what is asked and its wording. coordinates: cells an axis, of the answers' points. kinds: of questions,
    beside clicks: what is there (`name`), what it says there (`read`), to type into a field, which is clicked first
    where it does not take keys yet (`type`), and what to click for an element of another page (`way`).
    """
    by_kind: dict[str, list[SceneQuestion]] = defaultdict(list)
    elements = list_named_elements(screen.view, coordinates)
    for element in rng.sample(elements, len(elements)):
        by_kind[element.called].append(_ask(element, screen, rng, coordinates, kinds))
    asked = list(itertools.islice(_take_turns(rng.sample(list(by_kind.values()), len(by_kind))), limit))
    return asked + (_ask_for_ways(screen, elements, rng, coordinates)[:limit] if "way" in kinds else [])


def _ask(
    element: NamedElement, screen: SeenScreen, rng: random.Random, coordinates: int, kinds: Collection[str]
) -> SceneQuestion:
    """Ask about one element: mostly to click it, or to type into it where it is an empty field."""
    chance, name, item = rng.random(), rng.choice(element.names), SceneItem(element.names[0], element.box)
    focused = _holds_middle(element.control.box, screen.focused)
    if "type" in kinds and element.called == "field" and not element.control.value and chance < 0.5:
        text = draw_typed_text(rng)
        first = Type(text) if focused else Click(element.box.centre)
        response = format_answer(f"I type {text}." if focused else f"I click the {name}.", first, coordinates)
        boxes, copied = ((), text) if focused else ((element.box,), "")
        return SceneQuestion("page", f"Type {text} in the {name}.", response, boxes, copied=copied)
    chance = rng.random()
    if "name" in kinds and chance < 0.15:
        return ask_name_at(item, coordinates)
    if "read" in kinds and chance < 0.3 and element.legible:
        return ask_text_at(rng, [item], coordinates)[0]
    return ask_click(rng, "page", name, element.box, coordinates)


def _holds_middle(box: Sequence[float], other: Sequence[float]) -> bool:
    """Tell whether a box holds the middle of `other`; False for ()."""
    if not other:
        return False
    x, y = other[0] + other[2] / 2, other[1] + other[3] / 2
    return box[0] <= x <= box[0] + box[2] and box[1] <= y <= box[1] + box[3]


def _ask_for_ways(
    screen: SeenScreen, elements: Sequence[NamedElement], rng: random.Random, coordinates: int
) -> list[SceneQuestion]:
    """Ask to go to an element of the page that the expert's click led to. Of a menu that stands on both pages alone:
    else another link, such as that of another product, would lead there too."""
    clicked = [one for one in elements if screen.clicked and one.box.holds(screen.clicked)]
    if screen.after is None or not clicked:
        return []
    known, then = (
        {name for one in view.controls for name in _spoken_names(one)} for view in (screen.view, screen.after)
    )
    if not then & set(clicked[0].names):
        return []
    name, asked = rng.choice(clicked[0].names), []
    response = format_answer(f"I click the {name}.", Click(clicked[0].box.centre), coordinates)
    for one in list_named_elements(screen.after, coordinates):
        if not known & set(one.names):
            instruction = f"{rng.choice(('Find', 'Go to', 'Show'))} the {rng.choice(one.names)}."
            asked.append(SceneQuestion("way", instruction, response, (clicked[0].box,)))
    return rng.sample(asked, len(asked))


# Screens of training tasks.


def choose_page_tasks(tasks: Iterable[Task], settings: Settings, root: Path | None = None) -> list[Task]:
    """Choose the training tasks on pages of a site, or of a third party: `synthesis.manifests`, relative to `root`.

    Tasks of evaluation and of held-out templates are none. Raises BadInput for a wrong manifest, and as `is_held_out`.
    """
    worlds, manifests = set(catalogue.list_worlds()), load_page_manifests(settings.synthesis.manifests, root or Path())

    def fits(task: Task) -> bool:
        if task.split != "train" or task.environment != "browser" or is_held_out(settings, task):
            return False
        return task.world in manifests or (task.world in worlds and catalogue.get_world(task.world).kind == "site")

    return [task for task in tasks if fits(task)]


def count_page_examples(settings: Settings) -> int:
    """Count the grounding examples that are to come of pages, by `synthesis.page_grounding_fraction`."""
    chosen = settings.synthesis
    return round(chosen.num_grounding_examples * chosen.page_grounding_fraction)


def check_page_tasks(tasks: Sequence[Task], settings: Settings, root: Path | None = None) -> None:
    """Check that there is a page to make examples of, where the settings ask for some. tasks: of the training split.
    Raises BadInput where no task is on a page, and as `choose_page_tasks`."""
    if count_page_examples(settings) and not choose_page_tasks(tasks, settings, root):
        what = "no training task is on a page of a site or of synthesis.manifests"
        raise BadInput(what, where=_SETTING, fix="set it to 0, or name a site in synthesis.domains")


async def visit_screens(pool: BrowserPool, task: Task, settings: Settings) -> list[SeenScreen]:
    """Look at the screens of a task: that of its start, those with the focus in one of its fields and, where its world
    has an expert, those on the expert's way.

    pool: of browsers. A page that crashes is tried once more. Raises EnvError where it crashes again, EnvTimeout where
    it does not answer in sandbox.timeout_s, BadInput for a task that the pool cannot play.
    """
    for left in reversed(range(_ATTEMPTS)):
        try:
            async with pool.env() as env:
                screens = await _walk(env, task, settings)
                return screens + await _focus_fields(env, task, screens[0], settings)
        except EnvError as error:
            if not left:
                raise
            log.warning("a page is opened again for its screens: %s", error)
    raise AssertionError("unreachable")


async def _walk(env: Any, task: Task, settings: Settings) -> list[SeenScreen]:
    """Look at the screens of a task, in their order. env: a lease of a browser's page."""
    result, limit_s = await env.reset(task, task.seed), settings.sandbox.timeout_s
    screens = [await _look(env, task, result, limit_s)]
    while task.world in catalogue.list_worlds() and not (result.terminated or result.truncated):
        try:
            move = next_expert_step(task, result.info["state"])
        except DataError as error:  # its own tests hold the expert; the screens so far are good
            log.warning("task %s: the expert stops: %s", task.task_id, error)
            break
        if move is None or isinstance(move[1], Finished):
            break
        result = await env.step(move[1])
        screens.append(await _look(env, task, result, limit_s))
        if isinstance(move[1], Click):
            screens[-2] = replace(screens[-2], clicked=move[1].point, after=screens[-1].view)
    return screens


async def _focus_fields(env: Any, task: Task, start: SeenScreen, settings: Settings) -> list[SeenScreen]:
    """Look at the start of a task with the focus in each of its fields, the first two at most."""
    fields = [one for one in list_named_elements(start.view, settings.policy.coordinates) if one.called == "field"]
    screens = []
    for field in fields[:_FIELDS]:
        await env.reset(task, task.seed)
        result = await env.step(Click(field.box.centre))
        screens.append(await _look(env, task, result, settings.sandbox.timeout_s))
    return screens


async def _look(env: Any, task: Task, result: StepResult, limit_s: float) -> SeenScreen:
    try:
        async with asyncio.timeout(limit_s):
            view = await read_page_view(env.tab)
            focused = () if view.dialog else await env.tab.evaluate(_FOCUSED)
    except TimeoutError:
        where = f"world {task.world}, task {task.task_id}"
        raise EnvTimeout(f"the page's elements were not read within {limit_s:g} s", where=where) from None
    return SeenScreen(task.world, result.observation.screenshot, view, tuple(focused or ()))


async def make_page_examples(
    n: int,
    seed: int,
    settings: Settings,
    tasks: Sequence[Task],
    root: Path | None = None,
    kinds: Collection[str] = KINDS,
) -> list[GroundingExample]:
    """Make `n` grounding examples of the pages of training tasks, or fewer where these have no more.

    Opens browsers of this machine. Where the screens of a world's tasks are not enough, more are drawn with fresh
    contents, none that is evaluated, of all its templates that are trained on (`ContentDrawer`). Worlds take turns
    among the examples; in a world its pages of one structure, and its ways, do. seed: any integer; the same arguments
    give the same examples. settings: `sandbox`, `synthesis`, `routing`, `seed` and `policy.coordinates` are read.
    tasks: others than those of `choose_page_tasks` are not looked at. root: the workspace. kinds: of questions, as in
    `ask_about_page`. The kind of an example is `page: WORLD`. Raises BadInput as `choose_page_tasks` and
    `open_browser_pool`, EnvError as `visit_screens`.
    """
    own: dict[str, list[Task]] = defaultdict(list)
    for task in choose_page_tasks(tasks, settings, root):
        own[task.world].append(task)
    if n <= 0 or not own:
        return []
    rng, drawer = random.Random(f"pages {seed}"), ContentDrawer(settings, f"pages {seed}", root)
    asked: dict[str, dict[str, list[_Asked]]] = {world: defaultdict(list) for world in own}  # by `_structure`, or way
    coming = {world: _list_tasks_to_visit(given, settings, drawer) for world, given in own.items()}
    known: set[bytes] = set()
    async with open_browser_pool(settings, root) as pool:
        for _ in range(_ROUNDS):
            batch = [task for world in coming for task in itertools.islice(coming[world], max(len(own[world]), _BATCH))]
            new = Counter[str]()
            for screen in await _visit_all(pool, batch, settings):
                digest = hashlib.sha256(screen.png).digest()
                if digest in known:
                    continue
                known.add(digest)
                questions = ask_about_page(screen, rng, settings.policy.coordinates, kinds=kinds)
                new[screen.world] += len(questions)
                for one in questions:
                    part = one.skill if one.skill == "way" else _structure(screen.view)
                    asked[screen.world][part].append((screen, one))
            counts = {world: sum(map(len, asked[world].values())) for world in coming}
            coming = {
                world: more for world, more in coming.items() if new[world] and counts[world] * len(own) < _SPARE * n
            }
            if not coming:
                break
    for pages in asked.values():
        for questions in pages.values():
            rng.shuffle(questions)
    dealt = _take_turns([list(_take_turns(list(pages.values()))) for pages in asked.values()])
    made = (make_grounding_example(f"page: {screen.world}", screen.png, question) for screen, question in dealt)
    examples = {one.sample_id: one for one in made}
    return list(itertools.islice(examples.values(), n))


_Asked = tuple[SeenScreen, SceneQuestion]
T = TypeVar("T")


def _list_tasks_to_visit(own: Sequence[Task], settings: Settings, drawer: ContentDrawer) -> Iterator[Task]:
    """Iterate over the tasks of a world: `own`, then without end fresh ones of all templates that are trained on, at
    levels that `own` has; of a third-party page, of the variants of `own`."""
    yield from own
    kinds = [replace(own[0], template=template, level=level) for template, level in _list_slots(own, settings)]
    for number, like in enumerate(itertools.cycle(kinds or own)):
        yield drawer.draw(like, number)


def _list_slots(own: Sequence[Task], settings: Settings) -> list[tuple[str, int]]:
    if own[0].world not in catalogue.list_worlds():
        return []
    world, open_levels = catalogue.get_world(own[0].world), {task.level for task in own}
    trained = list_templates(settings, world).keys() - held_out_templates(settings, world)
    return [
        (template, level)
        for level in sorted(open_levels)
        for template, spec in world.templates.items()
        if template in trained and level in spec.max_steps
    ]


def _structure(view: PageView) -> str:
    """Tell pages of one structure, such as those of all products, from others: by where their controls stand. Whether a
    field has the focus is no part of it: else where it can be had would tell what to do there."""
    return " ".join(control.place for control in view.controls)


async def _visit_all(pool: BrowserPool, tasks: Sequence[Task], settings: Settings) -> list[SeenScreen]:
    """Look at the screens of all tasks, several at once; in the tasks' order."""
    waiting, found = iter(enumerate(tasks)), dict[int, list[SeenScreen]]()

    async def work() -> None:
        for place, task in waiting:
            found[place] = await visit_screens(pool, task, settings)

    await asyncio.gather(*(work() for _ in range(min(len(tasks), settings.sandbox.pages))))
    return [screen for place in range(len(tasks)) for screen in found[place]]


def _take_turns(queues: Sequence[Sequence[T]]) -> Iterator[T]:
    """Iterate over the items of all `queues`, one of each in turn."""
    for turn in range(max(map(len, queues), default=0)):
        yield from (queue[turn] for queue in queues if turn < len(queue))
