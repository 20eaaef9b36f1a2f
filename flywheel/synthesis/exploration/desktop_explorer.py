"""Explore a desktop application by its accessibility tree (AT-SPI), and make tasks of what its controls change."""

from __future__ import annotations

import json
import random
import re
import shlex
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from flywheel.agent.actions import Action, Click, Finished, Hotkey, Point, Terminal, Type, Wait, actions_to_json
from flywheel.envs import conformance
from flywheel.envs.base import StepResult, Task
from flywheel.envs.browser.pages.manifest import MANIFEST_SUFFIXES, parse_manifest_file
from flywheel.envs.computer.backend import COMPUTER_VERIFIERS, WORLD_NAME, ComputerManifest
from flywheel.envs.computer.computer import Computer, WarmPool
from flywheel.envs.computer.env import ComputerEnv
from flywheel.envs.computer.machine import ComputerSettings
from flywheel.envs.computer.task_spec import ComputerTaskSpec
from flywheel.envs.suites.chores.verifier import CHORES_VERIFIER
from flywheel.synthesis.exploration.effects import Change
from flywheel.synthesis.exploration.site_tasks import check_output_place, count_funnel
from flywheel.synthesis.exploration.task_trials import WEAK_SEEDS
from flywheel.synthesis.funnel import write_funnel
from flywheel.utils.errors import BadInput, EnvError, errors_of_place
from flywheel.utils.files import atomic_folder, write_json, write_text
from flywheel.utils.json_text import describe_first_fault

_TREE = Path(__file__).with_name("desktop_tree.py").read_text(encoding="utf-8")
_BUS = "/tmp/.accessibility-bus"
_LISTEN = (  # starts an application so that AT-SPI sees it
    f'unset GTK_A11Y; export NO_AT_BRIDGE=0; echo "$DBUS_SESSION_BUS_ADDRESS" > {_BUS}; '
    "for it in /usr/libexec/at-spi-bus-launcher /usr/lib/at-spi2-core/at-spi-bus-launcher; do "
    '[ -x $it ] && $it --launch-immediately & done; sleep 0.3; exec "$@"'
)
_PRESSED = ("push button", "toggle button", "check box", "radio button", "page tab", "combo box")
_MENU_LEAVES = ("menu item", "check menu item", "radio menu item")
_ENDS = ("quit", "close", "close window", "exit", "log out", "shut down")
_QUITS = ("quit", "exit")
_QUIT_KEYS = Hotkey(("ctrl", "q"))
_DISMISSES = ("cancel", "close", "ok", "help")
_CHOICES = ("radio menu item", "check menu item", "radio button", "check box")
_MAX_ITEMS, _MAX_ALIKE = 20, 6  # of one menu; buttons of one kind, deep in a window, that are tried
_MAX_DEPTH = 3  # operations: in a dialog of a dialog
_WINDOWS = ("frame", "dialog", "alert", "window", "file chooser")
_LONGEST = 100_000  # steps of a session
_NEVER = "(an answer that nobody gives: no session of ours ends early)"
_TYPED = "A line of my own."
_RESULT_BYTES = 2**22
_REMEMBERED = re.compile(r"state|recent|window|chooser|geometry|position|session|history|width|height", re.I)
_PAIRS = 30  # of functions, the second done after the first, that are tried


@dataclass(frozen=True)
class DesktopNode:
    """Hold one node of the accessibility tree. path: roles and names from its window down to itself. box: left, top,
    width and height in pixels. text: of a label or field. selected: the selected part of the text."""

    path: tuple[str, ...]
    role: str
    name: str
    box: tuple[int, ...]
    shows: bool
    checked: bool
    editable: bool
    sensitive: bool
    text: str
    selected: str = ""


@dataclass(frozen=True)
class DesktopStep:
    """Hold one step of an exploration: a click on a node, or text typed into what has the focus. path, role, name: of
    the node. text: what is typed; "" for a click. window: its title. on: whether the node was ticked before."""

    path: tuple[str, ...]
    role: str
    name: str
    text: str = ""
    window: str = ""
    on: bool = False


