"""Draw an iteration's tasks of suites and pages by seed, evenly; training, evaluation and gates share none (2.5.1)."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flywheel.config import Settings
from flywheel.envs import registry
from flywheel.envs.base import Task, TaskSuite
from flywheel.envs.browser.pages import manifest, packages
from flywheel.envs.browser.pages.manifest import PageManifest, load_page_manifests
from flywheel.envs.tasks.held_out import held_out_templates, list_templates
from flywheel.envs.tasks.open_levels import Kind
from flywheel.envs.tasks.page_tasks import hash_task_id, list_page_slots, make_page_task
from flywheel.envs.tasks.verification import find_kill_rate
from flywheel.utils.errors import BadInput, did_you_mean, errors_of_setting

# Evaluation tasks have seeds of their own, and some templates of their own.

SPLITS = ("train", "eval", "gate")
_SEEDS = {"eval": range(0, 2**30), "train": range(2**30, 2**31)}  # disjoint: no training seed is an evaluation seed
_RESERVED = 8  # one in so many contents is reserved for gates, by its hash, so that no history need be read
_ATTEMPTS = 200  # seeds that are tried for one task
_SEEN = 2  # tasks of other templates between two of held-out ones, in an evaluation
Slot = tuple[str, int]  # template, level
Turn = tuple[TaskSuite | PageManifest, list[Slot]]  # a suite or page, and its slots, which are drawn in turn
Wanted = Mapping[Kind, tuple[str, float]]  # what the newest model should meet again: why, and with what weight
EVEN = "even"  # why a task is drawn that no signal asked for


def make_tasks(
    settings: Settings, iteration: int, split: str, root: Path | None = None, opened: Mapping[str, int] | None = None
) -> list[Task]:
    """Make the tasks of an iteration's split, each with its own content, in turn from the domains and their suites.

    iteration: its number; without effect on eval. split: train, eval or gate. root: the workspace, from which the paths
    of synthesis.worlds and synthesis.manifests count; None: the current folder. opened: with
    synthesis.level_unlock_success, the highest level of training tasks by suite; a suite that is absent (None: all) has
    its lowest. The same arguments give the same tasks. Instructions that pages give are "".

    Train tasks are drawn anew in each iteration; synthesis.fixed_template_fraction of a suite's have the same templates
    and levels in each, so that iterations can be compared. Eval tasks are the same in all iterations; no train task has
    the content of one (of third-party pages, the seed of one), nor a held-out template. Of a suite with held-out
    templates, every third eval task has one; every one, where the suite's tasks are the same for all seeds (`once`).
    Gate tasks are drawn as eval tasks are, anew in each iteration, of contents that no train task has (`is_reserved`);
    there may be fewer than promotion.tasks. They too have the split eval. What has `once` gives each of its tasks once:
    of any split there may be fewer than the settings ask for.

    Raises BadInput for an unknown split, a suite, page or template that the settings name and that does not exist, a
    suite with none of synthesis.levels or nothing left to train on, a page whose domain the settings do not have,
    nothing to draw from, too few different tasks of a template for train or eval, synthesis.shares that name nothing or
    do not add up (train), pages that are not fetched and whose manifest gives no checksum, or a wrong manifest;
    DataError where a suite finds no task that can be solved.
    """
    if split not in SPLITS:
        raise BadInput(f"no split is called {split!r}", where="make_tasks", fix=f"use {', '.join(SPLITS)}")
    if split == "train":
        return [task for task, _ in draw_training_tasks(settings, iteration, root, opened)]
    if split == "eval":
        drawn = _draw(settings, "eval", "eval", settings.synthesis.eval_tasks, lambda task: True, root, 0)
    else:
        count = settings.promotion.tasks
        drawn = _draw(settings, "eval", f"gate {iteration}", count, is_reserved, root, iteration, passing=True)
    return [task for task, _ in drawn]


def draw_training_tasks(
    settings: Settings,
    iteration: int,
    root: Path | None = None,
    opened: Mapping[str, int] | None = None,
    wanted: Wanted | None = None,
) -> list[tuple[Task, str]]:
    """Draw an iteration's training tasks; returns each with the reason for which it was drawn.

    The reason is `even`, or one out of `wanted`. Domains and worlds have the shares of synthesis.shares from the first
    task on. Of the tasks the last ones, the share synthesis.refresh, are of the templates and levels in `wanted`,
    within each domain: the reasons take turns, and the templates and levels of one reason come in proportion to their
    weights. Where a domain has none, or no content of them is left, the task is drawn evenly. wanted: (world, template,
    level) -> (reason, weight above 0); None: none. The others, and what is raised (BadInput, DataError), as in
    `make_tasks`.
    """
    fit, chosen, turn = training_filter(settings, root), settings.synthesis, max(iteration - 1, 0)
    above = (opened or {}) if chosen.level_unlock_success else None
    how = {"repeated": chosen.fixed_template_fraction, "opened": above, "shares": chosen.shares, "wanted": wanted or {}}
    refreshed = round(chosen.train_tasks * chosen.refresh)
    stream = f"train {iteration}"
    return _draw(settings, "train", stream, chosen.train_tasks, fit, root, turn, refreshed=refreshed, **how)


def training_filter(settings: Settings, root: Path | None = None) -> Callable[[Task], bool]:
    """Return a function that tells whether a task may be trained on: neither eval tasks nor gates may have its content.

    Draws the eval tasks once. root: as in `make_tasks`. Raises BadInput and DataError as `make_tasks` does for the
    split eval.
    """
    held = {task_content(task) for task in make_tasks(settings, 0, "eval", root)}

    def fit(task: Task) -> bool:
        return task_content(task) not in held and not is_reserved(task)

    return fit


class ContentDrawer:
    """Draw training tasks like given ones, but of fresh content, with the code that `make_tasks` draws them with.

    stream: text that the seeds derive from, beside `settings.seed`. root, and what is raised: as in `make_tasks`. fit:
    tells whether a task may be trained on (`training_filter`).
    """

    def __init__(self, settings: Settings, stream: str, root: Path | None = None) -> None:
        self._settings, self._stream = settings, stream
        self.fit = training_filter(settings, root)
        self._pages = load_page_manifests(settings.synthesis.manifests, root or Path())

    def draw(self, like: Task, number: int) -> Task:
        """Draw a training task of the world, template, level and domain of the task `like`, with content of its own.

        number: of the draw; the same arguments give the same task. Returns `like` itself where its world has the same
        task for all seeds (`once`, a page without seeds), where the page gives the instruction once it is opened, and
        where none of 200 contents fits. Raises BadInput for a world that is neither a suite nor one of
        synthesis.manifests, BadInput, DataError and OSError as `make_task`.
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
    """Draw at most `count` tasks that had no part in training or choosing an iteration's model; fewer if no more fit.

    They are drawn as its gate tasks are, the same at each call, none with the content of a gate or eval task. root: the
    workspace, for synthesis.worlds and synthesis.manifests; None: the current folder. Raises BadInput and DataError as
    `make_tasks` does.
    """
    drawn = (make_tasks(settings, iteration, split, root) for split in ("eval", "gate"))
    looked_at = {task_content(task) for task in itertools.chain.from_iterable(drawn)}

    def fit(task: Task) -> bool:
        return is_reserved(task) and task_content(task) not in looked_at

    drawn_now = _draw(settings, "eval", f"fresh {iteration}", count, fit, root, iteration, passing=True)
    return [task for task, _ in drawn_now]


