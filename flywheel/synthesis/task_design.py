"""Design the tasks that people record: rank applications and functions, and list how often to record each task.

UI-TARS-2 report, section 2.4.1.

  score of an application   weighted mean of its measures: coverage, engagement, penetration
  own importance            weighted mean of a function's measures: usage, benefit, transfer
  importance                1 - (1 - own) * product over what requires it of (1 - prerequisites * importance)
  difficulty                points by RUBRIC, levels by LEVELS
  quota                     recordings * the application's part of all scores * the task's part of its importance

Measures are normalised over the file before they are weighed: a number is divided by the largest (with log, the
logarithm of 1 + number), a rank r becomes (n - r + 1) / n, where n is the largest rank. Weights are divided by their
sum. So every score and importance is between 0 and 1, a prerequisite is at least `prerequisites` times as important as
what requires it, and the more requires it, the more important it is.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from flywheel.utils import yaml_text
from flywheel.utils.errors import BadInput, did_you_mean
from flywheel.utils.json_text import describe_first_fault

# The file.

APPLICATION_MEASURES = ("coverage", "engagement", "penetration")
FUNCTION_MEASURES = ("usage", "benefit", "transfer")
Amount = Annotated[float, Field(ge=0)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]
Words = Annotated[str, Field(min_length=1, max_length=300)]
Skill = Literal["novice", "practised", "expert"]
SKILLS = get_args(Skill)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Measure(_Part):
    """Hold how a measure of applications or functions is read. unit: in words, such as "minutes a day". weight: beside
    the others of its kind. rank: whether its numbers are ranks, of which 1 is the highest. log: whether its numbers are
    compared by their logarithm; not for ranks."""

    unit: Words
    weight: Amount = 1.0
    rank: bool = False
    log: bool = False


class Function(_Part):
    """Hold one function of an application: something that can be done in it.

    title: as an order, such as "insert a table of 3 columns". usage, benefit, transfer: measures. requires: functions
    that must be done before, as function or application/function. steps, pages: how many it takes, prerequisites not
    counted. exceptions: obstacles of an expert's task, each a whole sentence. also: functions of other applications, as
    application/function, that an expert's task does before it. queries: own wordings of the task for some skills.
    """

    title: Words
    usage: Amount
    benefit: Amount
    transfer: Amount
    steps: Annotated[int, Field(ge=1)]
    pages: Annotated[int, Field(ge=1)] = 1
    requires: tuple[str, ...] = ()
    exceptions: tuple[Words, ...] = ()
    also: tuple[str, ...] = ()
    queries: dict[Skill, Words] = {}


class Application(_Part):
    """Hold an application: its title, its measures, and its functions by name."""

    title: Words
    coverage: Amount
    engagement: Amount
    penetration: Amount
    functions: Annotated[dict[Name, Function], Field(min_length=1)]


class DesignFile(_Part):
    """Hold the content of a design file. prerequisites: see the module. recordings: wanted over all tasks."""

    measures: dict[str, Measure]
    prerequisites: Annotated[float, Field(ge=0, le=1)] = 0.5
    recordings: Annotated[int, Field(ge=1, le=10**9)] = 100
    applications: Annotated[dict[Name, Application], Field(min_length=1)]

    @model_validator(mode="after")
    def _measured(self) -> DesignFile:
        names = (*APPLICATION_MEASURES, *FUNCTION_MEASURES)
        if missing := [name for name in names if name not in self.measures]:
            raise ValueError(f"measures: {missing[0]} is missing: say its unit")
        if strange := sorted(self.measures.keys() - set(names)):
            raise ValueError(f"measures: there is no {strange[0]}: {did_you_mean(strange[0], names)}")
        for kind in (APPLICATION_MEASURES, FUNCTION_MEASURES):
            if not any(self.measures[name].weight for name in kind):
                raise ValueError(f"measures: one of {', '.join(kind)} needs a weight above 0")
        for app, name, value in self._amounts():
            if self.measures[name].rank and (value < 1 or value % 1):
                raise ValueError(f"{app}: {name} is {value:g}, and ranks are whole numbers from 1 on")
        return self

    def _amounts(self) -> Iterator[tuple[str, str, float]]:
        for app, one in self.applications.items():
            yield from ((app, name, getattr(one, name)) for name in APPLICATION_MEASURES)
            for function, own in one.functions.items():
                yield from ((f"{app}/{function}", name, getattr(own, name)) for name in FUNCTION_MEASURES)


def read_design_file(path: Path) -> DesignFile:
    """Read and check a design file, in YAML or, with the ending .csv, with a row a function (docs/task-design.md).

    Whether the functions that it names exist, `build_graph` checks. Raises BadInput that names file and field.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        raw = _read_csv(text) if path.suffix == ".csv" else yaml_text.parse_yaml(text)
        return DesignFile.model_validate(raw)
    except FileNotFoundError:
        raise BadInput("no such file", where=path, fix="docs/examples/task-design.yaml is one to begin with") from None
    except ValidationError as error:
        raise BadInput(f"not a task design: {describe_first_fault(error)}", where=path, fix="mend that field") from None
    except (OSError, ValueError, yaml.YAMLError, csv.Error) as error:
        raise BadInput(f"not a task design: {error}", where=path, fix="mend that place") from None


