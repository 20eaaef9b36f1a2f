"""Find programs that solve tasks: experts of the suites, and the known solutions that tasks of pages carry."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from flywheel.agent.actions import Action, Click, Finished, Point, Scroll, Wait, actions_from_json, split_action
from flywheel.config import Settings
from flywheel.envs.base import Env, Task
from flywheel.envs.browser.pages.manifest import load_page_manifests
from flywheel.envs.tasks.page_tasks import list_proof_steps
from flywheel.utils.errors import DataError

SOLVER = "solver"  # author of steps that a solver took
NEAR = 0.06  # of the screen, both ways together: as far may a click be from the solver's where no element is named
_WAITS = 5  # steps until a click must have led on

# Returns where a link to the page, or the text, is to be seen, and the link's words: [x, y, words], x and y in
# fractions of the screen; "down" or "up" where it is out of sight; null where there is none.
_FIND = """((target, text) => {
  const seen = (n) => { const r = n.getBoundingClientRect();
    return r.width > 1 && r.height > 1 && getComputedStyle(n).visibility !== "hidden"; };
  const plain = (s) => s.replace(/\\s+/g, " ").trim();
  const path = (url) => decodeURIComponent(url.pathname + url.search)
    .replace(/^\\//, "").replace(/(^|\\/)index\\.html?$/, "$1");
  const want = path(new URL(target, location.origin + "/"));
  let found = [];
  if (text === null) found = [...document.links].filter((a) => path(new URL(a.href)) === want && seen(a));
  else {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_ELEMENT);
    for (let n = walker.nextNode(); n; n = walker.nextNode())
      if (plain(n.textContent).includes(text) && seen(n)) found.push(n);
    found = found.filter((n) => ![...n.children].some((c) => found.includes(c)));
  }
  if (!found.length) return null;
  const places = found.map((n) => [n, n.getClientRects()[0] || n.getBoundingClientRect()]);
  const at = (r) => [r.x + Math.min(r.width / 2, 40), r.y + r.height / 2];
  for (const [n, r] of places) {
    const [x, y] = at(r), top = document.elementFromPoint(x, y);
    if (top && (n.contains(top) || top.contains(n) && text !== null))
      return [x / innerWidth, y / innerHeight, plain(n.textContent).slice(0, 80)];
  }
  return at(places[0][1])[1] > innerHeight / 2 ? "down" : "up";
})"""
_PATH = (
    'decodeURIComponent(location.pathname + location.search).replace(/^\\//, "").replace(/(^|\\/)index\\.html?$/, "$1")'
)

Solution = Sequence[tuple[str, Action]]  # thoughts and actions, from a task's reset on


class Solver(Protocol):
    """Choose the steps of one episode of a task.

    from_any_state: whether it knows a way on from states that it did not lead to itself. near: how far another's click
    may be from its own and still be the same where no element is named, as `NEAR`.
    """

    from_any_state: bool
    near: float

    async def next_step(self, env: Env, number: int, state: Mapping[str, Any]) -> tuple[str, Action]:
        """Return the thought and action of the step `number`, from 0, `Finished` where nothing is left to do.

        env: that the task is played in. state: its `info["state"]`. Raises DataError where it knows no way on, EnvError
        where the environment fails.
        """


class ExpertSolver:
    """Ask the expert of a task's suite, which reads the state. seed: varies the wording."""

    from_any_state, near = True, NEAR

    def __init__(self, task: Task, seed: int) -> None:
        self._task, self._seed = task, seed

    async def next_step(self, env: Env, number: int, state: Mapping[str, Any]) -> tuple[str, Action]:
        """See `Solver`."""
        from flywheel.envs.suites.oracle import next_expert_step  # imports browser suites, which most runs do not need

        return next_expert_step(self._task, state, self._seed) or ("I am done.", Finished())


class ScriptSolver:
    """Repeat a known solution, which holds from the task's reset on, and only while each step is as in it."""

    from_any_state = False
    near = 0.02  # another site may have icons side by side, which have no names

    def __init__(self, solution: Solution) -> None:
        self._solution = solution

    async def next_step(self, env: Env, number: int, state: Mapping[str, Any]) -> tuple[str, Action]:
        """See `Solver`."""
        return self._solution[number] if number < len(self._solution) else ("I am done.", Finished())


