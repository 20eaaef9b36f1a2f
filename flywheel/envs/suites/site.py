"""Define a site, the framework of suites such as `mail` or `shop`: pages, forms and tasks over records on the server.

    site = Site(Path(__file__).parent, data=make_records)

    @site.page("note/<key>")            # GET  .../note/n3
    def note(visit, key): ...           # -> Page, or None: no such page

    @site.form("note/<key>/delete")     # POST .../note/n3/delete
    def delete(visit, key): ...         # -> path to show next, or None; raise Invalid(field="what is wrong")

    SITE = site

A posted form is answered by a redirect, also where it is refused: the typed values and the error messages wait in the
session's state for the page of the form. So going back in the browser never posts a form twice.
"""

from __future__ import annotations

import contextlib
import functools
import json
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl, urlencode

from flywheel.agent.actions import Action
from flywheel.envs.base import Task
from flywheel.envs.suites import changes, forms, messages
from flywheel.envs.suites.forms import Field, Invalid
from flywheel.envs.suites.screen import Screen
from flywheel.envs.suites.site_tasks import Answer, Redraw, SiteTask, Wanted
from flywheel.utils.errors import BadInput

Records = dict[str, Any]
_ATTEMPTS = 200
_GOALS = 64  # tasks whose expected result is cached: those of episodes played at once
_KEPT = 2000  # characters of a refused field that are shown again
_QUERY = 300  # characters of a query value that are read


@dataclass(frozen=True)
class Page:
    """Hold a page to show: a Jinja template of the site, and the values that it needs."""

    template: str
    values: Mapping[str, Any]

    @classmethod
    def of(cls, template: str, **values: Any) -> Page:
        """Make a page of the template called `template` with these `values`."""
        return cls(template, values)


@dataclass(frozen=True)
class Visit:
    """Hold one request of a session, for the handler of a page or form.

    records: pages read them, forms change them in place. state: of the session (`Site.start`). form: posted values.
    """

    records: Records
    state: dict[str, Any]
    path: str
    query: Mapping[str, str]
    form: Mapping[str, str]
    t: messages.Messages  # visit.t("Text with {name}", name=...) in the session's language

    def read(self, *fields: Field) -> dict[str, str]:
        """Return the checked values of the form's `fields`. Raises Invalid where one is wrong."""
        return forms.read_form(self.form, fields)

    def number(self, name: str, default: int, low: int, high: int) -> int:
        """Return the query's value `name` as an integer, clipped to `low` and `high`; `default` where it is none."""
        text = self.query.get(name, "")
        return min(max(int(text), low), high) if re.fullmatch(r"-?[0-9]{1,9}", text) else default

    def option(self, name: str, options: Sequence[str]) -> str:
        """Return the query's value `name` where it is one of `options`, else the first option."""
        value = self.query.get(name, "")
        return value if value in options else options[0]

    def translate_error(self, wrong: forms.Wrong) -> str:
        """Translate the error message `wrong` of a field into the session's language."""
        return self.t(wrong) if isinstance(wrong, str) else self.t(wrong[0], **wrong[1])

    def notice(self, text: str, **values: Any) -> None:
        """Show a notice on the next page, once. text: with placeholders for `values`."""
        self.state["notice"] = self.t(text, **values)


Handler = Callable[..., Any]


