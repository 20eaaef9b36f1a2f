"""Make tasks of a site that nobody wrote tasks for: explore it, try tasks of what was found, write a manifest."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from flywheel.agent.parsing.parser import serialise_action
from flywheel.config import LanguageModelSettings, SandboxSettings
from flywheel.envs.browser.pages.manifest import PageManifest
from flywheel.envs.browser.pages.session import ManifestPages
from flywheel.envs.browser.pool import BrowserPool
from flywheel.envs.tasks.page_tasks import make_page_task
from flywheel.policy.client.language_model import OpenAIChatModel
from flywheel.store.interop.demonstration import DEMONSTRATION_GRAMMAR
from flywheel.synthesis.exploration.page_view import make_address_kind
from flywheel.synthesis.exploration.site_explorer import (
    ExplorationReport,
    ExploreBudget,
    SiteExplorer,
    SiteFunction,
    SiteWalker,
)
from flywheel.synthesis.exploration.site_source import SERVER_FOLDER, SiteSource
from flywheel.synthesis.exploration.task_trials import TaskCandidate, TaskTrials, extend_solutions, make_candidate
from flywheel.synthesis.exploration.wording import reword
from flywheel.synthesis.funnel import Funnel, FunnelStage, write_funnel
from flywheel.utils.errors import BadInput, errors_of_place
from flywheel.utils.files import atomic_folder, write_json, write_text

Say = Callable[[str], None]
_SPARE = 4  # candidates that are tried at once beyond those that are needed
_MAX_ALIKE = 2  # tasks of controls that do the same on one page
_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class SiteTasks:
    """Hold the tasks that were made of a site. path: of the manifest. tasks: its tasks by name. funnel: `site`, `seed`,
    `counts` (how much was tried and dropped, by name), `functions` (as `SiteFunction.to_json`) and `tasks` (how
    many)."""

    path: Path
    tasks: dict[str, dict[str, Any]]
    funnel: dict[str, Any]


def explore_site(
    source: SiteSource,
    out: Path,
    *,
    most: int = 40,
    budget: ExploreBudget | None = None,
    language_model: LanguageModelSettings | None = None,
    say: Say = lambda line: None,
) -> SiteTasks:
    """Explore a site, and write tasks of it into the folder `out`.

    Written are the manifest NAME.yaml, and beside it the folder NAME with funnel.json, details.json and what the site's
    server begins with, where NAME is the site's name; they are replaced. source: from `find_site`; it is changed, so
    make one for each call. most: tasks that are written at most. budget: of the exploration; None: the default one.
    language_model: words the tasks where its endpoint is set; where it fails, and for None, rules do. say: called with
    each finding, a line. Starts an event loop of its own. The same site, seed and budget give the same bytes, unless
    the budget of seconds ends it. Raises BadInput where the site cannot be explored or gives no task, and nothing is
    written then, where these cannot be written, which is checked before, or the endpoint is no address; EnvError where
    the site's server or the browser does not start; DiskFull.
    """
    name = source.raw["name"]
    check_output_place(out, name)
    with errors_of_place(out), atomic_folder(out / name) as kept:
        tasks, report, counts = asyncio.run(_explore(source, kept, out, most, budget or ExploreBudget(), say))
        if not tasks:
            told = ", ".join(f"{reason}: {number}" for reason, number in sorted(counts.items()))
            raise BadInput("no task came of this site", where=name, fix=f"see what was met: {told}")
        model = OpenAIChatModel(language_model) if language_model and language_model.endpoint else None
        written = {}
        for number, one in enumerate(tasks, 1):
            written[f"g{number:04}"] = _write_task(one, *reword(one.instruction, model))
        fields = source.raw | {
            "made_by": "exploration",
            "seeded": False,
            "splits": ["train"],
            "follow": True,
            "success": 1,
            "tasks": written,
        }
        if "server" in fields:
            fields["server"] |= {"folder": f"{name}/{SERVER_FOLDER}"}
        funnel = {
            "site": name,
            "seed": source.seed,
            "counts": dict(sorted(counts.items())),
            "functions": [one.to_json() for one in report.functions],
            "tasks": len(written),
        }
        write_json(kept / "details.json", funnel)
        write_funnel(kept, count_funnel("exploration", source.raw["name"], source.seed, counts, len(written)))
    text = yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=1000)
    with errors_of_place(out):
        write_text(out / f"{name}.yaml", text)
    return SiteTasks(out / f"{name}.yaml", written, funnel)


def check_output_place(out: Path, name: str) -> None:
    """Make the folder `out`, and raise BadInput where the file NAME.yaml or the folder NAME cannot be written there."""
    with errors_of_place(out):
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    fix = "move it away, or name another place"
    if (out / name).exists() and not (out / name).is_dir():
        raise BadInput("a file is where the folder with the funnel belongs", where=out / name, fix=fix)
    if (out / f"{name}.yaml").is_dir():
        raise BadInput("a folder is where the manifest belongs", where=out / f"{name}.yaml", fix=fix)


def count_funnel(source: str, made_from: str, seed: int, counts: Mapping[str, int], tasks: int) -> Funnel:
    """Make the funnel of an exploration, of functions and of candidates for tasks.

    source, made_from, seed: as of `Funnel`. counts: of an exploration: functions, extensions, candidates and, by
    `dropped: REASON`, candidates that came to nothing. tasks: how many were written.
    """
    dropped = {name.removeprefix("dropped: "): n for name, n in counts.items() if name.startswith("dropped: ") and n}
    tried = counts.get("candidates", tasks)
    rest = max(0, tried - tasks - sum(dropped.values()))
    found = counts.get("functions", 0) + counts.get("extensions", 0)
    unlike = {"only opens what others need, or too many of its kind": found - tried} if found > tried else {}
    return Funnel(
        source=source,
        made_from=made_from,
        seed=seed,
        stages=(
            FunnelStage(name="functions", taken=found, left=min(tried, found), discarded=unlike),
            FunnelStage(name="candidates", taken=tried, left=tasks,
                        discarded=dropped | ({"more than asked for": rest} if rest else {})),
        ),
    )  # fmt: skip


def _write_task(one: TaskCandidate, instruction: str, author: str) -> dict[str, Any]:
    proof = {
        "script": [step.to_json() for step in one.script],
        "actions": [serialise_action(action, DEMONSTRATION_GRAMMAR) for action in one.actions],
        "thoughts": list(one.thoughts),
        "changes": [str(change) for change in one.changes][:6],
        "replayed": 2,
        "worded_by": author,
        "extends": len(one.functions) > 1,
    }
    return {
        "instruction": instruction,
        "reward": one.reward,
        "max_steps": one.max_steps,
        "level": one.level,
        "proof": proof,
    }


async def _explore(
    source: SiteSource, kept: Path, out: Path, most: int, budget: ExploreBudget, say: Say
) -> tuple[list[TaskCandidate], ExplorationReport, Counter[str]]:
    await source.freeze(kept, out)
    seed = source.seed
    async with _open(source, {}) as (pool, task):
        report = await SiteExplorer(pool, task, seed, budget).explore()
        counts = report.counts
        say(f"explored: {counts['pages']} pages, {counts['states']} states, {len(report.functions)} functions")
        whole = _drop_prerequisites(report.functions, counts)
        singles = _make_candidates(whole, report, counts)
        async with SiteWalker(pool, task) as walker:
            further = await extend_solutions(
                walker, report, whole, seed, most, lambda why: counts.update({f"dropped: {why}": 1})
            )
    counts["functions"], counts["extensions"] = len(report.functions), len(further)
    queue = _choose(singles, further)
    held: list[TaskCandidate] = []
    while queue and len(held) < most:
        batch, queue = queue[: most - len(held) + _SPARE], queue[most - len(held) + _SPARE :]
        counts["candidates"] += len(batch)
        say(f"trying {len(batch)} candidates; {len(held)} tasks so far")
        for group in _group_by_reading(batch):
            state = {one.name: one.reward for one in group}
            async with _open(source, state) as (pool, task), SiteWalker(pool, task) as walker:
                held += await TaskTrials(walker, report, seed).accept(group, counts)
    counts["accepted"], counts["candidates not tried"] = len(held), len(queue)
    return held[:most], report, counts


class _open:
    """Open a pool of one browser page on a site whose state holds the readings `state`."""

    def __init__(self, source: SiteSource, state: dict[str, Any]) -> None:
        self._manifest: PageManifest = source.make_manifest(state=state)
        self._task = make_page_task(self._manifest, self._manifest.variants[0], source.seed, "train")

    async def __aenter__(self) -> tuple[BrowserPool, Any]:
        settings = SandboxSettings(browsers=1, pages=1, timeout_s=_TIMEOUT_S)
        self._pages = await ManifestPages({self._manifest.name: self._manifest}).__aenter__()
        self._pool = await BrowserPool(settings, self._pages).__aenter__()
        return self._pool, self._task

    async def __aexit__(self, *error: object) -> None:
        await self._pool.__aexit__(*error)
        await self._pages.__aexit__(*error)


def _drop_prerequisites(functions: Sequence[SiteFunction], counts: Counter[str]) -> list[SiteFunction]:
    """Leave out functions that only come before others, such as to open a menu or a list: these tasks include them."""
    inner = {(*one.path[:i], one.path[i]) for one in functions for i in range(len(one.path)) if not one.navigated[i]}
    opens = ("textbox", "searchbox", "combobox", "popupbutton", "spinbutton")
    kept = [
        one
        for one in functions
        if (*one.path, one.steps) not in inner and not (one.steps[-1].do == "click" and one.steps[-1].role in opens)
    ]
    counts["functions that are but a part of others"] = len(functions) - len(kept)
    return kept


def _make_candidates(
    functions: Sequence[SiteFunction], report: ExplorationReport, counts: Counter[str]
) -> list[TaskCandidate]:
    made = []
    for number, function in enumerate(functions, 1):
        if len(function.script) == 1:
            counts["dropped: trivial, one action"] += 1
            continue
        try:
            made.append(make_candidate(f"f{number:04}", function, report))
        except ValueError as error:
            counts[f"dropped: {error}"] += 1
    return made


def _choose(singles: Sequence[TaskCandidate], further: Sequence[TaskCandidate]) -> list[TaskCandidate]:
    """Put in order what is tried: in turn tasks that change something, extensions, and pages to be found, of each kind
    in turn from all pages."""
    alike: Counter[tuple[str, ...]] = Counter()
    chosen = []
    for one in sorted(singles, key=lambda one: -len(one.script)):  # such as the values of one facet
        last = one.functions[0]
        kind = (last.entry.address, last.steps[-1].role, make_address_kind(last.after.address), last.changes[0].kind)
        alike[kind] += 1
        if alike[kind] <= _MAX_ALIKE:
            chosen.append(one)
    changes, pages = ([one for one in chosen if one.functions[0].leads_elsewhere is way] for way in (False, True))
    kinds = [_spread(changes), _spread(further), _spread(pages)]
    turn = (0, 1, 0, 1, 2)  # fewer of the pages to be found: they are the easiest
    found: list[TaskCandidate] = []
    while any(kinds):
        for kind in (kinds[number] for number in turn):
            found += [kind.pop(0)] if kind else []
    return found


def _spread(candidates: Sequence[TaskCandidate]) -> list[TaskCandidate]:
    by_page: dict[str, list[TaskCandidate]] = {}
    for one in candidates:
        by_page.setdefault(one.functions[0].entry.address.partition("?")[0], []).append(one)
    found = []
    while by_page:
        for page in list(by_page):
            found.append(by_page[page].pop(0))
            if not by_page[page]:
                del by_page[page]
    return found


def _group_by_reading(candidates: Sequence[TaskCandidate]) -> list[list[TaskCandidate]]:
    """Group candidates whose rewards are read in one session: a reading by a command takes a process at each step, so
    there are few of them in one."""
    slow = [one for one in candidates if isinstance(one.reward, dict) and "command" in one.reward]
    fast = [one for one in candidates if one not in slow]
    return [group for group in (fast, *([one] for one in slow)) if group]