def is_reserved(task: Task) -> bool:
    """Tell whether a task's content is reserved for promotion gates, and so never trained on: one in eight, by hash."""
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
    shares: Mapping[str, float] | None = None,
    refreshed: int = 0,
    wanted: Wanted | None = None,
) -> list[tuple[Task, str]]:
    """Draw `count` different tasks, in turn from the domains, their suites, and the suites' slots; with their reasons.

    stream: text that the seeds derive from. fit: tells whether a task may be drawn. turn: how often as many were drawn
    before. repeated: the share of a suite's tasks whose slots are the same in each turn. passing: a slot without a
    fitting task is skipped; else it is an error, except for a suite whose tasks are the same for all seeds. opened: the
    highest level by suite; absent: its lowest; None: all levels. shares: `synthesis.shares`. refreshed: number of the
    tasks, at the end, that are of `wanted` slots where there are any.
    """
    turns, of_domain, of_world = _deal_turns(_turns(settings, split, root, opened), shares or {})
    # Of each task: the index of its domain, and of its suite in the domain.
    places = [(domain, next(of_world[domain])) for domain in itertools.islice(of_domain, count)]
    evenly = places[: count - refreshed]
    coming = {
        place: _in_turn(turns[place[0]][1][place[1]][1], evenly.count(place), repeated, turn, opened is not None)
        for place in set(places)
    }
    asked = [list(_list_wanted(worlds, wanted or {})) for _, worlds in turns]
    asking = [_deal_wanted(each) for each in asked]
    drawn: list[tuple[Task, str]] = []
    taken: set[str] = set()
    empty: set[tuple[str, Slot]] = set()

    def fresh(index: int, domain: str, world: TaskSuite | PageManifest, slot: Slot, reason: str) -> bool:
        """Draw a task of the slot that is not drawn yet; return whether there is one."""
        for attempt in range(_ATTEMPTS):
            seed = _seed(split, f"{settings.seed} {stream} {index} {attempt}")
            task = make_task(world, *slot, seed, split, domain, settings.routing.threshold)
            if task_content(task) not in taken and fit(task):
                taken.add(task_content(task))
                drawn.append((task, reason))
                if world.once:
                    empty.add((world.name, slot))  # the same task under every seed: it is drawn once
                return True
        empty.add((world.name, slot))
        return False

    def again(index: int, place: int) -> bool:
        """Draw a task of a slot that is wanted in the domain; return whether there is one."""
        for world, slot, reason, _ in itertools.islice(asking[place], len(asked[place])):
            if (world.name, slot) not in empty and fresh(index, turns[place][0], world, slot, reason):
                return True
        return False

    for index, place in enumerate(places):
        domain, worlds = turns[place[0]]
        world, slots = worlds[place[1]]
        if index >= count - refreshed and again(index, place[0]):
            continue
        for _ in slots:
            slot = next(coming[place])
            if (world.name, slot) in empty:
                continue
            if fresh(index, domain, world, slot, EVEN):
                break
            if not passing and not world.once:
                what = f"world {world.name}, template {slot[0]}, level {slot[1]} has too few different tasks"
                fix = "ask for fewer train_tasks or eval_tasks"
                raise BadInput(what, where=f"synthesis.{split}_tasks", fix=fix)
    return drawn


