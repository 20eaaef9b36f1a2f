"""Explore a site breadth first by the accessibility tree of its pages, within budgets, and list its functions."""

from __future__ import annotations

import heapq
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx

from flywheel.envs.base import Task
from flywheel.envs.browser.driver.context import is_within_prefixes
from flywheel.envs.browser.pool import BrowserPool
from flywheel.synthesis.exploration import effects
from flywheel.synthesis.exploration.effects import Change, ServerState
from flywheel.synthesis.exploration.page_view import (
    PageControl,
    PageView,
    TextMasks,
    make_address_kind,
    read_page_view,
    read_visible_text,
)
from flywheel.synthesis.exploration.steps import ControlMissing, ScriptStep, choose_text, play_step
from flywheel.utils.errors import BadInput, EnvError

_MAX_DEPTH = 6  # operations from the start
_MORE_RANKS = 4
_MAX_SAME_KIND = 3  # pages whose addresses differ by numbers alone
_MAX_SAME_FOLDER = 40  # pages of one folder
_MAX_AGAIN = 2  # links of one kind to addresses that others led to
_MAX_SAME_CONTROLS = 12  # controls of one signature on one page that are tried
_RANKS_PER_DEPTH = 32  # so much later comes the next control of one signature: the first of each group come first
_MAX_PAGE_BYTES = 8_000_000
_STATES_PER_PAGE = 4  # of the budget
_MAX_DRAGS = 2  # of things of one signature on one page
_MAX_DIALOGS = 3  # of the browser, one after the other
_MAX_FIELDS = 6  # of one form that are filled in
_MAX_LOST = 3  # replays that may differ before a state is given up
_LEAVES = re.compile(
    r"\b(log ?out|log ?off|sign ?out|shut ?down|(delete|remove|clear|reset|erase) (all|everything)|delete (my )?account"
    r"|drop (table|database))\b",
    re.I,
)
_LOGIN = re.compile(r"\b(log ?in|sign ?in|anmelden|authenticat)", re.I)


@dataclass(frozen=True)
class ExploreBudget:
    """Hold the limits of an exploration. pages: looked at; four times as many states of theirs. megabytes: of
    documents, none above 8. seconds: a safety net alone, as another exploration that they end may find other
    functions."""

    pages: int = 80
    actions: int = 1000
    megabytes: int = 100
    seconds: float = 1200.0


@dataclass(frozen=True)
class SiteFunction:
    """Hold one function of a site: an operation on a control, and what it changes.

    path: the operations that come before, in order. steps: of the operation itself. changes: what it changed. entry,
    after: the page before and after the operation. texts: whole texts of the regions that changed, by place. server:
    what the site's server keeps after it. navigated: for each operation of the path, whether it led to another page.
    earlier: the page before each operation of the path.
    """

    path: tuple[tuple[ScriptStep, ...], ...]
    steps: tuple[ScriptStep, ...]
    changes: tuple[Change, ...]
    entry: PageView
    after: PageView
    texts: dict[str, str]
    server: ServerState
    navigated: tuple[bool, ...]
    earlier: tuple[PageView, ...]

    @property
    def script(self) -> tuple[ScriptStep, ...]:
        """Return all steps from the start."""
        return (*(step for operation in self.path for step in operation), *self.steps)

    @property
    def leads_elsewhere(self) -> bool:
        """Tell whether the function changes nothing but which page is seen."""
        return all(change.kind == "address" for change in self.changes)

    def to_json(self) -> dict[str, Any]:
        """Return the function as the funnel tells it: `page`, `title`, `control` (the steps) and `changes`."""
        told = "; ".join(
            f"{step.do} {step.role} {step.name!r}" + (f" {step.text!r}" if step.text else "") for step in self.steps
        )
        return {
            "page": self.entry.address,
            "title": self.entry.label,
            "control": told,
            "changes": [str(change) for change in self.changes][:6],
        }


@dataclass
class _State:
    key: str
    path: tuple[tuple[ScriptStep, ...], ...]
    navigated: tuple[bool, ...]
    earlier: tuple[PageView, ...]
    view: PageView
    server: ServerState
    lost: int = 0


@dataclass
class ExplorationReport:
    """Hold what the exploration of a site found. start, start_server: the first page, and what its server keeps then.
    functions: in the order found. counts: how much was looked at and left out, by reason. titles: pages by label.
    masks: hide what changes by itself."""

    start: PageView = field(default_factory=PageView)
    functions: list[SiteFunction] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    titles: Counter[str] = field(default_factory=Counter)
    masks: TextMasks = field(default_factory=TextMasks)
    start_server: ServerState = field(default_factory=dict)


