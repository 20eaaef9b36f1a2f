"""List tasks with their runs, and lay the runs of a task side by side, aligned by the states that they came to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
from pydantic import BaseModel, Field

from flywheel.store.catalog import database
from flywheel.ui.explorer.catalog_reader import QUERIES, CatalogReader, NotInStore, Row
from flywheel.ui.explorer.run_alignment import AlignedState, RunAlignment, align_runs
from flywheel.ui.report import replay

MAX_RUNS = 16  # most runs side by side: more columns cannot be read
_FILTERS = ("iteration", "model", "source")


class RunChoice(BaseModel):
    """Hold which runs of a task are shown.

    iteration, model (digest of the weights that acted), source: of the runs; None: any. offset: number of chosen runs
    to leave out first.
    """

    iteration: int | None = Field(None, ge=0, le=10**6)
    model: str | None = Field(None, max_length=200)
    source: str | None = Field(None, max_length=200)
    offset: int = Field(0, ge=0, le=10**6)


def list_tasks(asking: CatalogReader, search: str, offset: int, limit: int) -> list[Row]:
    """List tasks that have runs: those first whose runs end differently, then those with more runs.

    asking: reads the store. search: a part of the instruction, or a task_id; "": all. offset, limit: number of tasks
    before the page, and at most on it. Each row has `task_id`, `instruction`, `domain`, `world`, `template`, `level`,
    `runs`, `judged`, `solved`, `iterations` and `branches` (runs that began within another). Raises as
    `CatalogReader.rows`.
    """
    asked = {"search": search.strip(), "offset": offset, "limit": limit}
    return asking.rows(QUERIES["tasks_with_runs"], asked)


def load_task_runs(asking: CatalogReader, task_id: str, choice: RunChoice) -> dict[str, Any]:
    """Load runs of a task side by side, as a mapping for its page.

    asking: reads the store. choice: which runs; at most `MAX_RUNS`, and with each that began within another also that
    one, as far as there is room. Returns `task`, `choices` (existing iterations, models and sources, and how many runs
    are chosen), `without_steps` (ids of runs without stored steps), and what `lay_side_by_side` returns. Raises
    NotInStore for a task without runs, and as `CatalogReader.ask`.
    """
    return asking.ask(lambda connection: _query_runs(connection, task_id, choice))


def _query_runs(connection: duckdb.DuckDBPyConnection, task_id: str, choice: RunChoice) -> dict[str, Any]:
    def rows(name: str, **values: Any) -> list[Row]:
        return database.query_rows(connection, QUERIES[name], values)

    every = rows("runs_of_task", task=task_id)
    if not every:
        raise NotInStore(f"no run of task {task_id[:80]} is here", fix="it may have been discarded, or rolled back")
    of = {name: getattr(choice, name) for name in _FILTERS}
    column = {"iteration": "iteration", "model": "policy_version", "source": "source"}
    chosen = [row for row in every if all(value in (None, row[column[name]]) for name, value in of.items())]
    shown = _with_parents(every, chosen[choice.offset : choice.offset + MAX_RUNS])
    names, iterations = [row["trajectory_id"] for row in shown], sorted({row["iteration"] for row in shown})
    steps: dict[str, list[Row]] = defaultdict(list)
    for step in rows("steps_of_runs", names=names, iterations=iterations):
        steps[step["trajectory_id"]].append(step)
    digests = sorted({row["policy_version"] for row in every if row["policy_version"]})
    model_of = {row["digest"]: row["model"] for row in rows("models_of_weights", digests=digests)}
    laid = [row for row in shown if steps[row["trajectory_id"]]]
    found = lay_side_by_side(laid, steps)
    for run in found["runs"]:
        run["model"] = model_of.get(run["policy_version"])
    task = database.query_rows(connection, "FROM tasks WHERE task_id = $task LIMIT 1", {"task": task_id})
    return {
        "task": {"task_id": task_id, "instruction": every[0]["instruction"], **(task[0] if task else {})},
        "choices": {
            "iterations": sorted({row["iteration"] for row in every}),
            "models": [{"digest": digest, "model": model_of.get(digest)} for digest in digests],
            "sources": sorted({row["source"] for row in every if row["source"]}),
            "all": len(every),
            "chosen": len(chosen),
            "offset": choice.offset,
            "most": MAX_RUNS,
        },
        "without_steps": [row["trajectory_id"] for row in shown if not steps[row["trajectory_id"]]],
        **found,
    }


def _with_parents(every: Sequence[Row], chosen: Sequence[Row]) -> list[Row]:
    """Return the chosen runs, and as far as there is room those that they began within, in the order of `every`."""
    known = {row["trajectory_id"]: row for row in every}
    names = {row["trajectory_id"] for row in chosen}
    wanted = [row["parent_id"] for row in chosen]
    while wanted and len(names) < MAX_RUNS:
        parent = known.get(wanted.pop(0))
        if parent is not None and parent["trajectory_id"] not in names:
            names.add(parent["trajectory_id"])
            wanted.append(parent["parent_id"])
    return [row for row in every if row["trajectory_id"] in names]


def lay_side_by_side(runs: Sequence[Row], steps: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    """Align runs by their states, as columns and rows of a page.

    runs: rows of the query `runs_of_task`. steps: trajectory_id -> rows of `steps_of_runs`, in order. Returns `runs` in
    the order of their columns, `states`, `steps` of each run, and `levels`, the number of rows. A state has `level`,
    `places` ([column, step]; where the run ended, the step after its last), `screen` and its `iteration`, `ways_in` and
    `ways_out`: how many different states come before and after it, where more than one is a meeting or a fork. The end
    of a run counts as a way out, too.
    """
    aligned = align_runs(_list_keys(runs, steps))
    column = {run: place for place, run in enumerate(aligned.order)}
    ordered = [runs[run] for run in aligned.order]
    place_of = {row["trajectory_id"]: place for place, row in enumerate(ordered)}
    return {
        "runs": [{**row, "parent": place_of.get(row["parent_id"])} for row in ordered],
        "states": [_describe_state(state, column, runs, steps) | ways for state, ways in _count_ways(aligned)],
        "steps": [_describe_steps(steps[row["trajectory_id"]], row) for row in ordered],
        "levels": aligned.levels,
    }


def _list_keys(runs: Sequence[Row], steps: Mapping[str, Sequence[Row]]) -> list[list[tuple]]:
    """List the key of each state of each run: its screen, else the text to read, else its address; behind the last step
    the final screen, else the final state. What is not recorded is like nothing else.

    The steps before a run's `start_step` are those of its parent, so their states are the parent's, also where one of
    the two has lost its screens.
    """
    keys: dict[str, list[tuple]] = {}
    for row in runs:
        name = row["trajectory_id"]
        own: list[tuple] = []
        for step in steps[name]:
            seen = next(((kind, step[kind]) for kind in ("image_sha256", "text", "url") if step[kind]), None)
            own.append(seen or ("unknown", name, step["step"]))
        end = next(((kind, row[kind]) for kind in ("image_sha256", "final_state") if row[kind]), None)
        keys[name] = [*own, end or ("end", name)]
    parents = {row["trajectory_id"]: row["parent_id"] for row in runs}
    for row in sorted(runs, key=lambda row: _count_ancestors(row["trajectory_id"], parents)):
        own, theirs = keys[row["trajectory_id"]], keys.get(row["parent_id"], [])
        for n in range(min(row["start_step"] or 0, len(theirs), len(own))):
            known = own[n] if theirs[n][0] == "unknown" else theirs[n]
            own[n] = theirs[n] = known
    return [keys[row["trajectory_id"]] for row in runs]


def _count_ancestors(name: str, parents: Mapping[str, str | None]) -> int:
    seen: set[str] = set()
    while (parent := parents.get(name)) is not None and parent not in seen:
        seen.add(parent)
        name = parent
    return len(seen)


def _count_ways(aligned: RunAlignment) -> list[tuple[AlignedState, dict[str, int]]]:
    at = {(run, step): number for number, state in enumerate(aligned.states) for run, step in state.places.items()}
    found = []
    for state in aligned.states:
        before = {at.get((run, step - 1)) for run, step in state.places.items()}
        after = {at.get((run, step + 1)) for run, step in state.places.items()}
        found.append((state, {"ways_in": len(before), "ways_out": len(after)}))
    return found


def _describe_state(
    state: AlignedState, column: Mapping[int, int], runs: Sequence[Row], steps: Mapping[str, Sequence[Row]]
) -> Row:
    screen = iteration = None
    for run, step in state.places.items():
        row = runs[run]
        of_run = steps[row["trajectory_id"]]
        seen = of_run[step]["image_sha256"] if step < len(of_run) else row["image_sha256"]
        if seen:
            screen, iteration = seen, row["iteration"]
            break
    places = sorted([column[run], step] for run, step in state.places.items())
    return {"level": state.level, "places": places, "screen": screen, "iteration": iteration}


def _describe_steps(steps: Sequence[Row], run: Row) -> list[Row]:
    """Describe what a run did at each step. still: the state after it looks like the one before it."""
    seen = [step["image_sha256"] or step["text"] for step in steps] + [run["image_sha256"] or run["final_state"]]
    shown = ("step", "author", "thought", "action", "parse_error", "logprob", "reward", "weight_version")
    return [
        {
            **{name: step[name] for name in shown},
            "short": replay.describe_action(step),
            "still": seen[number] is not None and seen[number] == seen[number + 1],
        }
        for number, step in enumerate(steps)
    ]
