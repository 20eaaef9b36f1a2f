"""Draw tasks from the templates of the suites (section 2.5.1): by seed, spread evenly, disjoint between splits."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import hashlib
import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any

from flywheel.agent.actions import Hotkey
from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.envs import registry
from flywheel.envs.base import Task, TaskSuite, TaskTemplate
from flywheel.envs.browser.pages import manifest, packages
from flywheel.envs.browser.pages.manifest import PAGE_VERIFIER, PageManifest, load_page_manifests
from flywheel.utils.errors import BadInput, DataError, EnvError, did_you_mean, errors_of_setting
from flywheel.utils.files import write_json

# Templates: which of a suite are used (all but `synthesis.excluded_templates`), and which of these are held out of
# training (`synthesis.held_out`), so that generalisation can be distinguished from memorisation.

_MIN_TEMPLATES = 4  # templates that a suite must have before a share of them is held out


def list_templates(settings: Settings, world: TaskSuite) -> Mapping[str, TaskTemplate]:
    """Return the templates of the suite `world` that tasks are made of, by name: all but synthesis.excluded_templates.

    Raises BadInput for a name in that setting that no suite has, and as `registry.list_task_suites` does.
    """
    out = _templates_of_world(settings.synthesis.excluded_templates, world, "excluded_templates")
    return {name: spec for name, spec in world.templates.items() if name not in out}


def held_out_templates(settings: Settings, world: TaskSuite) -> frozenset[str]:
    """Return the templates of the suite `world` that only evaluation draws.

    They are those that `synthesis.held_out` names. Where that is a share, they are that share (one at least) of the
    templates that have one of `synthesis.levels`, the same for all seeds; none where the share is 0 or there are fewer
    than 4 such templates. Raises BadInput for a name in `synthesis.held_out` or `synthesis.excluded_templates` that no
    suite has, and as `registry.list_task_suites` does.
    """
    chosen = settings.synthesis.held_out
    if not isinstance(chosen, float | int):
        return _templates_of_world(chosen, world, "held_out")
    levels = set(settings.synthesis.levels)
    there = [name for name, spec in list_templates(settings, world).items() if levels & spec.max_steps.keys()]
    if len(there) < _MIN_TEMPLATES or not chosen:
        return frozenset()
    ranked = sorted(there, key=lambda template: hashlib.sha256(f"{world.name}/{template}".encode()).digest())
    return frozenset(ranked[: max(1, round(chosen * len(ranked)))])


def is_held_out(settings: Settings, task: Task) -> bool:
    """Tell whether a task's template is held out, so that no training task has it; False for third-party pages.

    Raises BadInput for a template in the settings that no suite has, and as `registry.list_task_suites` does.
    """
    if task.world not in registry.list_task_suites():
        return False
    return task.template in held_out_templates(settings, registry.get_task_suite(task.world))


def _templates_of_world(names: Iterable[str], world: TaskSuite, parameter: str) -> frozenset[str]:
    named = [_split_template_name(name, parameter) for name in names]
    return frozenset(template for name, template in named if name == world.name)


@functools.cache  # called for each task and recording; a suite, once found, stays
def _split_template_name(name: str, parameter: str) -> tuple[str, str]:
    world, _, template = name.partition("/")
    worlds = registry.list_task_suites()
    there = registry.get_task_suite(world).templates if world in worlds else {}
    if template not in there:
        fix = f"write world/template, such as settings/size; of worlds, {did_you_mean(world, worlds)}"
        if there:
            fix = f"of world {world}, {did_you_mean(template, there)}"
        raise BadInput(f"no template is called {name!r}", where=f"synthesis.{parameter}", fix=fix)
    return world, template


# Tasks of third-party pages: one for each variant and seed of a manifest. An instruction that the page itself gives is
# known only once the page has been opened (`fetch_page_instructions`).


def make_page_task(manifest: PageManifest, variant: str, seed: int, split: str, domain: str = "") -> Task:
    """Make one task of a manifest. Its instruction is "" where the page gives it.

    Its id is a hash of the manifest's name, variant, level and seed. variant: of the page; not checked against the
    manifest. seed: any integer. split: train or eval. domain: by default the one that the manifest names. Raises
    BadInput for packages that are not fetched, where the manifest gives no checksum of them.
    """
    slot = (manifest.name, variant, manifest.level, seed)
    threshold = manifest.threshold
    return Task(
        _hash_task_id(*slot),
        domain or manifest.domain,
        *slot,
        manifest.instruct(variant),
        params={"variant": variant, "seed": seed},
        max_steps=manifest.max_steps,
        split=split,
        verifier=PAGE_VERIFIER,
        threshold=threshold.get(variant, 1.0) if isinstance(threshold, dict) else threshold,
        checksum=page_checksum(manifest),
    )


def _hash_task_id(*content: Any) -> str:
    return "k" + hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:15]


def page_checksum(manifest: PageManifest) -> str:
    """Hash what a page's task was made for: the manifest, the files of its page where we serve them, and its scripts.

    Returns sha256 in hexadecimal digits, independent of the manifest's path. Raises BadInput for packages that are not
    fetched, where the manifest gives no checksum of them.
    """
    if manifest.url or manifest.server:
        files = packages.hash_served_folder(manifest.template) if manifest.template else ""
    else:
        files = manifest.sha256 or packages.hash_served_folder(packages.find_served_folder(manifest))
    for name, path in manifest.scripts.items():
        found = packages.hash_served_folder(path) if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()
        files += f"\n{name} {found}"
    content = manifest.model_dump_json(exclude={"path"} | ({"threshold"} if manifest.threshold == 1 else set()))
    return hashlib.sha256(f"{content}\n{files}".encode()).hexdigest()


async def fetch_page_instructions(
    tasks: Iterable[Task], lease: Callable[[Task], AbstractAsyncContextManager[Any]]
) -> list[Task]:
    """Return the tasks, in their order, with the instructions that their pages give.

    A task with an instruction stays unchanged. Pages are opened all at once, as far as `lease` lends environments.
    lease: lends one (`EnvProvider.env`). Raises EnvError where a page cannot be opened or read, or opens dialogs
    without end, and what `lease`, and `reset` and `step` of an `Env`, raise.
    """

    async def one(task: Task) -> Task:
        if task.instruction:
            return task
        async with lease(task) as env:
            result = await env.reset(task, task.seed)
            while "dialog" in result.info["state"] and not result.truncated:  # it hides the instruction
                result = await env.step(Hotkey(("enter",)))
        if "instruction" not in result.info["state"]:
            raise EnvError("the page opens dialogs without end", where=f"world {task.world}, task {task.task_id}")
        return dataclasses.replace(task, instruction=" ".join(result.info["state"]["instruction"].split()))

    return list(await asyncio.gather(*(one(task) for task in tasks)))


def list_page_slots(manifests: Iterable[PageManifest], split: str) -> list[tuple[PageManifest, list[tuple[str, int]]]]:
    """List the manifests that have tasks in `split`, each with its (variant, level) slots."""
    chosen = [one for one in manifests if split in one.splits]
    return [(one, [(variant, one.level) for variant in one.variants]) for one in chosen]


# Drawing. Evaluation tasks have seeds of their own, and some templates of their own.

SPLITS = ("train", "eval", "gate")
_SEEDS = {"eval": range(0, 2**30), "train": range(2**30, 2**31)}  # disjoint: no training seed is an evaluation seed
_RESERVED = 8  # one in so many contents is reserved for gates, by its hash, so that no history need be read
_ATTEMPTS = 200  # seeds that are tried for one task
_SEEN = 2  # tasks of other templates between two of held-out ones, in an evaluation
Slot = tuple[str, int]  # template, level
Turn = tuple[TaskSuite | PageManifest, list[Slot]]  # a suite or page, and its slots, which are drawn in turn


def make_tasks(
    settings: Settings, iteration: int, split: str, root: Path | None = None, opened: Mapping[str, int] | None = None
) -> list[Task]:
    """Make the tasks of an iteration's split, each with its own content, in turn from the domains and their suites.

    split: train, eval or gate. root: the workspace, for synthesis.worlds and synthesis.manifests; None: the current
    folder. opened: with synthesis.level_unlock_success, the highest level of training tasks by suite; absent: its
    lowest. The same arguments give the same tasks. Instructions that pages give are "".

    Train tasks are drawn anew in each iteration; synthesis.fixed_template_fraction of a suite's have the same templates
    and levels in each, so that iterations can be compared. Eval tasks are the same in all iterations; no train task has
    the content of one (of third-party pages, the seed of one), nor a held-out template. Of a suite with held-out
    templates, every third eval task has one; every one, where the suite's tasks are the same for all seeds (`once`).
    Gate tasks are drawn as eval tasks are, anew in each iteration, of contents that no train task has (`is_reserved`);
    there may be fewer than promotion.tasks. They too have the split eval.

    Raises BadInput for an unknown split, a suite, page or template that the settings name and that does not exist, a
    suite with none of synthesis.levels or nothing left to train on, a page whose domain the settings do not have,
    nothing to draw from, too few different tasks of a template for train or eval, pages that are not fetched, or a
    wrong manifest; DataError where a suite finds no level that can be won.
    """
    if split not in SPLITS:
        raise BadInput(f"no split is called {split!r}", where="make_tasks", fix=f"use {', '.join(SPLITS)}")
    if split == "eval":
        return _draw(settings, "eval", "eval", settings.synthesis.eval_tasks, lambda task: True, root, 0)
    if split == "gate":
        count = settings.promotion.tasks
        return _draw(settings, "eval", f"gate {iteration}", count, is_reserved, root, iteration, passing=True)
    fit, count, turn = training_filter(settings, root), settings.synthesis.train_tasks, max(iteration - 1, 0)
    above = (opened or {}) if settings.synthesis.level_unlock_success else None
    repeated = settings.synthesis.fixed_template_fraction
    return _draw(settings, split, f"train {iteration}", count, fit, root, turn, repeated=repeated, opened=above)


def training_filter(settings: Settings, root: Path | None = None) -> Callable[[Task], bool]:
    """Return the rule that tells whether a task's content may be trained on: no eval task has it, and it is not
    reserved for gates.

    root, and what is raised: as in `make_tasks`.
    """
    held = {task_content(task) for task in make_tasks(settings, 0, "eval", root)}

    def fit(task: Task) -> bool:
        return task_content(task) not in held and not is_reserved(task)

    return fit


class ContentDrawer:
    """Draw fresh contents for training tasks that are there, by the code that `make_tasks` draws them with."""

    def __init__(self, settings: Settings, stream: str, root: Path | None = None) -> None:
        """Begin a stream of draws. stream: text that the seeds derive from, beside `settings.seed`. root, and what is
        raised: as in `make_tasks`."""
        self._settings, self._stream = settings, stream
        self.fit = training_filter(settings, root)
        self._pages = load_page_manifests(settings.synthesis.manifests, root or Path())

    def draw(self, like: Task, number: int) -> Task:
        """Draw a training task of the world, template, level and domain of `like`, with content and id of its own.

        number: of the draw; the same arguments give the same task. Returns `like` itself where its world has the same
        task for all seeds (`once`, a page without seeds), where the page gives the instruction once it is opened, and
        where no content fits. Raises BadInput and DataError as `make_task`.
        """
        page = self._pages.get(like.world)
        world = page or registry.get_task_suite(like.world)
        if not (page.seeded and page.instruct(like.template)) if page else world.once:
            return like
        for attempt in range(_ATTEMPTS):
            seed = _seed("train", f"{self._settings.seed} {self._stream} {number} {attempt}")
            slot = (like.template, like.level, seed, "train", like.domain)
            task = make_task(world, *slot, self._settings.routing.threshold)
            if self.fit(task):
                return task
        return like


def fresh_tasks(settings: Settings, iteration: int, count: int, root: Path | None = None) -> list[Task]:
    """Draw at most `count` tasks that had no part in making or choosing an iteration's model; fewer where no more fit.

    They are drawn as its gate tasks are, the same at each call, none with the content of a gate or eval task. root: the
    workspace, for synthesis.worlds and synthesis.manifests; None: the current folder. Raises BadInput and DataError as
    `make_tasks` does.
    """
    drawn = (make_tasks(settings, iteration, split, root) for split in ("eval", "gate"))
    looked_at = {task_content(task) for task in itertools.chain.from_iterable(drawn)}

    def fit(task: Task) -> bool:
        return is_reserved(task) and task_content(task) not in looked_at

    return _draw(settings, "eval", f"fresh {iteration}", count, fit, root, iteration, passing=True)


def is_reserved(task: Task) -> bool:
    """Tell whether a task's content is reserved for promotion gates, and so never trained on."""
    return int.from_bytes(hashlib.sha256(task_content(task).encode()).digest()[:8]) % _RESERVED == 0