class BrowsingSolver:
    """Browse to a question's answer: from page to page over the links of its proof, and give the answer found there.

    way: addresses of the proof's pages, the first of which is open after the reset. answer: to be seen on the last one.
    It reads the page in the browser, which must be of this process.
    """

    from_any_state, near = True, NEAR

    def __init__(self, way: Sequence[str], answer: str) -> None:
        self._way, self._answer = list(way), answer
        self._at = self._waited = 0
        self._clicked = False

    async def next_step(self, env: Env, number: int, state: Mapping[str, Any]) -> tuple[str, Action]:
        """See `Solver`. It knows a way on from the pages of the proof, in their order, alone."""
        tab = getattr(env, "tab", None)
        if tab is None:
            raise DataError("the page is not in a browser of this process")
        here = await tab.evaluate(_PATH)
        at = next((n for n in range(self._at, len(self._way)) if _path_of(self._way[n]) == here), None)
        if at is None:
            raise DataError(f"the page {here} is not on the way of the proof")
        if at > self._at:  # also where the model went some pages before it was asked
            self._at, self._clicked, self._waited = at, False, 0
        last = self._at + 1 == len(self._way)
        if self._clicked and self._waited < _WAITS:
            self._waited += 1
            return "I wait until the page is there.", Wait()
        target, text = (self._way[self._at], self._answer) if last else (self._way[self._at + 1], None)
        found = await tab.evaluate(f"{_FIND}({json.dumps(target)}, {json.dumps(text)})")
        if found is None:
            raise DataError("the answer is not to be seen" if last else f"no link leads there: {target}")
        if isinstance(found, str):
            return f"I scroll {found} to look for {'the answer' if last else 'the next page'}.", Scroll(
                Point(0.5, 0.5), "down" if found == "down" else "up"
            )
        if last:
            return f"The answer is {self._answer}.", Finished(self._answer)
        self._clicked = True
        x, y, words = found
        return f"I follow the link {words}.", Click(Point(min(max(x, 0.0), 0.999), min(max(y, 0.0), 0.999)))


def _path_of(address: str) -> str:
    return address.removesuffix("index.html")


class TaskSolvers:
    """Find the solvers of tasks. own: makes the solver of a task that has one of its own, by task_id; tasks of suites
    with an expert need none."""

    def __init__(self, own: Mapping[str, Callable[[], Solver]] | None = None) -> None:
        self._own = own or {}

    def has(self, task: Task) -> bool:
        """Tell whether `task` has a solver."""
        return task.task_id in self._own or has_expert(task) or _has_computer_expert(task)

    def find(self, task: Task, seed: int) -> Solver | None:
        """Find the solver of one episode of `task`; None where it has none. seed: varies the wording."""
        if make := self._own.get(task.task_id):
            return make()
        if has_expert(task):
            return ExpertSolver(task, seed)
        return ScriptSolver(_list_computer_steps(task)) if _has_computer_expert(task) else None


def has_expert(task: Task) -> bool:
    """Tell whether the task's suite has an expert that knows a way on from any state: those of the browser have one."""
    from flywheel.envs.suites import catalogue  # imports browser suites, which most runs do not need

    return task.environment == catalogue.BrowserWorld.environment and task.world in catalogue.list_worlds()


def _has_computer_expert(task: Task) -> bool:
    if task.environment == "browser":
        return False
    from flywheel.envs.suites import oracle  # imports browser suites, which most runs do not need

    return task.world in oracle.list_computer_suites()


def _list_computer_steps(task: Task) -> Solution:
    from flywheel.envs.suites import oracle

    return oracle.list_expert_steps(task)


def load_solvers(tasks: Iterable[Task], settings: Settings, root: Path) -> TaskSolvers:
    """Load the solvers of `tasks`: the experts of suites, and what is known of a task.

    The proofs of pages' tasks in `synthesis.manifests` hold `actions`, or the `way` to a question's answer; those of an
    explored application in `synthesis.worlds` stand in details.json in the folder of its name beside it. A task that
    asks for an answer and has neither gets none: to say the answer at once is no way to find it. root: the workspace.
    Raises BadInput for a manifest that is wrong or a text that is no action, DataError for a damaged details.json.
    """
    manifests = load_page_manifests(settings.synthesis.manifests, root)
    applications = _read_application_proofs(settings.synthesis.worlds, root)
    own: dict[str, Callable[[], Solver]] = {}
    for task in tasks:
        if steps := applications.get((task.world, task.template)):
            own[task.task_id] = partial(ScriptSolver, steps)
            continue
        manifest = manifests.get(task.world)
        known = manifest.tasks.get(task.template) if manifest else None
        if known is None:
            continue
        way, answer = known.proof.get("way"), next(iter(task.params.get("answer", ())), "")
        if known.proof.get("actions"):
            steps = list_proof_steps(task, known.proof)
            # As clicks and typing, which every policy knows.
            plain = [(said, part) for said, action in steps for part in split_action(action)]
            own[task.task_id] = partial(ScriptSolver, plain)
        elif answer and isinstance(way, list) and way and all(isinstance(page, str) for page in way):
            own[task.task_id] = partial(BrowsingSolver, way, answer)
    return TaskSolvers(own)


def _read_application_proofs(suites: Iterable[str], root: Path) -> dict[tuple[str, str], Solution]:
    """Read the solutions of explored applications' tasks, by world and template. suites: paths of their manifests."""
    found: dict[tuple[str, str], Solution] = {}
    for entry in suites:
        suite = root / entry
        path = suite.parent / suite.stem / "details.json"
        if not path.is_file():
            continue
        try:
            for name, proof in json.loads(path.read_text(encoding="utf-8")).get("proofs", {}).items():
                actions = actions_from_json(json.dumps(proof["actions"]))
                thoughts = proof.get("thoughts", [""] * len(actions))
                found[suite.stem, name] = list(zip(map(str, thoughts), actions, strict=True))
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            fix = "explore the application again, or remove the file: its tasks then have no solver"
            raise DataError(f"the solutions cannot be read: {error}", where=path, fix=fix) from None
    return found