def _deal(weights: Sequence[int]) -> Iterator[int]:
    """Iterate over indices without end, each as often as its weight says in every stretch: equal weights take turns."""
    credit, total = [0] * len(weights), sum(weights)
    while True:
        credit = [one + weight for one, weight in zip(credit, weights, strict=True)]
        chosen = credit.index(max(credit))
        credit[chosen] -= total
        yield chosen


_WHOLE = 10**6  # shares are counted in millionths: sums of integers have no rounding, so that equal ones take turns


def _deal_turns(
    turns: Sequence[tuple[str, list[Turn]]], shares: Mapping[str, float]
) -> tuple[list[tuple[str, list[Turn]]], Iterator[int], list[Iterator[int]]]:
    """Return the domains, suites and pages with a share above 0; how their domains, and the suites of each, are dealt.

    shares: `synthesis.shares`. Raises BadInput for a name of nothing with tasks, and for shares that do not add up.
    """
    named = {domain: [f"{domain}/{world.name}" for world, _ in worlds] for domain, worlds in turns}
    known = (*named, *itertools.chain.from_iterable(named.values()))
    for name in shares.keys() - set(known):
        what = f"{name} is no domain, and no domain/world, that has training tasks"
        raise BadInput(what, where="synthesis.shares", fix=did_you_mean(name, known))
    weights = [_split_whole(list(named), shares), *(_split_whole(names, shares) for names in named.values())]
    kept = [
        (domain, list(itertools.compress(worlds, own)))
        for (domain, worlds), own in zip(turns, weights[1:], strict=True)
    ]
    worlds_of = [_deal([one for one in own if one]) for own in weights[1:]]
    with_tasks = (list(itertools.compress(each, weights[0])) for each in (kept, worlds_of))
    return next(with_tasks), _deal([one for one in weights[0] if one]), next(with_tasks)