@dataclass
class Site:
    """Hold a site: its page and form handlers, its task templates, and how its records are made.

    folder: holds manifest.json and templates/. data(rng, language): makes the records of a fresh session.
    menu(visit): the entries of the base page's menu, (path, label, badge) each. common(visit): values for every page.
    small: a module with draw, start, view, act and next_step: a smaller edition, on which the templates that the
    manifest names are played (the first screens of a policy that has yet to learn to see). tasks: templates by name.
    """

    folder: Path
    data: Callable[[random.Random, str], Records]
    menu: Callable[[Visit], Sequence[tuple[str, str, str]]] = lambda visit: ()
    common: Callable[[Visit], Mapping[str, Any]] = lambda visit: {}
    small: ModuleType | None = None
    language: str = "en"
    tasks: dict[str, SiteTask] = field(default_factory=dict)
    _pages: list[tuple[re.Pattern[str], Handler]] = field(default_factory=list)
    _forms: list[tuple[re.Pattern[str], Handler]] = field(default_factory=list)
    _editions: dict[str, Site] = field(default_factory=dict, init=False)  # by language

    # -- declaring --------------------------------------------------------------------------------------------------
    def page(self, route: str) -> Callable[[Handler], Handler]:
        """Decorate the handler of a page: (visit, parts of the path) -> Page, or None for no such page.

        route: its path; `<name>` in it stands for one part.
        """
        return _registrar(self._pages, route)

    def form(self, route: str) -> Callable[[Handler], Handler]:
        """Decorate the handler of a posted form: (visit, parts of the path) -> path to show next, or None.

        route: its path; `<name>` in it stands for one part.
        """
        return _registrar(self._forms, route)

    def offer(self, tasks: Iterable[SiteTask]) -> Site:
        """Add task templates and return the site. Raises ValueError where a template's name is taken."""
        for task in tasks:
            if task.name in self.tasks:
                raise ValueError(f"{self.folder.name} has two task templates called {task.name}")
            self.tasks[task.name] = task
        return self

    def speaking(self, language: str) -> Site:
        """Return the site in `language`: the same object each time."""
        if language == self.language:
            return self
        if language not in self._editions:
            self._editions[language] = replace(self, language=language)
        return self._editions[language]

    # -- interface of a suite, called by the catalogue, the server and the oracle --------------------------------------
    @property
    def TEMPLATES(self) -> dict[str, dict[str, Any]]:
        """Return the task templates by name, each as the JSON object of a manifest."""
        return {
            name: {"instruction": "{instruction}", "verifier": "world:score", "max_steps": task.budgets}
            for name, task in self.tasks.items()
        }

    def score(self, params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
        """Score `state` against what the task's `params` ask for: the verifier of all task templates, `world:score`."""
        start, asked = self._fresh(params["seed"]), json.dumps(params, sort_keys=True)
        return self.tasks[params["task"]].score(start, self._wanted(asked), state)

    def answer(self, params: Mapping[str, Any]) -> Answer | None:
        """Return the answer that the task with these `params` asks for; None where it asks for none."""
        return self._wanted(json.dumps(params, sort_keys=True))[2] if params.get("task") in self.tasks else None

    def draw(self, template: str, level: int, rng: random.Random) -> dict[str, Any]:
        """Draw the params of a task: the seed of the records, what the template drew, and the instruction.

        template, level: of the task. rng: of all that is drawn. Raises BadInput where the records drawn never hold what
        the template asks for.
        """
        if self.small and template not in self.tasks:
            return self.small.draw(template, level, rng)
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(Redraw):
                return self.draw_on(rng.randrange(2**31), template, level, rng)
        raise BadInput(
            f"no task of level {level} in {_ATTEMPTS} attempts", where=f"site {self.folder.name}, template {template}"
        )

    def draw_on(self, seed: int, template: str, level: int, rng: random.Random) -> dict[str, Any]:
        """Draw the params of a task of `template` and `level` on the records of `seed`.

        rng: of all else that is drawn. Raises Redraw where these records hold nothing to ask for.
        """
        drawn = self.tasks[template].params(self._fresh(seed), level, rng, self.t)
        return {**drawn, "task": template, "seed": seed}

    @functools.cached_property
    def _wanted(self) -> Callable[[str], Wanted]:
        """Return a cached function from a task's params (JSON) to what they ask for; results must not be changed."""

        @functools.lru_cache(maxsize=_GOALS)
        def wanted(asked: str) -> Wanted:
            params = json.loads(asked)
            return self.tasks[params["task"]].wanted(self._fresh(params["seed"]), params)

        return wanted

    def records(self, params: Mapping[str, Any]) -> Records:
        """Return a copy of the records that a session of the task with these `params` starts with."""
        return changes.copy_records(self._fresh(params["seed"]))

    def _fresh(self, seed: int) -> Records:
        """Return the cached records of a fresh session; callers must not change them."""
        return _made(self.data, self.folder.name, self.language, seed)

    def start(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Make the state of a fresh session of the task with these `params`: JSON values alone."""
        if self.small and "seed" not in params:
            return self.small.start(params)
        return {"records": self.records(params), "page": "", "query": {}, "notice": "", "refused": None}

    def view(self, state: dict[str, Any], path: str, query: Mapping[str, str]) -> tuple[str, dict[str, Any]] | None:
        """Return the template and values of the page at `path`; None where there is no such page.

        state: of the session; the notice and refused form that wait in it are removed. query: of the request.
        """
        if "records" not in state:
            return self.small.view(state, path, query)
        short = {name[:_QUERY]: value[:_QUERY] for name, value in query.items()}
        visit = self._visit(state, path, short, {})
        page = _dispatch(self._pages, visit)
        if page is None:
            return None
        refused, notice = state["refused"], state["notice"]
        mine = refused if refused and refused["page"] == path else None
        state |= {"page": path, "query": short, "notice": "", "refused": None}
        shown = {
            "notice": notice,
            "here": path,
            "query": short,
            "at": site_address(path, **short),
            "menu": self.menu(visit),
            "t": visit.t,
            "language": self.language,
            "errors": mine["errors"] if mine else {},
            "typed": mine["values"] if mine else {},
        }
        return page.template, shown | dict(self.common(visit)) | dict(page.values)

    def act(self, state: dict[str, Any], path: str, form: Mapping[str, str]) -> str | None:
        """Handle a form posted to `path`; returns the page to show next, None where there is no such form.

        state: of the session, changed in place; a refused form changes no records. form: its values by field.
        """
        if "records" not in state:
            return self.small.act(state, path, form)
        visit = self._visit(state, path, {}, form)
        before = changes.copy_records(state["records"])
        try:
            return _dispatch(self._forms, visit)
        except Invalid as refusal:
            state["records"] = before
            back, query = self._form_page(state, form)
            values = {name: value[:_KEPT] for name, value in list(form.items())[:50]}
            errors = {name: visit.translate_error(wrong) for name, wrong in refusal.errors.items()}
            state["refused"] = {"page": back, "values": values, "errors": errors}
            return site_address(back, **query)

    def next_step(self, task: Task, state: Mapping[str, Any], rng: random.Random) -> tuple[str, Action] | None:
        """Return the expert's thought and action on the screen that `state` describes; None if nothing is left to do.

        task: being played. rng: of the wording.
        """
        if "records" not in state:
            return self.small.next_step(task, state, rng)
        return self.tasks[task.template].steps(Screen(state, rng, self.t), task.params)

    @property
    def t(self) -> messages.Messages:
        """Return the catalogue of the site's messages in its language."""
        return messages.load_messages(self.folder, self.language)

    def _form_page(self, state: dict[str, Any], form: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
        """Return path and query of a form's page, from its field `_at`: another tab may have moved on."""
        path, _, query = form.get("_at", "").partition("?")
        if any(pattern.fullmatch(path) for pattern, _ in self._pages):
            return path, dict(parse_qsl(query))
        return state["page"], state["query"]

    def _visit(self, state: dict[str, Any], path: str, query: Mapping[str, str], form: Mapping[str, str]) -> Visit:
        return Visit(state["records"], state, path, query, form, self.t)


@functools.lru_cache(maxsize=256)
def _made(data: Callable[[random.Random, str], Records], site: str, language: str, seed: int) -> Records:
    return data(random.Random(f"{site} {language} {seed}"), language)


def site_address(path: str, **query: object) -> str:
    """Join a path and a query for links and redirects; empty values are left out."""
    kept = {name: value for name, value in query.items() if value not in ("", None)}
    return f"{path}?{urlencode(kept)}" if kept else path


def _registrar(table: list[tuple[re.Pattern[str], Handler]], route: str) -> Callable[[Handler], Handler]:
    pattern = re.compile("".join(_part(part) for part in re.split(r"(<\w+>)", route)))

    def register(handler: Handler) -> Handler:
        table.append((pattern, handler))
        return handler

    return register


def _part(text: str) -> str:
    return f"(?P{text}[^/]+)" if text.startswith("<") else re.escape(text)


def _dispatch(table: list[tuple[re.Pattern[str], Handler]], visit: Visit) -> Any:
    for pattern, handler in table:
        if found := pattern.fullmatch(visit.path):
            return handler(visit, **found.groupdict())
    return None