class SiteWalker:
    """Run one session of a site at a time; a broken page is replaced by a fresh one at the next `begin`. actions:
    counts those of all sessions."""

    def __init__(self, pool: BrowserPool, task: Task) -> None:
        self._pool, self._task = pool, task
        self._stack = AsyncExitStack()
        self.env: Any = None
        self.actions = 0

    async def __aenter__(self) -> SiteWalker:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def begin(self, seed: int | None = None) -> tuple[PageView, Any]:
        """Begin a fresh session; return its first page and the reset's result. Raises EnvError as `reset` does.

        seed: of the reset; None: the task's.
        """
        if self.env is None or self.env.env.broken:
            await self._stack.aclose()
            self._stack = AsyncExitStack()
            self.env = await self._stack.enter_async_context(self._pool.env())
        result = await self.env.reset(self._task, self._task.seed if seed is None else seed)
        return await read_page_view(self.env.tab), result

    async def do(self, step: ScriptStep, view: PageView, *, jumps: bool = False) -> tuple[PageView, list[Any], Any]:
        """Play one step as `play_step` does, with its arguments, results and errors."""
        done = await play_step(self.env, step, view, jumps=jumps)
        self.actions += len(done[1])
        return done

    def read_server(self) -> ServerState:
        """Read what the session's server keeps; {} where the page has none."""
        backend = self.env.env.backend
        return effects.read_server_state(backend.folder) if backend is not None else {}