@dataclass(frozen=True)
class DesktopFunction:
    """Hold one function of an application: steps that change something. steps, actions: from the application's start.
    changes: of the last step, menus included."""

    steps: tuple[DesktopStep, ...]
    actions: tuple[Action, ...]
    changes: tuple[Change, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the function as the funnel tells it: `page` (the window), `control` (the steps) and `changes`."""
        told = "; ".join(f"{'type ' + one.text if one.text else 'click'} {one.role} {one.name!r}" for one in self.steps)
        return {"page": self.steps[0].window, "control": told, "changes": [str(one) for one in self.changes][:6]}


def parse_tree(nodes: Sequence[Sequence[Any]]) -> list[DesktopNode]:
    """Make nodes of the lists that `desktop_tree.py` prints."""
    found, above = [], [""] * 64
    for depth, role, name, box, *states, text, selected in nodes:
        above[depth] = f"{role}:{name}" if name or role in _WINDOWS else role
        if role in _WINDOWS:  # a window's name changes with its document
            above[depth] = role if role == "frame" else f"{role}:{name}"
        path = tuple(above[1 : depth + 1])
        found.append(DesktopNode(path, role, name, tuple(box), *states, text or "", selected))
    return found


def compare_desktops(
    before: Sequence[DesktopNode], after: Sequence[DesktopNode], files: Mapping[str, str], now: Mapping[str, str]
) -> list[Change]:
    """List what differs between two looks at a desktop. files, now: texts of the home's files by path, before and
    after."""
    found = [
        Change("file", path, files.get(path, ""), now.get(path, ""))
        for path in sorted(files.keys() | now.keys())
        if files.get(path) != now.get(path)
        and (not _is_hidden(path) or _list_new_settings(files.get(path, ""), now.get(path, "")))
    ]
    windows = [{one.name for one in look if one.role in _WINDOWS and one.shows} for look in (before, after)]
    if windows[0] != windows[1]:
        found.append(Change("text", "windows", ", ".join(sorted(windows[0])), ", ".join(sorted(windows[1]))))
    shown = [{one.path for one in look if one.shows and "menu" not in one.role} for look in (before, after)]
    if shown[0] != shown[1]:
        parts = (shown[0] - shown[1], shown[1] - shown[0])
        gone, come = (sorted({path[-1].partition(":")[2] for path in some} - {""}) for some in parts)
        found.append(Change("text", "what is shown", ", ".join(gone), ", ".join(come)))
    for field, kind in (("text", "text"), ("selected", "text"), ("checked", "control")):
        old, new = ({one.path: getattr(one, field) for one in look} for look in (before, after))
        for path in sorted(old.keys() & new.keys()):
            if old[path] != new[path]:
                where = "selection" if field == "selected" else " / ".join(path[-2:])
                found.append(Change(kind, where, str(old[path]), str(new[path])))
    return found


class DesktopWalker:
    """Run sessions of a desktop, and read its accessibility tree. begin: params of its tasks. listens: start its
    application so that AT-SPI sees it. actions: counts those of all sessions."""

    def __init__(self, env: ComputerEnv, begin: Mapping[str, Any], listens: bool) -> None:
        self._env, self.actions = env, 0
        params = {"files": {}, **begin}
        self._program = Path(_find_program(params["apps"][0]) or "").name[:15]  # as the kernel cuts it
        if listens:
            first, *others = params["apps"]
            params["apps"] = [["dbus-run-session", "--", "sh", "-c", _LISTEN, "sh", *first], *others]
        self.params = params
        self.result: StepResult | None = None
        self._size = (1, 1)

    async def begin(self, params: Mapping[str, Any] | None = None, *, scored: bool = False) -> StepResult:
        """Begin a fresh session, and return the reset's result.

        params: of the task; None: the walker's. scored: it ends where the task is solved, which no other session does.
        Raises EnvError.
        """
        told = dict(params or self.params) | ({} if scored else {"answer": _NEVER})
        task = Task(
            "explore", "computer", "explore", "explore", 1, 0, "", told, _LONGEST, "train", CHORES_VERIFIER, 1.0, ""
        )
        self.result = await self._env.reset(task, 0)
        self._size = (self.result.observation.width, self.result.observation.height)
        return self.result

    async def act(self, action: Action) -> StepResult:
        """Carry out an action. Raises EnvError."""
        self.actions += 1
        self.result = await self._env.step(action)
        return self.result

    @property
    def files(self) -> dict[str, str]:
        """Return the texts of the home's files by path."""
        return dict(self.result.info["state"]["files"])

    async def look(self) -> list[DesktopNode]:
        """Read the accessibility tree. Raises EnvError where AT-SPI does not answer."""
        call = f"DBUS_SESSION_BUS_ADDRESS=$(cat {_BUS}) timeout 9 /usr/bin/python3 -c {shlex.quote(_TREE)} 2>&1"
        told = (await self._env.step(Terminal(call))).info.get("result", "")
        found = re.search(r"^tree:(\[.*)$", told, re.MULTILINE)  # a shell repeats the call where it was killed
        if found is None:
            fix = "apt-get install at-spi2-core python3-gi gir1.2-atspi-2.0"
            raise EnvError(f"AT-SPI does not answer: {' '.join(told.split())[-200:]}", fix=fix)
        return parse_tree(json.loads(found[1]))

    async def is_running(self) -> bool:
        """Tell whether the application still runs; AT-SPI ends with it. Raises EnvError."""
        told = (await self._env.step(Terminal("cat /proc/[0-9]*/comm 2>/dev/null"))).info.get("result", "")
        return self._program in told.splitlines()

    async def play(self, step: DesktopStep) -> list[Action]:
        """Play one step, and return its actions. Raises EnvError where its node does not show."""
        if step.text:
            done: list[Action] = [Type(step.text)]
        else:
            nodes = [one for one in await self.look() if one.path == step.path and one.shows and one.sensitive]
            if not nodes:
                raise EnvError(f"there is no {step.role} {step.name!r}")
            x, y, w, h = nodes[0].box
            width, height = self._size
            if not (0 <= x + w / 2 < width and 0 <= y + h / 2 < height):
                raise EnvError(f"the {step.role} {step.name!r} is outside the screen")
            done = [Click(Point((x + w / 2) / width, (y + h / 2) / height))]
        for action in done:
            await self.act(action)
        return done


def list_operations(nodes: Sequence[DesktopNode], known: set[tuple[str, ...]]) -> list[tuple[DesktopStep, ...]]:
    """List the operations, each of one or more steps, on the controls that a desktop shows and that are not `known`.

    First comes the first control of each menu and kind, then the second ones, and so on. known: paths of controls; the
    new ones are added to it.
    """
    counts: Counter[str] = Counter()
    found: list[tuple[int, tuple[DesktopStep, ...]]] = []
    window = next((one.name for one in nodes if one.role in _WINDOWS and one.shows), "")
    for node in nodes:
        plain = node.name.lower().rstrip(". …")
        if node.path in known or not node.sensitive:
            continue
        group = f"{'/'.join(node.path[:-1])} {node.role}"
        own = DesktopStep(node.path, node.role, node.name, window=window, on=node.checked)
        if node.role in _MENU_LEAVES and node.name and plain not in _ENDS:
            menus = _list_menus(node, window)
            steps = (*menus, own) if menus else (own,) if node.shows else ()
        elif node.role in _PRESSED and node.shows and node.name and plain not in _DISMISSES:
            steps = (own,)
        elif node.role in ("text", "entry") and node.editable and node.shows:
            steps = (own, replace(own, text=_TYPED, name=node.name or "text"))
        else:
            continue
        counts[group] += 1
        most = _MAX_ITEMS if node.role in _MENU_LEAVES or len(node.path) <= 5 else _MAX_ALIKE
        if steps and counts[group] <= most:
            known.add(node.path)
            found.append((counts[group], steps))
    return [steps for _, steps in sorted(found, key=lambda one: one[0])]


def _list_menus(item: DesktopNode, window: str) -> list[DesktopStep]:
    """List the steps that open the menus above an item."""
    return [
        DesktopStep(item.path[: i + 1], "menu", part.removeprefix("menu:"), window=window)
        for i, part in enumerate(item.path[:-1])
        if part.startswith("menu:")
    ]


class DesktopExplorer:
    """Explore an application breadth first: `await explore()`. most: actions at most. functions: that were found. quit:
    the function that ends the application, by its keys or its menu, which is tried last; None where there is none.
    counts: how much was tried and dropped."""

    def __init__(self, walker: DesktopWalker, most: int) -> None:
        self._walker, self._most = walker, most
        self.functions: list[DesktopFunction] = []
        self.quit: DesktopFunction | None = None
        self.counts: Counter[str] = Counter()

    async def explore(self) -> None:
        """Explore until nothing is left or the actions are spent, and fill `functions`, `quit` and `counts`.

        Raises EnvError where the application does not open or AT-SPI does not answer.
        """
        walker, known = self._walker, set()
        await walker.begin()
        start = await walker.look()
        queue = deque((steps, 1) for steps in list_operations(start, known))
        while queue and walker.actions < self._most:
            steps, depth = queue.popleft()
            self.counts["operations tried"] += 1
            try:
                done = await self.run(steps)
                if done is None:
                    continue
                function, after = done
            except EnvError as error:
                self.counts[f"broken: {error.what[:50]}"] += 1
                continue
            self.functions.append(function)
            more_to_do = any(one.kind == "text" for one in function.changes)  # a dialog, or what can be saved now
            if more_to_do and depth < _MAX_DEPTH:
                queue.extend(((*steps, *more), depth + 1) for more in list_operations(after, known))
        self.quit = await self._find_quit(start)
        self.functions += [self.quit] if self.quit else []
        self.counts["left untried"] = len(queue)
        self.counts["actions"] = walker.actions

    async def _find_quit(self, start: Sequence[DesktopNode]) -> DesktopFunction | None:
        """Find out how the application is ended: many keep their settings only then. By keys, which work wherever its
        windows have gone meanwhile, or else by its menu."""
        leaf = next((one for one in start if one.role in _MENU_LEAVES and one.name.lower() in _QUITS), None)
        if leaf is None:
            return None
        window = next((one.name for one in start if one.role in _WINDOWS and one.shows), "")
        steps = (*_list_menus(leaf, window), DesktopStep(leaf.path, leaf.role, leaf.name, window=window))
        for ways in ((_QUIT_KEYS,), ()):
            try:
                await self._walker.begin()
                done = list(ways)
                for action in ways:
                    await self._walker.act(action)
                for step in () if ways else steps:
                    done += await self._walker.play(step)
                await self._walker.act(Wait())
                if not await self._walker.is_running():
                    return DesktopFunction(steps, tuple(done), (Change("text", "windows", window, ""),))
            except EnvError as error:
                self.counts[f"broken: {error.what[:50]}"] += 1
                continue
        return None

    async def run(self, steps: Sequence[DesktopStep]) -> tuple[DesktopFunction, list[DesktopNode]] | None:
        """Carry out steps from a fresh session; return the function and the desktop after it, None for no change.

        Raises EnvError where a step cannot be done.
        """
        walker, done = self._walker, []
        await walker.begin()
        others = (i for i, step in enumerate(steps) if step.role not in (*_MENU_LEAVES, "menu"))
        own = 1 + max(others, default=-1)
        before = files = None
        for number, step in enumerate(steps):
            if before is None and (number == len(steps) - 1 or (step.role == "menu" and number >= own)):
                before, files = await walker.look(), walker.files
            done += await walker.play(step)
        await walker.act(Wait())
        after = await walker.look()
        changes = compare_desktops(before, after, files, walker.files)
        if not changes:
            self.counts["operations without an effect"] += 1
            return None
        return DesktopFunction(tuple(steps), tuple(done), tuple(changes)), after


def word_steps(app: str, steps: Sequence[DesktopStep]) -> str:
    """Word the instruction of a task whose solution is `steps`. app: the application's title. steps: not empty."""
    clauses, menus = [], []
    ends = bool(steps) and steps[-1].name.lower() in _QUITS
    for step in steps[: -1 if ends else None]:
        if step.role == "menu":
            menus.append(step.name)
        elif step.text:
            clauses[-1] = (
                f"enter “{step.text}” in the text" if step.name == "text" else f"enter “{step.text}” in “{step.name}”"
            )
        elif step.role in _MENU_LEAVES:
            where = f" in the menu “{' > '.join(menus)}”" if menus else ""
            verb = _tick(step) if step.role == "check menu item" else "choose"
            clauses.append(f"{verb} “{step.name.rstrip('.')}”{where}")
            menus = []
        else:
            verbs = {"check box": _tick(step), "page tab": "show the tab", "radio button": "choose"}
            clauses.append(f"{verbs.get(step.role, 'press')} “{step.name}”")
    if ends:
        clauses.append(f"quit {app}")
    told = clauses[0] if len(clauses) == 1 else f"{', '.join(clauses[:-1])} and {clauses[-1]}"
    return f"In {app}, {told}."


def word_thought(step: DesktopStep) -> str:
    """Word a short thought for the action of one step, as a demonstration's thoughts."""
    if step.text:
        return f"I enter {step.text}."
    if step.name.lower() in _QUITS:
        return "I quit the program."
    verbs = {"menu": "open the menu", "check menu item": _tick(step), "check box": _tick(step), "text": "click into",
             "entry": "click into", "page tab": "show the tab"}  # fmt: skip
    return f"I {verbs.get(step.role, 'choose' if step.role in _MENU_LEAVES else 'press')} {step.name or step.role}."


def _tick(step: DesktopStep) -> str:
    return "untick" if step.on else "tick"


def read_desktop_source(path: Path) -> dict[str, Any] | None:
    """Read from the manifest of a computer suite the application that `explore_desktop` explores.

    path: of the file. Returns `world` (the suite's name), `title` ("" where it has none) and `begin`, what the suite or
    else its first task begins with; None for a file of another kind. Raises BadInput where it cannot be read, its name
    or `begin` is wrong, or it opens no application.
    """
    raw = parse_manifest_file(path) if path.suffix in MANIFEST_SUFFIXES else {}
    if raw.get("kind") != "computer":
        return None
    try:
        begin = dict(raw.get("begin") or next((one.get("begin", {}) for one in raw.get("tasks", ())), {}))
        apps = ComputerTaskSpec.model_validate(begin).apps
    except ValidationError as error:
        raise BadInput(f"begin: {describe_first_fault(error)}", where=path, fix="mend that field") from None
    except (AttributeError, TypeError, ValueError):
        apps = []
    world = str(raw.get("world", path.stem))
    if not re.fullmatch(WORLD_NAME, world):
        fix = "write world: and a name of lower-case letters, digits and _"
        raise BadInput(f"the suite's name is {world!r}", where=path, fix=fix)
    if not apps or _find_program(apps[0]) is None:
        raise BadInput("the suite opens no application", where=path, fix="write begin: {apps: [[mousepad, notes.txt]]}")
    return {"world": world, "title": str(raw.get("title", "")), "begin": begin}


def _find_program(words: Sequence[str]) -> str | None:
    """Find the program among a command's words, behind `env` and its variables."""
    return next((word for word in words if "=" not in word and word != "env"), None)


@dataclass(frozen=True)
class DesktopFindings:
    """Hold what the exploration of an application found. functions: of the application. tasks: as in a suite's
    manifest, each with its proof. counts: how much was tried and dropped, by name."""

    functions: tuple[DesktopFunction, ...]
    tasks: tuple[tuple[dict[str, Any], dict[str, Any]], ...]
    counts: Mapping[str, int]


async def find_desktop_tasks(
    source: Mapping[str, Any], *, most: int, actions: int, seed: int, say: Callable[[str], None]
) -> DesktopFindings:
    """Explore a desktop application, and try tasks of it; nothing is written. Arguments as for `explore_desktop`.

    Raises EnvError where the application does not open or AT-SPI does not answer, EnvTimeout where the computer does
    not.
    """
    begin = dict(source["begin"])
    app = source["title"] or Path(_find_program(begin["apps"][0])).name
    chosen = ComputerSettings(warm=0, result_bytes=_RESULT_BYTES, timeout_s=60)
    async with WarmPool(lambda: Computer.start(chosen), 0) as warm:
        env = ComputerEnv(warm, lambda task: COMPUTER_VERIFIERS[task.verifier], chosen.timeout_s)
        try:
            explorer = DesktopExplorer(DesktopWalker(env, begin, listens=True), actions)
            await explorer.explore()
            counts = explorer.counts
            counts["functions"] = len(explorer.functions)
            say(f"explored: {len(explorer.functions)} functions")
            plain = DesktopWalker(env, {**begin, "allowed": "gui"}, listens=False)
            scripts = _draw_scripts(explorer.functions, explorer.quit, seed)
            tasks = await _try_scripts(plain, app, scripts, explorer.quit, most, seed, counts)
        finally:
            await env.close()
    return DesktopFindings(tuple(explorer.functions), tuple(tasks), counts)


async def explore_desktop(
    source: Mapping[str, Any], out: Path, *, most: int, actions: int, seed: int, say: Callable[[str], None]
) -> tuple[Path, dict[str, Any]]:
    """Explore a desktop application on isolated computers that it starts, and write tasks of it into `out`.

    Written are the suite WORLD.yaml, and the folder WORLD with funnel.json and details.json, where WORLD is `world` of
    the source; they are replaced. source: from `read_desktop_source`. most: tasks at most. actions: of the exploration
    at most. seed: of the order in which functions are joined, and of the random play that tasks must withstand. say:
    called with lines of progress. Returns the suite's path and the funnel: `site` (WORLD), `seed`, `counts` (how much
    was tried and dropped, by name), `functions` (as `DesktopFunction.to_json`), `tasks` (how many); details.json has
    `proofs` too, by the task's name. Raises BadInput where no task comes of it, or these cannot be written, which is
    checked before; EnvError where the application does not open or AT-SPI does not answer, EnvTimeout where the
    computer does not, DiskFull.
    """
    world = source["world"]
    check_output_place(out, world)
    found = await find_desktop_tasks(source, most=most, actions=actions, seed=seed, say=say)
    tasks, counts = found.tasks, dict(sorted(found.counts.items()))
    funnel = {"site": world, "seed": seed, "counts": counts,
              "functions": [one.to_json() for one in found.functions], "tasks": len(tasks)}  # fmt: skip
    if not tasks:
        told = ", ".join(f"{reason}: {number}" for reason, number in counts.items())
        raise BadInput("no task came of this application", where=world, fix=f"see what was met: {told}")
    ComputerManifest.model_validate({"world": world, "tasks": [one for one, _ in tasks]})
    fields = {"kind": "computer", "world": world, "tasks": [one for one, _ in tasks]}
    with errors_of_place(out):
        with atomic_folder(out / world) as kept:
            write_json(kept / "details.json", funnel | {"proofs": {one["name"]: proof for one, proof in tasks}})
            write_funnel(kept, count_funnel("exploration", world, seed, counts, len(tasks)))
        write_text(out / f"{world}.yaml", yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=1000))
    return out / f"{world}.yaml", funnel