def _split_whole(names: Sequence[str], shares: Mapping[str, float]) -> list[int]:
    """Return a weight for each of `names`: what `shares` says, and the others share the rest evenly."""
    given = [round(shares[name] * _WHOLE) if name in shares else None for name in names]
    others, rest = given.count(None), _WHOLE - sum(one or 0 for one in given)
    if rest < 0 or (rest and not others):
        told = ", ".join(f"{name} {shares[name]:g}" for name in names if name in shares)
        what = f"the shares of {told} sum to {1 - rest / _WHOLE:g}"
        raise BadInput(what, where="synthesis.shares", fix="make it 1" if rest > 0 else "make it 1 or less")
    return [rest if one is None else one * (others or 1) for one in given]


def _list_wanted(worlds: Sequence[Turn], wanted: Wanted) -> Iterator[tuple[TaskSuite | PageManifest, Slot, str, float]]:
    """List the wanted slots of a domain's suites and pages: (suite, slot, reason, weight)."""
    for world, slots in worlds:
        for slot in dict.fromkeys(slots):
            if (world.name, *slot) in wanted:
                yield world, slot, *wanted[world.name, *slot]


def _deal_wanted(asked: Sequence[tuple[Any, Slot, str, float]]) -> Iterator[tuple[Any, Slot, str, float]]:
    """Iterate over wanted slots without end: the reasons take turns, a reason's slots come by their weight."""
    by_reason: dict[str, list[tuple[Any, Slot, str, float]]] = defaultdict(list)
    for one in asked:
        by_reason[one[2]].append(one)
    dealt = {reason: _deal([max(1, round(one[3] * _WHOLE)) for one in own]) for reason, own in by_reason.items()}
    for reason in itertools.cycle(sorted(by_reason)):
        yield by_reason[reason][next(dealt[reason])]


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
    """Group suites and third-party pages by domain; returns for each domain of the settings its (suites, pages).

    manifests: by name. A page that no domain names belongs to its manifest's own domain. Suites of `synthesis.worlds`
    must be loaded. Raises BadInput for a name of neither a suite nor a page, and for a page whose domain the settings
    do not have.
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
    """Make the task that a suite or page has for a template, level and seed.

    Its id is a hash of suite, template, level, seed and params; of a page, without its params. world: a suite, or a
    third-party page's manifest. template: for a page, its variant, not checked. level: not used for a page. seed: any
    integer. split: train or eval. domain: "" for the suite's or the manifest's. threshold: score, in (0, 1], from which
    the task counts as solved, for a template that names none; not used for a page. Raises BadInput for a template or a
    level that the suite does not have, and for an instruction that names a param which `draw` does not give; DataError
    where it finds no task that can be solved; for a page BadInput and OSError as `make_page_task`.
    """
    if isinstance(world, PageManifest):
        return make_page_task(world, template, seed, split, domain)
    budget = world.budget(template, level)
    params = world.draw(template, level, seed)
    spec = world.templates[template]
    slot = (world.name, template, level, seed)
    return Task(
        hash_task_id(*slot, params),
        domain or world.domain,
        *slot,
        _fill_instruction(world.name, template, spec.instruction, params),
        params=params,
        max_steps=budget,
        split=split,
        verifier=spec.verifier,
        threshold=threshold if spec.threshold is None else spec.threshold,
        checksum=world.checksum,
        environment=world.environment,
        source=world.source,
        verifier_kill_rate=find_kill_rate(world.name, template, world.checksum),
    )


def _fill_instruction(world: str, template: str, instruction: str, params: Mapping[str, Any]) -> str:
    try:
        return instruction.format(**params)
    except (LookupError, ValueError, AttributeError) as error:  # no such param; a brace alone
        what = f"the instruction {instruction[:100]!r} cannot be filled in: {type(error).__name__} {error}"
        fix = f"`draw` gives {', '.join(params) or 'no params'}; a brace itself is written twice"
        raise BadInput(what, where=f"world {world}, template {template}", fix=fix) from None


def task_content(task: Task) -> str:
    """Return a text that is equal for tasks of the same content: suite, template, level and params, as JSON.

    Seed and split are left out; but the params of a third-party page's task hold its seed.
    """
    return json.dumps([task.world, task.template, task.level, task.params], sort_keys=True)


def task_to_row(task: Task) -> dict[str, Any]:
    """Return `task` as a row of the table `tasks`, by column, with its params as JSON text."""
    return {**vars(task), "params": json.dumps(task.params, sort_keys=True)}


def task_from_row(row: Mapping[str, Any]) -> Task:
    """Return the task of a row of the table `tasks`; further columns, such as iteration, are ignored.

    Raises KeyError for a column that is missing, but for `source` and `verifier_kill_rate`, which came late; ValueError
    or TypeError for `params` that are not JSON text.
    """
    source = row.get("source")
    late = {"source": "templates" if source is None else source, "verifier_kill_rate": row.get("verifier_kill_rate")}
    fields = {name: row[name] for name in Task.__dataclass_fields__ if name not in late} | late
    return Task(**{**fields, "params": json.loads(row["params"])})


def _seed(split: str, key: str) -> int:
    span = _SEEDS[split]
    return span.start + int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) % len(span)


# Checks of `synthesis` before an iteration begins: its names, and that its tasks can be drawn.


def check_task_settings(
    settings: Settings, iteration: int, root: Path, check: Callable[[list[Task]], Any] = lambda tasks: None
) -> frozenset[str]:
    """Check that an iteration's tasks can be drawn, by drawing them; returns the names of their back-ends.

    With `synthesis.level_unlock_success`, only the lowest level of each suite is drawn for training, as before any is
    unlocked. Loads the suites of `synthesis.worlds`; nothing is written, fetched or started. root: the workspace.
    check: called with the tasks of each split, without the instructions that pages give; its errors pass. Raises
    BadInput naming the parameter, such as for pages that are not fetched, a domain without a task, levels or templates
    that no suite has, or too few different tasks; DataError where a suite finds no task that can be solved.
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
        check(tasks)
        played |= {task.environment for task in tasks}
        for domain in set(chosen.domains) - {task.domain for task in tasks} if split == "train" else ():
            where = "synthesis.shares" if chosen.shares else "synthesis.train_tasks"
            fix = "raise its share, or train_tasks" if chosen.shares else f"set it to {len(chosen.domains)} or more"
            raise BadInput(f"no task of the domain {domain} would be drawn", where=where, fix=fix)
        if split == "train" and chosen.shares:
            _check_shares(settings, tasks, root)
    return frozenset(played)