class SiteExplorer:
    """Explore a site: `report = await SiteExplorer(...).explore()`.

    pool: opens its pages. task: of a manifest whose reward is always 0. seed: of what is typed.
    """

    def __init__(self, pool: BrowserPool, task: Task, seed: int, budget: ExploreBudget) -> None:
        self._walker, self._seed, self._budget = SiteWalker(pool, task), seed, budget
        self.report = ExplorationReport()
        self._states: dict[str, _State] = {}
        self._queue: list[tuple[float, int, str, tuple[ScriptStep, ...]]] = []
        self._known: set[tuple[str, ...]] = set()  # controls that were met
        self._targets: set[str] = set()  # addresses that links lead to
        self._kinds: Counter[str] = Counter()
        self._led: dict[str, set[str]] = {}  # addresses that links of one name lead to
        self._scopes: set[tuple[str, str]] = set()
        self._typed: dict[tuple[str, str, str], set[tuple[str, str, str]]] = {}  # what typing alone changed
        self._forms: dict[tuple[ScriptStep, ...], tuple[str, str]] = {}  # page and scope, by the steps that send it
        self._tables: dict[str, list[str]] = {}  # cells by column, of all pages
        self._bytes = 0
        self._began = time.monotonic()
        self._here = ""  # key of the state that the walker is in; "" where it must begin anew
        self._view = PageView()
        self._number = 0

    async def explore(self) -> ExplorationReport:
        """Explore until nothing is left or a limit of the budget is reached.

        Raises BadInput where the first page asks for a login or does not open at all.
        """
        report = self.report
        async with self._walker:
            try:
                view, _ = await self._walker.begin()
                for _ in range(_MAX_DIALOGS):
                    if not view.dialog:
                        break
                    view, *_ = await self._walker.do(ScriptStep("accept"), view)
            except EnvError as error:
                raise BadInput(f"the site cannot be opened: {error.what}", where=error.where, fix=error.fix) from None
            if view.dialog:
                raise BadInput("the first page opens dialogs without end", where=view.url, fix="choose another page")
            if view.password and _is_login(view):
                fix = "tell its manifest how to log in: see `login` in docs/third-party.md"
                raise BadInput("the site asks for a login", where=view.url, fix=fix)
            report.start, report.start_server = view, self._walker.read_server()
            self._add_state((), (), (), view, report.start_server)
            while self._queue and not self._spent():
                _, _, key, operation = heapq.heappop(self._queue)
                await self._try(self._states[key], operation)
        report.counts["left untried"] = len(self._queue)
        report.counts["actions"] = self._walker.actions
        return report

    def _spent(self) -> bool:
        counts, budget = self.report.counts, self._budget
        over = {
            "states": counts["states"] >= _STATES_PER_PAGE * budget.pages,
            "actions": self._walker.actions >= budget.actions,
            "megabytes": self._bytes >= budget.megabytes * 1_000_000,
            "seconds": time.monotonic() - self._began >= budget.seconds,
        }
        for name in (name for name, spent in over.items() if spent):
            counts[f"ended by the budget of {name}"] = 1
        return any(over.values())

    # -- states and what can be done there -----------------------------------------------------------------------
    def _add_state(
        self,
        path: tuple[tuple[ScriptStep, ...], ...],
        navigated: tuple[bool, ...],
        earlier: tuple[PageView, ...],
        view: PageView,
        server: ServerState,
    ) -> None:
        key = self._key(view, server)
        if key in self._states:
            return
        counts = self.report.counts
        counts["states"] += 1
        self._states[key] = _State(key, path, navigated, earlier, view, server)
        page, late = urlsplit(view.address).path, 0.5
        self._tables |= {name: cells for name, cells in view.tables.items() if name not in self._tables}
        view = replace(view, tables={**self._tables, **view.tables})
        if ("address", view.address) not in self._known:
            self._known.add(("address", view.address))
            self.report.titles[view.label] += 1
        if ("page", page) not in self._known:
            self._known.add(("page", page))
            late = 0.0
            counts["pages"] += 1
            counts["frames not looked into"] += view.frames
            if not any(one.role != "link" for one in view.controls):
                counts["static pages"] += 1
            if not view.controls and not view.moves:
                counts["pages without controls"] += 1
        if len(path) >= _MAX_DEPTH:
            counts["too deep"] += 1
            return
        ranks: Counter[str] = Counter()
        for control in view.controls:
            identity = (page, control.role, control.name, re.sub(r"\d+", "#", control.place))
            again = control.submits and (page, control.scope) not in self._scopes  # sent elsewhere without an effect
            if (
                control.off
                or (identity in self._known and not again)
                or (control.role in ("link", "clickable") and not control.name)
            ):
                continue
            self._known.add(identity)
            if _LEAVES.search(control.name):
                counts["traps not tried"] += 1
                continue
            ranks[control.signature] += 1
            rank = ranks[control.signature]
            if control.role != "link" and rank > _MAX_SAME_CONTROLS:
                counts["more of the same controls"] += 1
                continue
            weight = 1 if control.role == "link" else _MORE_RANKS  # what a page has often comes late
            for operation in self._list_operations(control, view):
                self._push(len(path) + late, weight * rank, key, operation)
        for move in view.moves:
            ranks[move["signature"]] += 1
            identity = (page, "drag", move["signature"], str(rank := ranks[move["signature"]]))
            if identity not in self._known and rank <= _MAX_DRAGS:
                self._known.add(identity)
                aim = move["onto"] or ("larger" if move["sizes"] else "to the right and down")
                step = ScriptStep("drag", "thing", move["name"], move["place"], aim, named=bool(move["onto"]))
                self._push(len(path) + late, rank, key, (step,))

    def _push(self, depth: float, rank: int, key: str, operation: tuple[ScriptStep, ...]) -> None:
        self._number += 1
        heapq.heappush(self._queue, (depth + rank / _RANKS_PER_DEPTH, self._number, key, operation))

    def _key(self, view: PageView, server: ServerState) -> str:
        return view.key(self.report.masks) + effects.hash_server_state(server)

    def _list_operations(self, control: PageControl, view: PageView) -> Iterator[tuple[ScriptStep, ...]]:
        """List what can be done with a control: each is a tuple of steps that belong together."""
        if control.type in ("file", "color", "hidden"):
            self.report.counts[f"controls of type {control.type}"] += 1
        elif control.scope and (control.takes_text or control.submits or control.tag == "select"):
            form = (urlsplit(view.address).path, control.scope)
            if form not in self._scopes:
                self._scopes.add(form)
                filled = self._fill_form(control.scope, view)
                self._forms[filled] = form
                yield filled
            if control.takes_text and control.suggests:
                yield (ScriptStep.of("type", control, "a"),)
            if control.takes_text:
                yield (ScriptStep.of("click", control),)
        elif control.tag == "select" and not control.multiple:
            if text := _choose_option(control):
                yield (ScriptStep.of("choose", control, text),)
        elif control.takes_text:
            yield (ScriptStep.of("click", control),)
            text = choose_text(control, view, self._seed)
            yield (ScriptStep.of("type", control, text),)
            if control.tag != "textarea":
                yield (ScriptStep.of("type", control, text, enter=True),)
            if control.suggests and control.role != "spinbutton":
                yield (ScriptStep.of("type", control, "a"),)
        elif control.role == "slider":
            yield (ScriptStep.of("slide", control),)
        elif control.role == "link" and control.href:
            if self._follows(control, view):
                yield (ScriptStep.of("click", control),)
        else:
            yield (ScriptStep.of("click", control),)

    def _fill_form(self, scope: str, view: PageView) -> tuple[ScriptStep, ...]:
        """Fill in a form's empty fields, choose in its lists that have nothing chosen, and send it."""
        own = [one for one in view.controls if one.scope == scope and not one.off]
        steps, column = [], ""
        for one in [one for one in own if one.tag == "select" and not one.multiple]:
            held = one.options[one.chosen] if one.chosen >= 0 else ""
            if re.match(r"\s*$|-|choose|select|pick", held, re.I) and (text := _choose_option(one)):
                steps.append(ScriptStep.of("choose", one, text))
                column = column or (text if text.lower() in view.tables else "")
        for one in [one for one in own if one.takes_text and (not one.value or one.required)][:_MAX_FIELDS]:
            steps.append(ScriptStep.of("type", one, choose_text(one, view, self._seed, column)))
        sends = next((one for one in own if one.submits), None)
        if sends is not None:
            return (*steps, ScriptStep.of("click", sends))
        last = steps.pop() if steps else None
        return (*steps, replace(last, enter=True)) if last and last.do == "type" else tuple(steps)

    def _follows(self, link: PageControl, view: PageView) -> bool:
        """Tell whether a link is tried: it leads to an address of the site that no other link led to, of a kind and
        folder of which there are not too many."""
        counts, parts = self.report.counts, urlsplit(link.href)
        if parts.scheme:
            counts["links elsewhere"] += parts.scheme in ("http", "https")
            return parts.scheme == "javascript"
        own = view.url[len(view.url.split("/", 3)[0]) + 2 :].partition("/")[2]
        plain = link.href.split("#")[0] == f"/{own}".split("#")[0]
        target = link.href if plain else link.href.split("#")[0]
        led = self._led.setdefault(link.name, set())
        led.add(target)
        if target == f"/{own}":
            return plain and link.href.endswith("#")
        if target in self._targets:
            return self._leads_anew(link, plain, f"/{own}".partition("?")[0], led)
        self._targets.add(target)
        kind, folder = make_address_kind(link.href), parts.path.rpartition("/")[0] + "/"
        if plain:
            limits = {f"fragments of {kind}": 4 * _MAX_SAME_KIND}
        elif kind == parts.path:  # its address has no number that could go on
            limits = {f"folder {folder}": _MAX_SAME_FOLDER}
        else:
            limits = {f"kind {kind}": _MAX_SAME_KIND, f"folder {folder}": _MAX_SAME_FOLDER}
        for name in limits:
            self._kinds[name] += 1
        if any(self._kinds[name] > most for name, most in limits.items()):
            counts["more pages of the same kind"] += 1
            return False
        return True

    def _leads_anew(self, link: PageControl, plain: bool, page: str, led: set[str]) -> bool:
        """Tell whether a link to an address that another link led to does something else than that: it leads into the
        midst of the page, or its words lead elsewhere on each page (next, previous, home). A few of each are tried."""
        if plain:
            return False
        if "#" in link.href:
            kind, new = f"into pages, from {page}", link.href not in self._targets
            self._targets.add(link.href)
        else:
            kind, new = f"words {link.name}", len(led) > 1
        if not new or self._kinds[kind] >= _MAX_AGAIN:
            return False
        self._kinds[kind] += 1
        return True

    @property
    def _allowed(self) -> tuple[str, ...]:
        return self._walker.env.tab.stack.allowed

    # -- one try --------------------------------------------------------------------------------------------------
    async def _try(self, state: _State, operation: tuple[ScriptStep, ...]) -> None:
        """Carry out an operation in a state, and note what it changed."""
        counts = self.report.counts
        if state.lost >= _MAX_LOST or not operation:
            return
        leads = operation[0].role == "link" and operation[0].href
        new = leads and ("page", urlsplit(urljoin(state.view.url, leads)).path) not in self._known
        if new and counts["pages"] >= self._budget.pages:
            counts["links beyond the budget of pages"] += 1
            return
        try:
            if not await self._return_to(state):
                counts["states that were not the same again"] += 1
                state.lost += 1
                return
            if leads and not await self._is_page(operation[0].href, self._view):
                return
            view, steps = self._view, []
            for step in operation:
                view, *_ = await self._walker.do(step, view, jumps=True)
                steps.append(step)
                for _ in range(_MAX_DIALOGS):
                    if not view.dialog:
                        break
                    accepted = ScriptStep(
                        "accept", "dialog", view.dialog, text="Ada" if view.dialog.startswith("prompt") else ""
                    )
                    steps.append(accepted)
                    view, *_ = await self._walker.do(accepted, view)
                if view.dialog:
                    counts["dialogs without end"] += 1
                    self._here = ""
                    return
        except ControlMissing:
            counts["controls that went away"] += 1
            self._here = ""
        except EnvError as error:
            counts["broken by an action"] += 1
            counts[f"broken: {re.sub(r'[0-9]+', '#', error.what)[:80]}"] += 1
            self._here = ""
        else:
            counts["operations tried"] += 1
            await self._note(state, tuple(steps), view)

    async def _return_to(self, state: _State) -> bool:
        """Bring the walker into a state, by its path from a fresh session; False where another page came of it."""
        if self._here == state.key:
            return True
        view, _ = await self._walker.begin()
        for _ in range(_MAX_DIALOGS):
            if view.dialog:
                view, *_ = await self._walker.do(ScriptStep("accept"), view)
        for operation in state.path:
            for step in operation:
                view, *_ = await self._walker.do(step, view, jumps=True)
        self._here, self._view = state.key, view
        same = state.view.key(self.report.masks) == view.key(self.report.masks) or self.report.masks.learn(
            state.view, view
        )
        return same and self._walker.read_server() == state.server

    async def _note(self, state: _State, steps: tuple[ScriptStep, ...], view: PageView) -> None:
        counts, server = self.report.counts, self._walker.read_server()
        if view.key(self.report.masks) == state.view.key(self.report.masks) and server == state.server:
            counts["operations without an effect"] += 1
            self._view = view
            self._scopes -= {scope for scope in self._scopes if scope == self._forms.get(steps)}
            return
        self._here = ""
        if view.password and _is_login(view):
            counts["pages behind a login"] += 1
            return
        if not is_within_prefixes(view.url, self._allowed):
            counts["left the site"] += 1
            return
        changes = effects.compare_server_states(state.server, server)
        changes += effects.compare_views(self.report.start, state.view, view, self.report.masks)
        told = {(change.kind, change.where, change.after) for change in changes}
        typed = (state.key, steps[0].place, steps[0].text)
        if len(steps) == 1 and steps[0].do == "type" and not steps[0].enter:
            self._typed[typed] = told
        if not changes or (steps[-1].enter and told == self._typed.get(typed)):  # Enter does nothing beyond typing
            counts["operations without an effect"] += 1
            return
        texts = {
            change.where: await read_visible_text(self._walker.env.tab, change.where)
            for change in changes
            if change.kind == "text"
        }
        function = SiteFunction(
            state.path, steps, tuple(changes), state.view, view, texts, server, state.navigated, state.earlier
        )
        self.report.functions.append(function)
        moved = effects.split_address(view.address)[0] != effects.split_address(state.view.address)[0]
        self._add_state((*state.path, steps), (*state.navigated, moved), (*state.earlier, state.view), view, server)

    async def _is_page(self, url: str, view: PageView) -> bool:
        """Tell whether an address answers with a page of a size that can be looked at."""
        counts = self.report.counts
        url = urljoin(view.url, url)
        if urlsplit(url).scheme not in ("http", "https") or url.split("#")[0] == view.url.split("#")[0]:
            return True
        cookies = {one["name"]: one["value"] for one in await self._walker.env.tab.context.cookies()}
        size = 0
        try:
            async with (
                httpx.AsyncClient(verify=False, trust_env=False, cookies=cookies, timeout=10) as client,
                client.stream("GET", url.split("#")[0], follow_redirects=True) as answer,
            ):
                if answer.status_code in (401, 403):
                    counts["pages behind a login"] += 1
                    return False
                if answer.status_code >= 400:
                    counts["broken pages"] += 1
                    return False
                if not answer.headers.get("content-type", "").startswith(("text/html", "application/xhtml")):
                    counts["links to files"] += 1
                    return False
                async for part in answer.aiter_bytes():
                    size += len(part)
                    if size > _MAX_PAGE_BYTES:
                        counts["pages that are too long"] += 1
                        return False
        except httpx.HTTPError:
            counts["pages that do not answer"] += 1
            return False
        finally:
            self._bytes += size
        return True


def _choose_option(control: PageControl) -> str:
    """Return the option after the one that is chosen, or the first; "" where there is no other."""
    others = [
        i for i, text in enumerate(control.options) if i != control.chosen and text and not text.startswith(("-", "…"))
    ]
    later = [i for i in others if i > control.chosen]
    return control.options[(later or others)[0]] if others else ""


def _is_login(view: PageView) -> bool:
    words = [view.title, view.heading, *(one.name for one in view.controls if one.submits or one.role == "button")]
    return any(_LOGIN.search(text) for text in words)