_LISTS = ("requires", "exceptions", "also")


def _read_csv(text: str) -> dict[str, Any]:
    """Build the raw design of a CSV: columns are the fields' names, a measure's unit stands behind it in brackets."""
    rows = csv.DictReader(io.StringIO(text), strict=True)
    measures: dict[str, dict[str, Any]] = {}
    fields: dict[str, str] = {}
    for column in rows.fieldnames or ():
        name, _, unit = map(str.strip, column.strip().removesuffix("]").partition("["))
        fields[column] = name
        if unit:
            measures[name] = {"unit": unit, "rank": unit.split()[0] == "rank"}
    if missing := {"application", "function"} - set(fields.values()):
        raise ValueError(f"the column {min(missing)} is missing")
    applications: dict[str, Any] = {}
    for number, row in enumerate(rows, 2):
        if None in row or None in row.values():
            raise ValueError(f"row {number} has not as many cells as there are columns")
        cells = {fields[column]: value.strip() for column, value in row.items() if value.strip()}
        name, function = cells.pop("application", ""), cells.pop("function", "")
        own = {field: cells.pop(key) for key, field in (("application_title", "title"),) if key in cells}
        own |= {key: cells.pop(key) for key in APPLICATION_MEASURES if key in cells}
        app = applications.setdefault(name, {**own, "functions": {}})
        if differs := [key for key in own if app.get(key) != own[key]]:
            raise ValueError(f"row {number}: {differs[0]} of {name} is not what its first row says")
        if function in app["functions"]:
            raise ValueError(f"row {number}: {name}/{function} stands twice")
        lists = {key: [part.strip() for part in cells.pop(key).split(";")] for key in _LISTS if key in cells}
        app["functions"][function] = cells | lists
    for name, app in applications.items():
        app.setdefault("title", name)
    return {"measures": measures, "applications": applications}


# Scores, graphs, importance.


@dataclass(frozen=True)
class DesignNode:
    """Hold a function in the graph of all functions. key: application/function. own: its importance by itself.
    importance: also as a prerequisite of others. requires: keys of its direct prerequisites. before: keys of all, in an
    order in which they can be done."""

    key: str
    application: str
    function: Function
    own: float
    importance: float
    requires: tuple[str, ...]
    before: tuple[str, ...]


def score_applications(design: DesignFile) -> dict[str, float]:
    """Score the applications, by name, the highest first: 0 to 1."""
    scores = _weighted_means(design, APPLICATION_MEASURES, design.applications)
    return dict(sorted(scores.items(), key=lambda one: (-one[1], one[0])))