def _draw(
    settings: Settings,
    split: str,
    stream: str,
    count: int,
    fit: Callable[[Task], bool],
    root: Path | None,
    turn: int,
    *,
    repeated: float = 0.0,
    passing: bool = False,
    opened: Mapping[str, int] | None = None,
) -> list[Task]:
    """Draw `count` different tasks, in turn from the domains, their suites, and the suites' slots.

    stream: text that the seeds derive from. fit: tells whether a task may be drawn. turn: how often as many were drawn
    before. repeated: the share of a suite's tasks whose slots are the same in each turn. passing: a slot without a
    fitting task is skipped; else it is an error, except for a suite whose tasks are the same for all seeds. opened: the
    highest level by suite; absent: its lowest; None: all levels.
    """
    turns = _turns(settings, split, root, opened)
    numbers = ((index % len(turns), index // len(turns)) for index in range(count))
    # Of each task: the index of its domain, and of its suite in the domain.
    places = [(domain, rest % len(turns[domain][1])) for domain, rest in numbers]
    coming = {
        place: _in_turn(turns[place[0]][1][place[1]][1], places.count(place), repeated, turn, opened is not None)
        for place in set(places)
    }
    drawn: list[Task] = []
    taken: set[str] = set()
    empty: set[tuple[str, Slot]] = set()

    def fresh(index: int, domain: str, world: TaskSuite | PageManifest, slot: Slot) -> Task | None:
        for attempt in range(_ATTEMPTS):
            seed = _seed(split, f"{settings.seed} {stream} {index} {attempt}")
            task = make_task(world, *slot, seed, split, domain, settings.routing.threshold)
            if task_content(task) not in taken and fit(task):
                return task
        return None

    for index, place in enumerate(places):
        domain, worlds = turns[place[0]]
        world, slots = worlds[place[1]]
        for _ in slots:
            slot = next(coming[place])
            if (world.name, slot) in empty:
                continue
            task = fresh(index, domain, world, slot)
            if task is not None:
                taken.add(task_content(task))
                drawn.append(task)
                if (passing and isinstance(world, PageManifest) and not world.seeded) or world.once:
                    empty.add((world.name, slot))  # the same task under every seed: it is drawn once
                break
            if not passing and not world.once:
                what = f"world {world.name}, template {slot[0]}, level {slot[1]} has too few different tasks"
                fix = "ask for fewer train_tasks or eval_tasks"
                raise BadInput(what, where=f"synthesis.{split}_tasks", fix=fix)
            empty.add((world.name, slot))
    return drawn


def _in_turn(slots: list[Slot], tasks: int, repeated: float, turn: int, rising: bool) -> Iterator[Slot]:
    """Iterate over the slots of a suite's tasks in a turn: first those of every turn, then from the last turn's end on.

    tasks: drawn a turn. repeated: share of those of every turn. rising: these are of the lowest level, and the others
    of the levels above it as soon as one is open.
    """
    lowest = min(level for _, level in slots)
    always = [slot for slot in slots if slot[1] == lowest] if rising else slots
    others = (rising and [slot for slot in slots if slot[1] > lowest]) or slots
    same = round(tasks * repeated)
    numbers = itertools.count(same + turn * (tasks - same))
    return itertools.chain(
        (always[number % len(always)] for number in range(same)), (others[number % len(others)] for number in numbers)
    )


def _turns(
    settings: Settings, split: str, root: Path | None, opened: Mapping[str, int] | None = None
) -> list[tuple[str, list[Turn]]]:
    """List the domains, each with its suites and pages, each of these with its slots, levels alternating."""
    turns = []
    registry.load_external_suites(settings, root or Path())
    manifests = load_page_manifests(settings.synthesis.manifests, root or Path())
    for domain, (worlds, own) in group_by_domain(settings, manifests).items():
        slots = [(world, _slots(settings, world, split, opened)) for world in worlds] + list_page_slots(own, split)
        if slots:
            turns.append((domain, slots))
    if not turns:
        fix = f"known are {', '.join(registry.list_task_suites())}"
        raise BadInput("no world is named", where="synthesis.domains", fix=fix)
    return turns


def group_by_domain(
    settings: Settings, manifests: Mapping[str, PageManifest]
) -> dict[str, tuple[list[TaskSuite], list[PageManifest]]]:
    """Group suites and third-party pages by domain: each domain of the settings -> (suites, pages).

    manifests: by name. A page that no domain names belongs to its manifest's own domain. Raises BadInput for a name of
    neither a suite nor a page, and for a page whose domain the settings do not have.
    """
    domains = settings.synthesis.domains
    named = {name: domain for domain, names in domains.items() for name in names}
    suites = registry.list_task_suites()
    for name in named.keys() - manifests.keys() - set(suites):
        fix = f"{did_you_mean(name, (*suites, *manifests))}; third-party pages stand in synthesis.manifests too"
        raise BadInput(f"no world is called {name!r}", where=f"synthesis.domains.{named[name]}", fix=fix)
    for name, page in manifests.items():
        if named.setdefault(name, page.domain) not in domains:
            what = f"the page {name} is of the domain {page.domain}, which is not one of {', '.join(domains)}"
            raise BadInput(what, where="synthesis.manifests", fix=f"name {name} in a domain of synthesis.domains")
    return {
        domain: (
            [registry.get_task_suite(name) for name in names if name not in manifests],
            [manifest for name, manifest in manifests.items() if named[name] == domain],
        )
        for domain, names in domains.items()
    }


def _slots(settings: Settings, world: TaskSuite, split: str, opened: Mapping[str, int] | None = None) -> list[Slot]:
    """List the slots of a suite that tasks are drawn of in turn. Raises BadInput where there are none for training."""
    apart = held_out_templates(settings, world)
    slots: dict[bool, list[Slot]] = {False: [], True: []}  # held out or not
    for template, spec in list_templates(settings, world).items():
        levels = [(template, level) for level in sorted(spec.max_steps) if level in settings.synthesis.levels]
        slots[template in apart] += levels
    if not slots[False]:
        if slots[True]:
            what = f"nothing of world {world.name} is left to train on: all its templates are held out"
            raise BadInput(what, where="synthesis.held_out", fix=f"take out one of {', '.join(sorted(apart))}")
        if not list_templates(settings, world):
            what = f"world {world.name} has no template that is asked"
            raise BadInput(what, where="synthesis.excluded_templates", fix="name fewer")
        what = f"world {world.name} has no level of {settings.synthesis.levels} to train on"
        raise BadInput(what, where="synthesis.levels", fix=f"its levels are {world.levels}")
    seen, unseen = _alternate(slots[False]), _alternate(slots[True])
    if opened is not None:
        lowest = min(level for _, level in seen)
        return _alternate([slot for slot in slots[False] if slot[1] <= opened.get(world.name, lowest)])
    if split == "train" or not unseen:
        return seen
    if world.once:  # evaluated tasks of other templates could not be trained on
        return unseen
    mixed: list[Slot] = []
    for number in range(max(-(-len(seen) // _SEEN), len(unseen))):
        mixed += [seen[(_SEEN * number + shift) % len(seen)] for shift in range(_SEEN)]
        mixed.append(unseen[number % len(unseen)])
    return mixed


def _alternate(slots: list[Slot]) -> list[Slot]:
    """Order slots so that any prefix holds each level about equally; levels with fewer templates repeat theirs."""
    by_level: dict[int, list[Slot]] = defaultdict(list)
    for slot in slots:
        by_level[slot[1]].append(slot)
    longest = max(map(len, by_level.values()), default=0)
    return [group[turn % len(group)] for turn in range(longest) for _, group in sorted(by_level.items())]


def make_task(
    world: TaskSuite | PageManifest,
    template: str,
    level: int,
    seed: int,
    split: str,
    domain: str = "",
    threshold: float = 1.0,
) -> Task:
    """Make one task. Its id is a hash of suite, template, level, seed and params.

    world: a suite, or a third-party page's manifest. template: for a page, its variant. level: not used for a page.
    seed: any integer. split: train or eval. domain: by default the suite's or the manifest's. threshold: for a template
    that names none; not used for a page. Raises BadInput for a template or a level that the suite does not have, or a
    page's packages that are not fetched; DataError where the suite finds no level that can be won.
    """
    if isinstance(world, PageManifest):
        return make_page_task(world, template, seed, split, domain)
    budget = world.budget(template, level)
    params = world.draw(template, level, seed)
    spec = world.templates[template]
    slot = (world.name, template, level, seed)
    return Task(
        _hash_task_id(*slot, params),
        domain or world.domain,
        *slot,
        spec.instruction.format(**params),
        params=params,
        max_steps=budget,
        split=split,
        verifier=spec.verifier,
        threshold=threshold if spec.threshold is None else spec.threshold,
        checksum=world.checksum,
        environment=world.environment,
    )


def task_content(task: Task) -> str:
    """Return what the agent meets, without the seed, as JSON text: tasks of equal content are the same task."""
    return json.dumps([task.world, task.template, task.level, task.params], sort_keys=True)


def task_to_row(task: Task) -> dict[str, Any]:
    """Return `task` as a row of the table `tasks`, with its params as JSON text."""
    return {**vars(task), "params": json.dumps(task.params, sort_keys=True)}


def task_from_row(row: Mapping[str, Any]) -> Task:
    """Return the task of a row of the table `tasks`; further columns, such as iteration, are ignored.

    Raises KeyError for a column that is missing, ValueError or TypeError for `params` that are not JSON text.
    """
    fields = {name: row[name] for name in Task.__dataclass_fields__}
    return Task(**{**fields, "params": json.loads(row["params"])})


def _seed(split: str, key: str) -> int:
    span = _SEEDS[split]
    return span.start + int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) % len(span)


# Checks of `synthesis` before an iteration begins: its names, and that its tasks can be drawn.


def check_task_settings(settings: Settings, iteration: int, root: Path) -> frozenset[str]:
    """Draw the iteration's tasks as a check, without pages' instructions; returns the names of their back-ends.

    With `synthesis.level_unlock_success`, only the lowest level of each suite is drawn for training, as before any is
    unlocked. Loads the suites of `synthesis.worlds`; nothing is written, fetched or started. root: the workspace.
    Raises BadInput naming the parameter, such as for pages that are not fetched, a domain without a task, levels or
    templates that no suite has, or too few different tasks; DataError as `make_tasks` does.
    """
    chosen = settings.synthesis
    with errors_of_setting("synthesis.worlds"):
        registry.load_external_suites(settings, root)
    with errors_of_setting("synthesis.manifests"):
        found = manifest.load_page_manifests(chosen.manifests, root)
    for one in found.values():
        if not packages.has_page_files(one):
            fix = f"type `flywheel env page fetch {manifest.format_command_name(one)}`"
            raise BadInput(f"the page {one.name} is not fetched", where="synthesis.manifests", fix=fix)
    places = group_by_domain(settings, found)
    for domain, (worlds, own) in places.items():
        if not worlds and not list_page_slots(own, "train"):
            suites, what = registry.list_task_suites(), f"the domain {domain} has no world to train on"
            listed = [name for name in suites if registry.get_task_suite(name).domain == domain]
            raise BadInput(what, where=f"synthesis.domains.{domain}", fix=did_you_mean("", listed or suites))
    _check_levels(settings, [world for worlds, _ in places.values() for world in worlds])
    played: set[str] = set()
    for split in SPLITS:
        with errors_of_setting("synthesis"):
            tasks = make_tasks(settings, iteration, split, root)
        played |= {task.environment for task in tasks}
        for domain in set(chosen.domains) - {task.domain for task in tasks} if split == "train" else ():
            fix = f"set it to {len(chosen.domains)} or more"
            raise BadInput(f"no task of the domain {domain} would be drawn", where="synthesis.train_tasks", fix=fix)
    return frozenset(played)


def _check_levels(settings: Settings, worlds: Sequence[TaskSuite]) -> None:
    """Check that some suite of `worlds` has each of `synthesis.levels`; others would be ignored silently."""
    levels = sorted({level for world in worlds for level in world.levels})
    for level in settings.synthesis.levels:
        if worlds and level not in levels:
            what, fix = f"no world of synthesis.domains has a level {level}", f"known are {', '.join(map(str, levels))}"
            raise BadInput(what, where="synthesis.levels", fix=fix)


# Levels (`synthesis.level_unlock_success`): a suite's next level opens once the model solves the current one often
# enough. `iterations/NNN/levels.json` holds {"open": {suite: level}} for the tasks of the next iteration.

_FEWEST = 4  # trajectories of a level that must be judged before the next level opens


def read_open_levels(ws: Workspace, iteration: int) -> dict[str, int]:
    """Read the highest open level of each suite after `iteration`; a suite that is absent begins with its lowest.

    ws: the workspace. Raises DataError for a file that is missing or damaged.
    """
    path = ws.levels(iteration)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["open"]
        return {str(world): int(level) for world, level in found.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        what = f"not the open levels of worlds: {error!r}"
        raise DataError(what, where=ws.relative(path), fix="restore it from git") from error


def write_open_levels(ws: Workspace, iteration: int, found: Mapping[str, int]) -> None:
    """Write the highest open level of each suite after `iteration` to its `levels.json`, which is replaced.

    ws: the workspace. found: level by suite. Raises DiskFull.
    """
    write_json(ws.levels(iteration), {"open": dict(sorted(found.items()))})


def lowest_level(settings: Settings, world: str) -> int:
    """Return the lowest of `synthesis.levels` that a suite has; where it has none of them, the lowest of its own.

    Raises BadInput where there is no suite `world`.
    """
    own = set(registry.get_task_suite(world).levels)
    return min(own & set(settings.synthesis.levels) or own)


def is_above_open_level(settings: Settings, opened: Mapping[str, int], task: Task) -> bool:
    """Tell whether a task is of a level that is not open yet in its suite.

    False where all are open (`synthesis.level_unlock_success` is 0), and for a task of no suite, such as a third-party
    page's. opened: highest open level by suite; absent: its lowest. Raises BadInput where two back-ends have a suite of
    the same name.
    """
    if not settings.synthesis.level_unlock_success or task.world not in registry.list_task_suites():
        return False
    return task.level > opened.get(task.world, lowest_level(settings, task.world))


def raise_open_levels(
    settings: Settings, before: Mapping[str, int], outcomes: Iterable[tuple[Task, bool]]
) -> dict[str, int]:
    """Return the highest open level of each suite after an iteration; it rises by one level at most.

    before: those with which the iteration's tasks were made; suites without outcomes keep theirs. outcomes: (task, V)
    of each judged trajectory of the iteration. The next level opens where four or more trajectories of the highest open
    one were judged, and at least the share synthesis.level_unlock_success of them solved their task; where that is 0
    all are open. Raises BadInput where two back-ends have a suite of the same name.
    """
    judged: dict[tuple[str, int], list[bool]] = defaultdict(list)
    for task, solved in outcomes:
        judged[task.world, task.level].append(solved)
    found, wanted = dict(before), settings.synthesis.level_unlock_success
    for world in {world for world, _ in judged} & set(registry.list_task_suites()):
        levels = sorted(set(registry.get_task_suite(world).levels) & set(settings.synthesis.levels))
        level = before.get(world, lowest_level(settings, world)) if wanted or not levels else levels[-1]
        verdicts = judged[world, level]
        enough = len(verdicts) >= _FEWEST and sum(verdicts) >= wanted * len(verdicts)
        found[world] = dict(pairwise(levels)).get(level, level) if enough else level
    return found