def _check_shares(settings: Settings, tasks: Sequence[Task], root: Path) -> None:
    """Check that what has a share has a task, and as many as its share asks for. tasks: of the training split."""
    chosen = settings.synthesis
    turns = _turns(settings, "train", root, {} if chosen.level_unlock_success else None)
    turns, of_domain, of_world = _deal_turns(turns, chosen.shares)
    asked, there = (
        Counter[str](),
        Counter(name for task in tasks for name in (task.domain, f"{task.domain}/{task.world}")),
    )
    for place in itertools.islice(of_domain, chosen.train_tasks):
        domain, worlds = turns[place]
        asked.update((domain, f"{domain}/{worlds[next(of_world[place])][0].name}"))
    for name in [name for name, share in chosen.shares.items() if share and there[name] < max(1, asked[name])]:
        what, fix = f"no task of {name} would be drawn", "raise its share, or train_tasks"
        if asked[name]:
            what, fix = (
                f"{name} has {there[name]} tasks, and its share asks for {asked[name]}",
                "lower it, or make more",
            )
        raise BadInput(what, where="synthesis.shares", fix=fix)


def _check_levels(settings: Settings, worlds: Sequence[TaskSuite]) -> None:
    """Check that some suite of `worlds` has each of `synthesis.levels`; others would be ignored silently."""
    levels = sorted({level for world in worlds for level in world.levels})
    for level in settings.synthesis.levels:
        if worlds and level not in levels:
            what, fix = f"no world of synthesis.domains has a level {level}", f"known are {', '.join(map(str, levels))}"
            raise BadInput(what, where="synthesis.levels", fix=fix)