def build_graph(design: DesignFile, where: object = "") -> dict[str, DesignNode]:
    """Build the graph of all functions by key (application/function), prerequisites before what requires them.

    where: the file, for errors. Raises BadInput for a function that another names and that does not exist, and for a
    cycle of prerequisites, which it names.
    """
    functions = {
        f"{app}/{name}": function
        for app, one in design.applications.items()
        for name, function in one.functions.items()
    }
    requires, also = (
        {key: _resolve(key, field, functions, where) for key in functions} for field in ("requires", "also")
    )
    try:
        order = list(TopologicalSorter(requires).static_order())
    except CycleError as error:
        cycle = " -> ".join(reversed(error.args[1]))
        raise BadInput(f"prerequisites go in a circle: {cycle}", where=where, fix="take one of them out") from None
    own = _weighted_means(design, FUNCTION_MEASURES, functions)
    importance: dict[str, float] = {}
    for key in reversed(order):  # what requires it comes first
        others = (1 - design.prerequisites * importance[one] for one in order if key in requires[one])
        importance[key] = 1 - (1 - own[key]) * math.prod(others)
    nodes: dict[str, DesignNode] = {}
    for key in order:
        before = dict.fromkeys(one for first in requires[key] for one in (*nodes[first].before, first))
        app, function = key.partition("/")[0], functions[key].model_copy(update={"also": also[key]})
        nodes[key] = DesignNode(key, app, function, own[key], importance[key], requires[key], tuple(before))
    return nodes


def _weighted_means(design: DesignFile, names: Sequence[str], items: Mapping[str, Any]) -> dict[str, float]:
    total, found = sum(design.measures[name].weight for name in names), dict.fromkeys(items, 0.0)
    for name in names:
        measure, values = design.measures[name], {key: getattr(one, name) for key, one in items.items()}
        if measure.log and not measure.rank:
            values = {key: math.log1p(value) for key, value in values.items()}
        most = max(values.values())
        for key, value in values.items():
            part = (most - value + 1) / most if measure.rank else value / most if most else 0.0
            found[key] += measure.weight / total * part
    return found


def _resolve(key: str, field: str, functions: Mapping[str, Function], where: object) -> tuple[str, ...]:
    own = key.partition("/")[0]
    found = tuple(one if "/" in one else f"{own}/{one}" for one in getattr(functions[key], field))
    for one in found:
        if one not in functions:
            what = f"{key}: {field} names {one}, which is no function"
            raise BadInput(what, where=where, fix=did_you_mean(one, functions))
    return found


# Difficulty: points of each part of the rubric, and the level of their sum.

RUBRIC: dict[str, tuple[tuple[int, int], ...]] = {  # (at least, points), for each part
    "steps": ((0, 0), (4, 1), (9, 2), (16, 3)),
    "pages": ((0, 0), (2, 1), (4, 2)),
    "prerequisites": ((0, 0), (1, 1), (3, 2)),
    "exceptions": ((0, 0), (1, 1), (2, 2)),
}
LEVELS = ((0, 1), (2, 2), (4, 3), (6, 4), (8, 5))  # (points at least, level)


def rate_difficulty(**counts: int) -> int:
    """Rate a task's difficulty, 1 to 5. counts: one for each part of RUBRIC, 0 or more, else KeyError."""
    points = sum(_last_reached(table, counts[part]) for part, table in RUBRIC.items())
    return _last_reached(LEVELS, points)


def _last_reached(table: Sequence[tuple[int, int]], count: int) -> int:
    return [value for least, value in table if count >= least][-1]


# The list of tasks.


@dataclass(frozen=True)
class DesignTask:
    """Hold one task of the list of tasks to record.

    id: application.function.skill. level: of difficulty, 1 to 5. wanted, recorded: numbers of recordings that are still
    to be made, and that are there. query: the instruction. before: what is done before the recording begins. steps:
    about how many it takes. worded_by: rules, file, a model's name, or rules and why that model's words were not taken.
    """

    id: str
    application: str
    function: str
    skill: Skill
    level: int
    importance: float
    wanted: int
    recorded: int
    query: str
    before: str
    steps: int
    worded_by: str