Script = tuple[tuple[DesktopStep, ...], tuple[Action, ...]]


def _draw_scripts(functions: Sequence[DesktopFunction], quit_: DesktopFunction | None, seed: int) -> list[Script]:
    """Draw what may change a file: a function that did so, and one after another of which the last did or saves; and
    where the application keeps its settings only as it ends, a choice, or two of them, and its end."""
    functions = [one for one in functions if one is not quit_]
    kept = [one for one in functions if any(change.kind == "file" for change in one.changes)]
    saves = [one for one in functions if one.steps[-1].name.lower() == "save"]
    saves = saves or [one for one in functions if one.steps[-1].name.lower() == "save all"]
    edits = [
        one for one in functions if any(change.kind == "text" and "text" in change.where for change in one.changes)
    ]
    pairs = [(a, b) for a in [*edits, *kept] for b in (*saves, *kept) if a is not b and a.steps[:2] != b.steps[:2]]
    random.Random(f"pairs {seed}").shuffle(pairs)
    first = [(one.steps, one.actions) for one in kept]
    saved = [((*a.steps, *b.steps), (*a.actions, *b.actions)) for a in edits for b in saves]
    both = [((*a.steps, *b.steps), (*a.actions, *b.actions)) for a, b in pairs[:_PAIRS]]
    ended = []
    if quit_ is not None:
        chosen = [one for one in functions if one not in kept and one.steps[-1].role in _CHOICES]
        more = [(a, b) for a in chosen for b in chosen if a.steps[:-1] != b.steps[:-1]]
        random.Random(f"choices {seed}").shuffle(more)
        parts = [*((one,) for one in chosen), *more[:_PAIRS]]
        ended = [
            (
                tuple(step for one in (*some, quit_) for step in one.steps),
                tuple(action for one in (*some, quit_) for action in one.actions),
            )
            for some in parts
        ]
    return list(dict.fromkeys([*first, *saved, *both, *ended]))