Wording = Callable[[str, str], str]  # (system, user) -> answer


def list_tasks(
    design: DesignFile,
    nodes: Mapping[str, DesignNode],
    recorded: Callable[[str], int] = lambda query: 0,
    model: tuple[str, Wording] | None = None,
) -> list[DesignTask]:
    """List the tasks with recordings still to be made, in the order in which people should work on them.

    Any prefix has recordings of the applications in proportion to their score, what is recorded included, as far as
    rows, which are not divided, allow. nodes: from `build_graph`. recorded: counts the recordings of a query. model:
    name and `complete` of a language model that words the queries, called once a task that the file does not word; an
    empty answer, one above 600 characters and one that loses a number give way to rules; None: rules do. Raises what
    `complete` raises (LanguageModelError).
    """
    scores = score_applications(design)
    tasks = [task for node in nodes.values() for task in _tasks_of(design, nodes, node, model)]
    quotas: dict[str, int] = {}
    for app, count in _divide(design.recordings, scores).items():
        quotas |= _divide(count, {task.id: task.importance for task in tasks if task.application == app})
    waiting: dict[str, list[DesignTask]] = defaultdict(list)
    done: Counter[str] = Counter()
    for task in sorted(tasks, key=lambda task: (-task.importance, task.function, task.level, SKILLS.index(task.skill))):
        there = recorded(task.query)
        done[task.application] += there
        if quotas[task.id] > there:
            new = {"wanted": quotas[task.id] - there, "recorded": there}
            waiting[task.application].append(DesignTask(**asdict(task) | new))
    listed: list[DesignTask] = []
    while waiting:
        app = min(waiting, key=lambda app: ((done[app] + waiting[app][0].wanted / 2) / scores[app], app))
        listed.append(waiting[app].pop(0))
        done[app] += listed[-1].wanted
        if not waiting[app]:
            del waiting[app]
    return listed


def _divide(count: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Divide `count` by `weights` into whole numbers by the largest remainders."""
    total = math.fsum(weights.values()) or 1.0
    exact = {key: count * weight / total for key, weight in weights.items()}
    found = {key: math.floor(value) for key, value in exact.items()}
    left = round(sum(exact.values())) - sum(found.values())
    for key in sorted(exact, key=lambda key: (found[key] - exact[key], key))[:left]:
        found[key] += 1
    return found


def _tasks_of(
    design: DesignFile, nodes: Mapping[str, DesignNode], node: DesignNode, model: tuple[str, Wording] | None
) -> Iterator[DesignTask]:
    """Yield a function's tasks: by itself; with all that it requires; with exceptions and other applications too."""

    def titles_of(some: Iterable[DesignNode]) -> list[tuple[str, str]]:
        return [(design.applications[one.application].title, one.function.title) for one in some]

    before = [nodes[one] for one in node.before]
    also = [one for key in node.function.also for one in (*(nodes[each] for each in nodes[key].before), nodes[key])]
    scopes: dict[Skill, list[DesignNode]] = {"novice": [node]}
    if before:
        scopes["practised"] = [*before, node]
    if also or node.function.exceptions:
        scopes["expert"] = [*{one.key: one for one in (*also, *before, node)}.values()]
    for skill, scope in scopes.items():
        exceptions = node.function.exceptions if skill == "expert" else ()
        counts = {"steps": sum(one.function.steps for one in scope), "pages": _count_pages(scope)}
        level = rate_difficulty(**counts, prerequisites=len(scope) - 1, exceptions=len(exceptions))
        titles = titles_of(scope)
        query, by = _word_by_rules(titles, exceptions), "rules"
        if skill in node.function.queries:
            query, by = node.function.queries[skill], "file"
        elif model:
            query, by = _word_by_model(model, query, skill, titles, exceptions)
        done = _word_by_rules(titles_of(before), ()) if before and skill == "novice" else ""
        name, function = node.key.partition("/")[::2]
        figures = (level, round(node.importance, 4), 0, 0, query, done, counts["steps"], by)
        yield DesignTask(f"{name}.{function}.{skill}", name, function, skill, *figures)


def _count_pages(scope: Sequence[DesignNode]) -> int:
    """Count the pages of a task: those of each function but the one that the last of its application ended on."""
    return sum(one.function.pages - 1 for one in scope) + len({one.application for one in scope})


def _word_by_rules(titles: Sequence[tuple[str, str]], exceptions: Sequence[str]) -> str:
    """Word a task. titles: of application and function, in the order in which they are done."""
    parts: list[tuple[str, list[str]]] = []
    for app, title in titles:
        if not parts or parts[-1][0] != app:
            parts.append((app, []))
        parts[-1][1].append(title)
    told = [f"in {app}, {', then '.join(orders)}" for app, orders in parts]
    text = "; then, ".join(told)
    return " ".join([f"{text[0].upper()}{text[1:]}.", *exceptions])


_SYSTEM = """You word tasks that people carry out on a computer while they are recorded. Write one task of one to three
sentences, as a person with a purpose would ask for it. It must ask for all that is listed, in that order, and for
nothing else; keep names, numbers and file names. A novice is told where to click in general words; a practised person
the goal alone; an expert the goal and what stands in the way. Answer with the task alone."""


def _word_by_model(
    model: tuple[str, Wording], ruled: str, skill: Skill, titles: Sequence[tuple[str, str]], exceptions: Sequence[str]
) -> tuple[str, str]:
    """Return the model's words and its name; an answer that cannot be a task gives the rules' words, and says so."""
    steps = "\n".join(f"- {app}: {title}" for app, title in titles)
    answer = model[1](_SYSTEM, f"For: {skill}\n{steps}\n" + "".join(f"In the way: {one}\n" for one in exceptions))
    text = " ".join(answer.split())
    numbers = set(re.findall(r"\d+", ruled))
    lost = sorted(numbers - set(re.findall(r"\d+", text)))
    why = "no answer" if not text else "too long" if len(text) > 600 else f"{lost[0]} is lost" if lost else ""
    return (ruled, f"rules, since {model[0]}: {why}") if why else (text, model[0])


# What is written.


def format_csv(tasks: Sequence[DesignTask]) -> str:
    """Format the list of tasks as CSV, with a header: a number from 1, then the fields of `DesignTask`."""
    out = io.StringIO()
    writer = csv.DictWriter(out, ["number", *DesignTask.__dataclass_fields__], lineterminator="\n")
    writer.writeheader()
    writer.writerows({"number": n, **asdict(task)} for n, task in enumerate(tasks, 1))
    return out.getvalue()


def format_json(design: DesignFile, nodes: Mapping[str, DesignNode], tasks: Sequence[DesignTask]) -> str:
    """Format a design as JSON: `measures`, `applications` (scores), `prerequisites`, `graph`, `rubric` and `tasks`.

    nodes, tasks: from `build_graph` and `list_tasks`. The weights of the measures of applications sum to 1, and so do
    those of functions. Scores and importances, 0 to 1, are rounded to 4 decimals.
    """
    graph = {
        key: {"own": round(node.own, 4), "importance": round(node.importance, 4), "requires": node.requires}
        for key, node in nodes.items()
    }
    found = {
        "measures": _normalised(design),
        "applications": {name: round(score, 4) for name, score in score_applications(design).items()},
        "prerequisites": design.prerequisites,
        "graph": graph,
        "rubric": {"points": RUBRIC, "levels": LEVELS},
        "tasks": [asdict(task) for task in tasks],
    }
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def format_markdown(design: DesignFile, nodes: Mapping[str, DesignNode], tasks: Sequence[DesignTask]) -> str:
    """Format a design as a page of Markdown: the tasks to record, then the scores and rules that they follow from.

    nodes, tasks: from `build_graph` and `list_tasks`.
    """
    scores, apps = score_applications(design), {name: one.title for name, one in design.applications.items()}
    by, part = Counter(task.worded_by.partition(",")[0] for task in tasks), sum(scores.values()) or 1.0
    listed, ranked, functions = [], [], []
    for n, task in enumerate(tasks, 1):
        there = f" more ({task.recorded} there)" if task.recorded else ""
        figures = (task.skill, task.level, f"{task.importance:.2f}", f"{task.wanted}{there}")
        listed.append((n, apps[task.application], task.query, task.before, *figures))
    for name, score in scores.items():
        own = [task for task in tasks if task.application == name]
        ranked.append((apps[name], f"{score:.2f}", f"{score / part:.0%}", sum(t.wanted for t in own), len(own)))
    for node in sorted(nodes.values(), key=lambda one: (-scores[one.application], -one.importance, one.key)):
        requires = ", ".join(nodes[one].function.title for one in node.requires)
        functions.append((apps[node.application], node.function.title, requires, *_figures(node.own, node.importance)))
    measures = ((name, one["unit"], *_figures(one["weight"]), one["by"]) for name, one in _normalised(design).items())
    rubric = ((name, *(f"{least} or more" for least, _ in table)) for name, table in RUBRIC.items())
    alone = [node.key for node in nodes.values() if not (node.function.also or node.function.exceptions)]
    levels: Counter[int] = Counter()
    for task in tasks:
        levels[task.level] += task.wanted
    told = ", ".join(f"{who} ({n})" for who, n in sorted(by.items()))
    spread = ", ".join(f"{level}: {n}" for level, n in sorted(levels.items()))
    parts = [
        "# Tasks to record",
        f"{len(tasks)} tasks, {sum(levels.values())} recordings, applications in turn by their score, the most "
        f"important of each first. Recordings by level: {spread or 'none'}. "
        f"Worded by {told or 'nobody'}.",
        _table("# | application | task | set up before | for | level | importance | record", listed),
        "## Applications",
        _table("application | score | part of the recordings | recordings in the list | tasks in the list", ranked),
        "## Measures",
        _table("measure | unit | weight | normalised by", measures),
        "## Functions",
        f"Importance is 1 - (1 - own) x the product, over what requires it, of (1 - {design.prerequisites:g} x its "
        "importance).",
        _table("application | function | requires | own | importance", functions),
        "## Difficulty",
        _table("| 0 points | 1 point | 2 points | 3 points", rubric),
        "Level: " + ", ".join(f"{level} from {least} points on" for least, level in LEVELS) + ".",
        *([f"No task for experts, as neither exceptions nor also are given: {', '.join(alone)}."] if alone else []),
    ]
    return "\n\n".join(parts) + "\n"


def _figures(*values: float) -> Iterator[str]:
    return (f"{value:.2f}" for value in values)


def _normalised(design: DesignFile) -> dict[str, dict[str, Any]]:
    """Describe the measures: unit, weight among those of its kind, and how it is normalised."""
    found = {}
    for kind in (APPLICATION_MEASURES, FUNCTION_MEASURES):
        total = sum(design.measures[name].weight for name in kind)
        for name in kind:
            one = design.measures[name]
            by = (
                "rank: (n - r + 1) / n"
                if one.rank
                else "log(1 + x), over the largest"
                if one.log
                else "over the largest"
            )
            found[name] = {"unit": one.unit, "weight": one.weight / total, "by": by}
    return found


def _table(head: str, rows: Iterable[Sequence[object]]) -> str:
    columns = head.count("|") + 1
    lines = (" | ".join(str(cell).replace("|", "\\|") for cell in (*row, *[""] * (columns - len(row)))) for row in rows)
    return "\n".join(f"| {line} |" for line in (head, " | ".join(["---"] * columns), *lines))