async def _try_scripts(
    walker: DesktopWalker,
    app: str,
    scripts: Sequence[Script],
    quit_: DesktopFunction | None,
    most: int,
    seed: int,
    counts: Counter[str],
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Play scripts in the ordinary environment, twice each; returns the tasks that hold, each with its proof.

    quit_: the function that ends the application: what its end alone writes is no effect of a script that ends with it.
    """
    found: list[tuple[dict[str, Any], dict[str, Any]]] = []
    ends: set[str] = set()
    begin = dict(walker.params)
    plain = {key: value for key, value in begin.items() if key != "hidden"}
    free = [path for path in begin["files"] if _is_hidden(path)]  # a task's state has none of them
    bare: dict[str, str] | None = None  # what the application's end alone leaves
    for steps, actions in scripts:
        if len(found) >= most:
            break
        try:
            start, end = await _play(walker, begin, actions)
            if quit_ is not None and steps[-1] == quit_.steps[-1]:
                bare = (await _play(walker, begin, quit_.actions))[1] if bare is None else bare
                start = bare
            told = describe_end(start, end)
            if not told or json.dumps(told, sort_keys=True) in ends:
                counts["dropped: " + ("another task has the same end" if told else "nothing that lasts changed")] += 1
                continue
            ends.add(json.dumps(told, sort_keys=True))
            if free:
                told["free"] = free
            if not await holds_again(walker, {**plain, **told}, actions):
                counts["dropped: its end state did not come again"] += 1
                continue
        except EnvError as error:
            counts[f"dropped: {error.what[:50]}"] += 1
            continue
        own = plain | ({"probe": told["probe"]} if "probe" in told else {})
        task = {
            "name": f"g{len(found) + 1:04}",
            "instruction": word_steps(app, steps),
            "max_steps": {min(5, len(actions)): 2 * len(actions) + 4},
            "begin": own,
            "end": {key: value for key, value in told.items() if key != "probe"},
        }
        proof = {
            "actions": json.loads(actions_to_json(list(actions))),
            "thoughts": [word_thought(step) for step in steps],
            "replayed": 2,
            "worded_by": "rules",
        }
        found.append((task, proof))
    lucky = await _play_weakly(walker, begin, [one for one, _ in found], seed)
    counts["dropped: solved by random actions"] = len(lucky)
    return [pair for pair in found if pair[0]["name"] not in lucky]


def describe_end(start: Mapping[str, str], end: Mapping[str, str]) -> dict[str, Any]:
    """Describe what a script changed in the home, as the end of a task; {} for nothing that lasts.

    start, end: texts of its files by path. Returns `wanted`, text by path (None: gone) of the changed files; or else,
    for new lines in hidden files of settings, `probe` and `printed`: commands that look for them, and their output.
    """
    changed = [path for path in sorted(start.keys() | end.keys()) if start.get(path) != end.get(path)]
    wanted = {path: end.get(path) for path in changed if not _is_hidden(path)}
    if wanted:
        return {"wanted": wanted}
    new = ((path, line) for path in changed for line in _list_new_settings(start.get(path, ""), end.get(path, "")))
    lines = sorted(new)
    if not lines:
        return {}
    return {"probe": [["grep", "-cxF", "--", line, path] for path, line in lines], "printed": ["1"] * len(lines)}


def _is_hidden(path: str) -> bool:
    return path.startswith(".") or "/." in path


def _list_new_settings(before: str, after: str) -> list[str]:
    """List the lines that a file of settings has anew, without what a program remembers of its windows."""
    found, section, old = [], "", set(before.splitlines())
    for line in after.splitlines():
        section = line if line.startswith("[") else section
        if "=" in line and line not in old and not _REMEMBERED.search(f"{section} {line}"):
            found.append(line)
    return found


async def _play(
    walker: DesktopWalker, params: Mapping[str, Any], actions: Sequence[Action]
) -> tuple[dict[str, str], dict[str, str]]:
    await walker.begin(params)
    await walker.act(Wait())
    start = walker.files
    for action in actions:
        await walker.act(action)
    await walker.act(Wait())
    return start, walker.files


async def holds_again(walker: DesktopWalker, params: Mapping[str, Any], actions: Sequence[Action]) -> bool:
    """Tell whether a script, played as an agent would, solves the task, and not before its last action."""
    result = await walker.begin(params, scored=True)
    for action in (*actions, Wait(), Finished()):
        if result.terminated:
            return False
        last, result = result, await walker.act(action)
        if result.info["score"] == 1:
            return action in (actions[-1], Wait(), Finished()) and last.info["score"] < 1
    return False


async def _play_weakly(
    walker: DesktopWalker, begin: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]], seed: int
) -> set[str]:
    """Play at random; returns the names of the tasks that were solved within their steps."""
    found: set[str] = set()
    most = max((max(one["max_steps"].values()) for one in tasks), default=0)
    for number in range(WEAK_SEEDS if tasks else 0):
        rng = random.Random(f"weak {seed} {number}")
        try:
            await walker.begin(begin)
            start = walker.files
            for step in range(1, most + 1):
                await walker.act(conformance.draw_random_action(rng))
                told = describe_end(start, walker.files)
                for one in tasks:
                    if step <= max(one["max_steps"].values()) and _is_reached(one, told):
                        found.add(one["name"])
        except EnvError:
            continue
    return found


def _is_reached(task: Mapping[str, Any], told: Mapping[str, Any]) -> bool:
    if "wanted" in task["end"]:
        return told.get("wanted") == task["end"]["wanted"]
    return all(probe in told.get("probe", ()) for probe in task["begin"]["probe"])
