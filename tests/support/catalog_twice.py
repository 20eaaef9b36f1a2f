"""Each view and macro of the catalogue computed a second time, in Python from the rows of the tables.

`SECOND`: name -> a function of the rows that gives what the view must have. `KEYS`: name -> the columns of which no two
rows of it have the same. A macro is a function of its arguments too.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime
from itertools import combinations, product
from statistics import fmean, median, stdev
from typing import Any

import yaml

from flywheel.envs.base import verdicts_from_rows

Row = dict[str, Any]
World = dict[str, list[Row]]
SECOND: dict[str, Callable[..., Any]] = {}
KEYS: dict[str, tuple[str, ...]] = {}


def second(*key: str) -> Callable[[Callable], Callable]:
    def named(compute: Callable) -> Callable:
        SECOND[compute.__name__] = compute
        if key:
            KEYS[compute.__name__] = key
        return compute

    return named


def groups(rows: Iterable[Row], *names: str) -> dict[tuple, list[Row]]:
    found = defaultdict(list)
    for row in rows:
        found[tuple(row[name] for name in names)].append(row)
    return found


def pick(row: Row, *names: str) -> Row:
    return {name: row.get(name) for name in names}


def share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def mean(values: Iterable[float]) -> float | None:
    values = [value for value in values if value is not None]
    return fmean(values) if values else None


def count(rows: Iterable[Any], wanted: Callable[[Any], Any]) -> int:
    return sum(bool(wanted(row)) for row in rows)


def wilson(k: float, n: int) -> tuple[float | None, float | None]:
    if not n:
        return None, None
    z = 1.959963984540054
    # The two proportions whose distance from k / n is z standard errors of their own.
    a, b, c = n + z * z, 2 * k + z * z, k * k / n
    root = math.sqrt(max(0.0, b * b - 4 * a * c))
    return max(0.0, (b - root) / (2 * a)), min(1.0, (b + root) / (2 * a))


def proportion(name: str, k: int, n: int) -> Row:
    low, high = wilson(k, n)
    return {name: share(k, n), f"{name}_low": low, f"{name}_high": high}


@second()
def wilson_low(w: World, k: int, n: int) -> float | None:
    return wilson(k, n)[0]


@second()
def wilson_high(w: World, k: int, n: int) -> float | None:
    return wilson(k, n)[1]


# Rollouts and tasks.


def facts_of_tasks(w: World) -> dict[str, Row]:
    return {row["task_id"]: row for row in w["tasks"]}


def by_place(w: World, table: str) -> dict[tuple, Row]:
    return {(row["iteration"], row["trajectory_id"]): row for row in w[table]}


def judged_rollouts(w: World) -> list[Row]:
    """Rollouts whose route has a verdict, each with it and with its template."""
    routes, tasks = by_place(w, "routes"), facts_of_tasks(w)
    found = []
    for row in w["trajectories"]:
        route = routes.get((row["iteration"], row["trajectory_id"]))
        if row["stage"] == "rollout" and row["source"] != "correction" and route and route["success"] is not None:
            found.append({**row, "template": tasks[row["task_id"]]["template"], "success": route["success"]})
    return found


def in_domains(rows: Iterable[Row]) -> list[Row]:
    """Each row in its domain, and in that of all."""
    return [{**row, "domain": domain} for row in rows for domain in {row["domain"]: 0, "all": 0}]


@second("iteration", "domain")
def p_v1(w: World) -> list[Row]:
    found = []
    for (k, domain), rows in groups(in_domains(judged_rollouts(w)), "iteration", "domain").items():
        verified = count(rows, lambda row: row["success"])
        low, high = wilson(verified, len(rows))
        figures = {"verified": verified, "scored": len(rows), "p": verified / len(rows), "low": low, "high": high}
        found.append({"iteration": k, "domain": domain, **figures})
    return found


@second("iteration", "task_id")
def task_success(w: World) -> list[Row]:
    names = ("iteration", "domain", "world", "template", "level", "task_id")
    found = []
    for key, rows in groups(judged_rollouts(w), *names).items():
        won = count(rows, lambda row: row["success"])
        figures = {"samples": len(rows), "verified": won, "success_rate": won / len(rows)}
        found.append(dict(zip(names, key, strict=True)) | figures)
    return found


@second()
def pass_at_k(w: World, n: int, c: int, k: int) -> float | None:
    draws = [any(draw) for draw in combinations([True] * c + [False] * (n - c), k)]
    return mean(draws)


@second("iteration", "domain")
def pass_at(w: World, k: int) -> list[Row]:
    tasks = [row for row in task_success(w) if row["samples"] >= k]
    return [
        {"iteration": iteration, "domain": domain, "tasks": len(rows)}
        | {"pass": fmean(pass_at_k(w, row["samples"], row["verified"], k) for row in rows)}
        for (iteration, domain), rows in groups(in_domains(tasks), "iteration", "domain").items()
    ]


@second("iteration", "domain", "world")
def pass_at_by_world(w: World, k: int) -> list[Row]:
    tasks = [row for row in task_success(w) if row["samples"] >= k]
    return [
        {"iteration": iteration, "domain": domain, "world": world, "tasks": len(rows)}
        | {"pass": fmean(pass_at_k(w, row["samples"], row["verified"], k) for row in rows)}
        for (iteration, domain, world), rows in groups(tasks, "iteration", "domain", "world").items()
    ]


@second()
def live_group(w: World, n: int, c: int, g: int) -> float | None:
    draws = [len(set(draw)) > 1 for draw in combinations([True] * c + [False] * (n - c), g)]
    return mean(draws)


@second("iteration", "domain", "world", "template", "level")
def headroom(w: World) -> list[Row]:
    chosen = {row["iteration"]: yaml.safe_load(row["content"])["rl"]["group_size"] for row in w["parameter_files"]}
    tasks = []
    for row in task_success(w):
        n, c = row["samples"], row["verified"]
        if n > 1:
            k, g = min(8, n), min(max(chosen.get(row["iteration"], 8), 2), n)
            live = live_group(w, n, c, g)
            tasks.append({**row, "k": k, "g": g, "rate": c / n, "pass": pass_at_k(w, n, c, k), "live": live})
    slot = ("world", "template", "level")
    placed = [*tasks, *(row | dict.fromkeys(slot) for row in in_domains(tasks))]
    found = []
    for key, rows in groups(placed, "iteration", "domain", *slot).items():
        n = len(rows)
        gains = [row["pass"] - row["rate"] for row in rows]
        figures = {"pass_at_1": fmean(row["rate"] for row in rows), "pass_at_k": fmean(row["pass"] for row in rows)}
        for name, values in (("headroom", gains), ("live_groups", [row["live"] for row in rows])):
            low, high = wilson(sum(values), n)
            figures |= {name: fmean(values), f"{name}_low": low, f"{name}_high": high}
        most = {"samples": "samples", "k": "k", "group_size": "g"}
        figures |= {name: max(row[of] for row in rows) for name, of in most.items()}
        found.append(dict(zip(("iteration", "domain", *slot), key, strict=True)) | {"tasks": n, **figures})
    return found


@second("iteration", "domain", "world", "template", "level")
def template_success(w: World) -> list[Row]:
    steps = groups(w["steps"], "trajectory_id")
    names = ("iteration", "domain", "world", "template", "level")
    found = []
    for key, rows in groups(judged_rollouts(w), *names).items():
        tasks = [[row["success"] for row in own] for own in groups(rows, "task_id").values()]
        taken = [[step["parse_error"] is not None for step in steps[row["trajectory_id"],]] for row in rows]
        total, invalid = sum(map(len, taken)), sum(map(sum, taken))
        found.append(
            dict(zip(names, key, strict=True))
            | {
                "tasks": len(tasks),
                "samples": max(map(len, tasks)),
                "pass_1": fmean(map(fmean, tasks)),
                "low": wilson_low(w, sum(map(fmean, tasks)), len(tasks)),
                "high": wilson_high(w, sum(map(fmean, tasks)), len(tasks)),
                "pass_k": fmean(map(any, tasks)),
                "mixed": count(tasks, lambda own: len(set(own)) > 1),
                "steps": total,
                "invalid_steps": invalid,
                "invalid_step_fraction": share(invalid, total),
                "invalid_episode_fraction": fmean(map(any, taken)),
            }
        )
    return found


@second("domain", "world", "template", "level")
def matched_templates(w: World, first: int, last: int) -> list[Row]:
    slot = ("world", "template", "level")
    before = {tuple(pick(row, *slot).values()): row for row in template_success(w) if row["iteration"] == first}
    found = []
    for row in template_success(w):
        old = before.get(tuple(pick(row, *slot).values()))
        if row["iteration"] == last and old:
            figures = {"tasks_before": old["tasks"], "tasks_after": row["tasks"], "before": old["pass_1"]}
            figures |= {"after": row["pass_1"], "rise": row["pass_1"] - old["pass_1"]}
            down = math.hypot(row["pass_1"] - row["low"], old["high"] - old["pass_1"])
            up = math.hypot(row["high"] - row["pass_1"], old["pass_1"] - old["low"])
            figures |= {"low": figures["rise"] - down, "high": figures["rise"] + up}
            found.append(pick(row, "domain", *slot) | figures)
    return found


@second("iteration", "domain")
def p_v1_rise(w: World) -> list[Row]:
    found = []
    for k in sorted({row["iteration"] for row in w["tasks"]}):
        for (domain,), rows in groups(in_domains(matched_templates(w, k - 1, k)), "domain").items():
            rises = [row["rise"] for row in rows]
            rise = fmean(rises)
            half = 1.959963984540054 * stdev(rises) / math.sqrt(len(rises)) if len(rises) > 1 else None
            figures = {"before": fmean(row["before"] for row in rows), "after": fmean(row["after"] for row in rows)}
            ends = {"low": None if half is None else rise - half, "high": None if half is None else rise + half}
            found.append({"iteration": k, "domain": domain, "slots": len(rows), **figures, "rise": rise, **ends})
    return found


@second("iteration", "stage", "task_id")
def downsampled_tasks(w: World) -> list[Row]:
    tasks = facts_of_tasks(w)
    return [
        pick(row, "iteration", "stage", "task_id", "world", "template", "level", "groups", "relative_prob", "reason")
        | {"instruction": tasks[row["task_id"]]["instruction"]}
        | {"success_rate": share(row["successes"], row["episodes"])}
        for row in w["curriculum"]
        if row["reason"]
    ]


# Iterations.


def metric(w: World, k: int, domain: str, name: str, of: str = "value") -> float | None:
    asked = (k, "evaluate", domain, f"success_{name}")
    return next(
        (row[of] for row in w["metrics"] if (row["iteration"], row["stage"], row["domain"], row["name"]) == asked), None
    )


def evaluated(w: World, *names: str) -> list[tuple[int, str]]:
    wanted = {f"success_{name}" for name in names}
    rows = [row for row in w["metrics"] if row["stage"] == "evaluate" and row["name"] in wanted]
    return list(groups(rows, "iteration", "domain"))


@second("iteration", "domain")
def held_out_success(w: World) -> list[Row]:
    return [
        {"iteration": k, "domain": domain, "n": metric(w, k, domain, "after", "n")}
        | {name: metric(w, k, domain, name) for name in ("before", "after")}
        | {f"{name}_{end}": metric(w, k, domain, name, end) for name in ("before", "after") for end in ("low", "high")}
        for k, domain in evaluated(w, "before", "after")
    ]


@second("iteration", "domain")
def held_out_success_by_stage(w: World) -> list[Row]:
    figures = {"before": "before", "ct": "ct", "sft": "sft", "rl": "rl", "merged": "after"}
    return [
        {"iteration": k, "domain": domain, "n": metric(w, k, domain, "after", "n")}
        | {name: metric(w, k, domain, of) for name, of in figures.items()}
        for k, domain in evaluated(w, "ct")
        if metric(w, k, domain, "ct") is not None
    ]


@second("iteration", "name")
def funnel(w: World) -> list[Row]:
    def stage(name: str) -> Callable[[Row], bool]:
        return lambda row: row["stage"] == name

    steps = {
        "tasks": ("tasks", lambda row: row["stage"] == "synthesize" and row["split"] == "train"),
        "rollouts": ("trajectories", lambda row: row["stage"] == "rollout" and row["source"] != "correction"),
        "corrections": ("trajectories", lambda row: row["source"] == "correction"),
        "recordings": (
            "trajectories",
            lambda row: row["stage"] == "ingest" and row["source"] not in ("augmentation", "annotation"),
        ),
        "annotations": ("trajectories", lambda row: row["source"] == "annotation"),
        "augmentations": ("trajectories", lambda row: row["source"] == "augmentation"),
        "scored": ("scores", stage("score")),
        "verified": ("routes", lambda row: row["success"]),
        "sft": ("sft", lambda row: True),
        "ct": ("ct", lambda row: True),
        "quarantine": ("quarantine", lambda row: row["source_table"] == "trajectories"),
        "rl_tasks": ("curriculum", lambda row: True),
        "rl_sampled_less": ("curriculum", lambda row: row["reason"]),
        "rl_episodes": ("trajectories", lambda row: row["stage"].startswith("rl-")),
    }
    found = []
    for position, (name, (table, wanted)) in enumerate(steps.items(), 1):
        for (k,), rows in groups(filter(wanted, w[table]), "iteration").items():
            n = len(groups(rows, "trajectory_id")) if name == "scored" else len(rows)
            found.append({"iteration": k, "position": position, "name": name, "rows": n})
    return found


@second("iteration", "stage")
def stage_minutes(w: World) -> list[Row]:
    rows = [row for row in w["metrics"] if row["name"] == "seconds"]
    return [
        {"iteration": k, "stage": stage, "minutes": sum(row["value"] for row in own) / 60}
        for (k, stage), own in groups(rows, "iteration", "stage").items()
    ]


@second()
def learning_curves(w: World) -> list[Row]:
    curves = groups(w["metrics"], "iteration", "stage", "domain", "name").values()
    return [row for curve in curves if len(curve) > 1 for row in curve]


@second("iteration")
def iterations(w: World) -> list[Row]:
    names = {"tasks": "tasks", "trajectories": "rollouts", "recordings": "recordings", "corrections": "corrections"}
    names |= {name: name for name in ("annotations", "augmentations")}
    names |= {f"to_{store}": store for store in ("sft", "ct", "quarantine")}
    rows = {(row["iteration"], row["name"]): row["rows"] for row in funnel(w)}
    p = {row["iteration"]: row for row in p_v1(w) if row["domain"] == "all"}
    promotions = {row["iteration"]: row for row in w["promotions"]}
    found = []
    for k in sorted({k for k, _ in rows}):
        counts = {name: rows.get((k, of), 0) for name, of in names.items()}
        came = sum(
            counts[name] for name in ("trajectories", "recordings", "corrections", "annotations", "augmentations")
        )
        went = counts["to_sft"] + counts["to_ct"]
        domains = [domain for one, domain in evaluated(w, "before", "after") if one == k and domain != "all"]
        held = {
            f"held_out_success{end}": {domain: metric(w, k, domain, name) for domain in domains}
            for end, name in (("_before", "before"), ("", "after"))
        }
        minutes = [row["minutes"] for row in stage_minutes(w) if row["iteration"] == k]
        found.append(
            {"iteration": k, **counts, "conserved": came == went + counts["to_quarantine"], **held}
            | {
                f"p_v1{end}": p[k][of] if k in p else None
                for end, of in (("", "p"), ("_low", "low"), ("_high", "high"))
            }
            | pick(promotions.get(k, {}), "promoted", "model")
            | {"minutes": sum(minutes) if minutes else None}
        )
    return found


@second("iteration")
def fresh_evaluation_files(w: World) -> list[Row]:
    return w["fresh_evaluation_files"]


@second("iteration", "task_id", "sample")
def fresh_evaluations(w: World) -> list[Row]:
    found = []
    for file in w["fresh_evaluation_files"]:
        content = json.loads(file["content"])
        about = {"iteration": file["iteration"], "at": datetime.fromisoformat(content["at"])}
        found += [about | pick(content, "model", "digest") | row for row in content["rows"]]
    return found


# Runs.


@second("iteration", "run_id")
def run_history(w: World) -> list[Row]:
    flows = {row["run_id"]: row for row in w["runs"] if row["kind"] == "flow"}
    found = []
    for row in w["runs"]:
        of = flows.get(row["parent_id"], row) if row["kind"] == "task" else row
        number, _, name = of["name"].partition(" ")
        failed = row["state"] in ("Failed", "Crashed", "TimedOut", "Cancelled")
        more = {"stage": name if number.isdigit() else "", "failed": failed, "message": row["message"] or ""}
        found.append({**row, **more})
    return found


@second("iteration", "stage")
def stage_runs(w: World) -> list[Row]:
    found = []
    for (k, stage), rows in groups(filter(lambda row: row["stage"], run_history(w)), "iteration", "stage").items():
        tasks = [row for row in rows if row["kind"] == "task"]
        flows = sorted(
            (row for row in rows if row["kind"] == "flow"), key=lambda row: (row["started_at"], row["run_id"])
        )
        found.append(
            {"iteration": k, "stage": stage, "tries": len(flows), "failed": count(flows, lambda row: row["failed"])}
            | {"state": flows[-1]["state"], "last_seconds": flows[-1]["seconds"]}
            | {"seconds": sum(row["seconds"] for row in flows), "first_started": flows[0]["started_at"]}
            | {"last_ended": max(row["ended_at"] for row in flows)}
            | {"shards": len({row["name"] for row in tasks} - {f"finish {stage}", f"version {stage}"})}
            | {"retries": sum(max(0, row["attempts"] - 1) for row in tasks)}
        )
    return found


@second("iteration", "stage")
def stage_trend(w: World) -> list[Row]:
    found = []
    for row in stage_runs(w):
        before = [
            one["seconds"]
            for one in stage_runs(w)
            if one["stage"] == row["stage"] and 1 <= row["iteration"] - one["iteration"] <= 10
        ]
        usual = median(before) if before else None
        figures = {"median_before": usual, "ratio": usual and row["seconds"] / usual, "iterations_before": len(before)}
        found.append(pick(row, "iteration", "stage", "seconds") | figures)
    return found


@second("iteration", "run_id")
def failures(w: World) -> list[Row]:
    failed = [row for row in run_history(w) if row["failed"]]
    around = {(row["iteration"], row["parent_id"]) for row in failed}
    return [
        pick(row, "iteration", "stage", "kind", "state", "attempts", "message", "run_id")
        | {"run": row["name"], "ended_at": row["ended_at"] or row["started_at"]}
        for row in failed
        if (row["iteration"], row["run_id"]) not in around
    ]


@second("iteration")
def dvc_lock(w: World) -> list[Row]:
    return w["dvc_lock"]


class AsYaml:
    """Equal to every text that YAML reads as its value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, text: object) -> bool:
        return isinstance(text, str) and yaml.safe_load(text) == self.value

    def __repr__(self) -> str:
        return repr(self.value)


@second("iteration")
def parameter_files(w: World) -> list[Row]:
    return w["parameter_files"]


@second("iteration", "name")
def parameters(w: World) -> list[Row]:
    found = []
    for file in w["parameter_files"]:
        for block, values in yaml.safe_load(file["content"]).items():
            named = {f"{block}.{name}": value for name, value in values.items()} if isinstance(values, dict) else None
            for name, value in (named or {block: values}).items():
                found.append({"iteration": file["iteration"], "name": name, "value": AsYaml(value)})
    return found


@second("iteration", "stage", "role", "path")
def stage_artifacts(w: World) -> list[Row]:
    found = []
    for file in w["dvc_lock"]:
        for stage, entry in yaml.safe_load(file["content"])["stages"].items():
            for role, name in (("input", "deps"), ("output", "outs")):
                for one in entry.get(name, ()):
                    top = one["path"].partition("/")[0]
                    kind = {"data": "partition", "models": "checkpoint"}.get(top, "record")
                    about = {"iteration": file["iteration"], "stage": stage, "role": role, "kind": kind}
                    facts = {"files": one.get("nfiles", 1), "bytes": one["size"], "md5": one["md5"]}
                    found.append(about | {"path": one["path"]} | facts)
    return found


@second("iteration", "trajectory_id", "step", "candidate")
def preference_pairs(w: World) -> list[Row]:
    steps = {(row["iteration"], row["trajectory_id"], row["step"]): row for row in w["steps"]}
    refused = [row for row in w["candidates"] if row["decision"] in ("rejected", "undone")]
    for row in w["trajectories"]:
        first = steps.get((row["iteration"], row.get("parent_id"), row.get("start_step")))
        if row["source"] == "correction" and first:
            refused.append({**first, "trajectory_id": row["trajectory_id"], "candidate": None})
    facts, found = by_place(w, "trajectories"), []
    for row in refused:
        kept = steps.get((row["iteration"], row["trajectory_id"], row["step"]))
        if kept and not (kept["parse_error"] or kept.get("misclick")) and kept.get("action") != row.get("action"):
            pair = pick(row, "iteration", "trajectory_id", "step", "candidate", "weight_version")
            pair |= pick(facts[row["iteration"], row["trajectory_id"]], "task_id", "domain")
            pair |= {"chosen_by": kept["author"]}
            pair |= {f"chosen_{name}": kept.get(name) for name in ("thought", "action", "raw_text")}
            found.append(pair | {f"rejected_{name}": row.get(name) for name in ("raw_text", "token_ids", "logprobs")})
    return found


# People.


@second()
def reviews(w: World) -> list[Row]:
    said = [
        pick(row, "iteration", "reviewer", "comment", "at")
        | {"stage": "review", "subject": row["trajectory_id"], "kind": "trajectory", "decision": row["label"]}
        for row in w["label_history"]
    ]
    return [*w["reviews"], *said]


@second("file", "line")
def label_history(w: World) -> list[Row]:
    return w["label_history"]


@second("reviewer", "trajectory_id")
def labels(w: World) -> list[Row]:
    of_one = groups(w["label_history"], "reviewer", "trajectory_id").values()
    newest = [max(rows, key=lambda row: (row["at"], row["line"])) for rows in of_one]
    return [{name: row[name] for name in row if name not in ("file", "line")} for row in newest]


@second("iteration", "trajectory_id")
def human_labels(w: World) -> list[Row]:
    found = []
    for (k, name), rows in groups(labels(w), "iteration", "trajectory_id").items():
        ((label, most),) = Counter(row["label"] for row in rows).most_common(1)
        asked = sorted((row for row in rows if row["queue"] == "decide"), key=lambda row: row["at"])
        drawn = sorted((row for row in rows if row["queue"] != "decide"), key=lambda row: row["at"])
        if len(rows) == 1:
            state, label = "one reviewer", None
        elif most == len(rows):
            state = "agreed"
        elif 2 * most > len(rows):
            state = "decided"
        else:
            state, label = ("decided", asked[-1]["label"]) if asked else ("to decide", None)
        about = {"iteration": k, "trajectory_id": name, "reviewers": len(rows)}
        found.append(about | {"queue": drawn[0]["queue"] if drawn else None, "state": state, "label": label})
    return found


@second("reviewer_a", "reviewer_b", "domain")
def reviewer_agreement(w: World) -> list[Row]:
    domains = {key: row["domain"] for key, row in by_place(w, "trajectories").items()}
    firsts = [
        min(rows, key=lambda row: (row["at"], row["line"]))
        for rows in groups(w["label_history"], "reviewer", "trajectory_id").values()
    ]
    firsts = [row for row in firsts if row["queue"] != "decide"]
    pairs = defaultdict(list)
    for (k, name), rows in groups(firsts, "iteration", "trajectory_id").items():
        for a, b in combinations(sorted(rows, key=lambda row: row["reviewer"]), 2):
            for domain in {"all", domains.get((k, name))} - {None}:
                pairs[a["reviewer"], b["reviewer"], domain].append((a["label"], b["label"]))
    found = []
    for (a, b, domain), said in pairs.items():
        alike, (ones, others) = count(said, lambda two: two[0] == two[1]), map(Counter, zip(*said, strict=True))
        chance = sum(ones[label] * others[label] for label in ones) / len(said) ** 2
        low, high = wilson(alike, len(said))
        figures = {"n": len(said), "agreement": alike / len(said), "low": low, "high": high, "chance_agreement": chance}
        kappa = (alike / len(said) - chance) / (1 - chance) if chance < 1 else None
        found.append({"reviewer_a": a, "reviewer_b": b, "domain": domain, **figures, "kappa": kappa})
    return found


@second("scorer", "version", "domain", "sampling")
def scorers_vs_humans(w: World) -> list[Row]:
    domains = {key: row["domain"] for key, row in by_place(w, "trajectories").items()}
    settled = {(row["iteration"], row["trajectory_id"]): row for row in human_labels(w)}
    cases = defaultdict(list)
    own = [row for row in w["scores"] if row["scorer"] != "person"]
    routed = [row for row in w["routes"] if row.get("decided_by") != "person"]
    for row in [*own, *({**row, "scorer": "all together", "version": None} for row in routed)]:
        key = row["iteration"], row["trajectory_id"]
        truth = settled.get(key, {"label": None})
        if truth["label"] in ("solved", "not solved") and row["success"] is not None and key in domains:
            samplings = ("any", "random") if truth["queue"] == "random" else ("any",)
            for domain, sampling in product(("all", domains[key]), samplings):
                cases[row["scorer"], row["version"], domain, sampling].append(
                    (row["success"], truth["label"] == "solved")
                )
    found = []
    for (scorer, version, domain, sampling), judged in cases.items():
        verified, solved = count(judged, lambda one: one[0]), count(judged, lambda one: one[1])
        both = count(judged, all)
        about = {"scorer": scorer, "version": version, "domain": domain, "sampling": sampling, "n": len(judged)}
        counts = {"verified": verified, "solved": solved, "true_positives": both}
        found.append(about | counts | proportion("precision", both, verified) | proportion("recall", both, solved))
    return found


@second("scorer", "version", "domain", "truth", "items")
def scorer_accuracy(w: World) -> list[Row]:
    domains = {key: row["domain"] for key, row in by_place(w, "trajectories").items()}
    names = {"solved": True, "not solved": False}
    people = {(row["iteration"], row["trajectory_id"]): names.get(row["label"]) for row in human_labels(w)}
    verifier = {}
    for row in sorted(w["score_history"], key=lambda row: (row["current"] is not False, row["version"])):
        if row["scorer"].startswith("verifier:") and row["success"] is not None:
            verifier[row["iteration"], row["trajectory_id"]] = row["success"]
    truths = {"people": {key: said for key, said in people.items() if said is not None}, "verifier": verifier}
    cases = defaultdict(list)
    for row in w["score_history"]:
        key, scorer = (row["iteration"], row["trajectory_id"]), row["scorer"].partition(":")[0]
        for truth, known in truths.items():
            if key in known and key in domains and scorer not in ("person", truth):
                both = all(key in one for one in truths.values())
                for domain, items in product(("all", domains[key]), ("all", "both") if both else ("all",)):
                    said = (
                        row["success"] if row["success"] is not None else "abstained" if row["abstained"] else "failed"
                    )
                    cases[scorer, row["version"], domain, truth, items].append((said, known[key]))
    found = []
    for key, said in cases.items():
        tp, fp, fn, tn = (said.count(one) for one in product((True, False), repeat=2))
        n, abstained = tp + fp + fn + tn, count(said, lambda one: one[0] == "abstained")
        counts = {"true_positives": tp, "false_positives": fp, "false_negatives": fn, "true_negatives": tn, "n": n}
        counts |= {
            "abstained": abstained,
            "failed": len(said) - n - abstained,
            "abstention_rate": abstained / len(said),
        }
        figures = proportion("precision", tp, tp + fp) | proportion("negative_predictive_value", tn, tn + fn)
        chance = ((tp + fp) * (tp + fn) + (tn + fn) * (tn + fp)) / n**2 if n else None
        kappa = ((tp + tn) / n - chance) / (1 - chance) if n and chance < 1 else None
        figures |= proportion("agreement", tp + tn, n) | {"chance_agreement": chance, "kappa": kappa}
        found.append(dict(zip(KEYS["scorer_accuracy"], key, strict=True)) | counts | figures)
    return found


@second("iteration")
def decision_files(w: World) -> list[Row]:
    return w["decision_files"]


@second("iteration", "trajectory_id")
def route_reviews(w: World) -> list[Row]:
    found = []
    for file in w["decision_files"]:
        for decision in json.loads(file["content"])["decisions"]:
            for row in decision["looked"].get("asked", ()):
                stays = {"solved": "sft", "not solved": "ct"}.get(row["label"], row["destination"])
                names = ("trajectory_id", "domain", "destination", "score", "success", "label", "reviewer", "comment")
                more = {"sampling": row["drawn"], "at": datetime.fromisoformat(row["at"])}
                more |= {"moved": row["destination"] != stays, "end_reason": decision["looked"]["ended"]}
                found.append({"iteration": file["iteration"], **pick(row, *names), **more})
    return found


@second("iteration", "domain", "sampling")
def verifier_vs_humans(w: World) -> list[Row]:
    cases = defaultdict(list)
    for row in route_reviews(w):
        if row["label"] in ("solved", "not solved") and row["success"] is not None:
            for key in product((row["iteration"], None), (row["domain"], "all"), (row["sampling"], "any")):
                cases[key].append((row["success"], row["label"] == "solved"))
    found = []
    for (k, domain, sampling), said in cases.items():
        tp, fp, fn, tn = (said.count(one) for one in ((True, True), (True, False), (False, True), (False, False)))
        about = {"iteration": k, "domain": domain, "sampling": sampling, "n": len(said), "true_positives": tp}
        about |= {"false_positives": fp, "false_negatives": fn, "true_negatives": tn}
        shares = proportion("agreement", tp + tn, len(said)) | proportion("precision", tp, tp + fp)
        found.append(about | shares | proportion("negative_predictive_value", tn, tn + fn))
    return found


# Trajectories.


@second("iteration", "trajectory_id", "step")
def steps_of(w: World, id: str) -> list[Row]:
    return [row for row in w["steps"] if row["trajectory_id"] == id]


@second("iteration", "trajectory_id", "step")
def replay(w: World, id: str) -> list[Row]:
    screens = {(row["iteration"], row["sha256"]): row for row in w["images"]}
    found = []
    for row in steps_of(w, id):
        screen = screens.get((row["iteration"], row["image_sha256"]), {})
        found.append({**row, **pick(screen, "width", "height", "format"), "screen": screen.get("bytes")})
    return found


@second("iteration", "trajectory_id")
def disagreements(w: World) -> list[Row]:
    trajectories = by_place(w, "trajectories")
    judged = [row for row in w["scores"] if row["success"] is not None]
    found = []
    for (k, name), rows in groups(judged, "iteration", "trajectory_id").items():
        if len({row["success"] for row in rows}) > 1:
            scores = [row["score"] for row in rows]
            found.append(
                {"iteration": k, "trajectory_id": name, **pick(trajectories[k, name], "domain", "world")}
                | {of: {row["scorer"]: row[of] for row in rows} for of in ("success", "score")}
                | {"spread": max(scores) - min(scores)}
            )
    return found


@second("iteration", "scorer_a", "version_a", "scorer_b", "version_b")
def scorer_agreement(w: World) -> list[Row]:
    pairs = defaultdict(list)
    judged = [row for row in w["scores"] if row["success"] is not None]
    for (k, _), rows in groups(judged, "iteration", "trajectory_id").items():
        for a, b in combinations(sorted(rows, key=lambda row: row["scorer"]), 2):
            pairs[k, a["scorer"], a["version"], b["scorer"], b["version"]].append((a["success"], b["success"]))
    found = []
    for (k, a, version_a, b, version_b), said in pairs.items():
        alike, p, q = fmean(x == y for x, y in said), fmean(x for x, _ in said), fmean(y for _, y in said)
        chance = p * q + (1 - p) * (1 - q)
        figures = {"judged": len(said), "agreement": alike, "chance_agreement": chance}
        figures |= {"only_a": said.count((True, False)), "only_b": said.count((False, True))}
        kappa = (alike - chance) / (1 - chance) if abs(1 - chance) > 1e-12 else None
        about = {"iteration": k, "scorer_a": a, "version_a": version_a, "scorer_b": b, "version_b": version_b}
        found.append({**about, **figures, "kappa": kappa})
    return found


@second("checkpoint", "trajectory_id")
def trained_on(w: World) -> list[Row]:
    links = groups(w["lineage"], "relation")
    named = {(row["child"], row["parent"]): row.get("times") for row in links["trained on",]}
    trainers = {child for child, _ in named}
    held = groups(links["holds",], "child")
    drawn = {
        (row["child"], one["parent"])
        for row in links["drew from",]
        if row["child"] not in trainers
        for one in held[row["parent"],]
    }
    pairs = named | dict.fromkeys(drawn)
    return [{"checkpoint": model, "trajectory_id": name, "times": n} for (model, name), n in pairs.items()]


@second("iteration", "trajectory_id")
def trajectory_lineage(w: World) -> list[Row]:
    models = defaultdict(set)
    for row in w["lineage"]:
        if row["relation"] == "weights of":
            models[row["child"]].add(row["parent"])
    for row in w["promotions"]:
        models[row["digest"]].add(row["model"])
    runs, tasks, routes = {row["run_id"]: row["name"] for row in w["runs"]}, facts_of_tasks(w), by_place(w, "routes")
    trained, scorers = groups(trained_on(w), "trajectory_id"), groups(w["scores"], "iteration", "trajectory_id")
    names = ("iteration", "stage", "trajectory_id", "source", "status", "steps", "reward", "run_id", "policy_version")
    found = []
    for row in w["trajectories"]:
        key = row["iteration"], row["trajectory_id"]
        judges = sorted(one["scorer"] for one in scorers[key])
        found.append(
            pick(row, *names, "task_id", "domain", "world", "instruction")
            | pick(routes.get(key, {}), "score", "success", "destination", "reason")
            | {"run": runs.get(row["run_id"]), "model": min(models[row["policy_version"]], default=None)}
            | {"split": tasks[row["task_id"]]["split"], "scorer": ", ".join(judges) or None}
            | {"trained_checkpoints": sorted(one["checkpoint"] for one in trained[row["trajectory_id"],])}
        )
    return found


@second("iteration", "trajectory_id")
def lineage_of(w: World, id: str) -> list[Row]:
    return [row for row in trajectory_lineage(w) if row["trajectory_id"] == id]


@second("checkpoint", "relation", "parent")
def model_lineage(w: World, model: str) -> list[Row]:
    depth, edge = {model: 0}, [model]
    for name in edge:
        for row in w["lineage"]:
            if row["child"] == name and row["relation"] == "began from" and row["parent"] not in depth:
                depth[row["parent"]] = depth[name] + 1
                edge.append(row["parent"])
    links = {tuple(pick(row, "child", "relation", "parent", "parent_kind", "times").values()) for row in w["lineage"]}
    found = defaultdict(list)
    for child, relation, parent, kind, times in links:
        if child in depth:
            found[child, relation, None if relation == "trained on" else parent, kind].append(times)
    return [
        dict(zip(("checkpoint", "relation", "parent", "parent_kind"), key, strict=True))
        | {"depth": depth[key[0]], "n": len(all_times)}
        | {"times": sum(known) if (known := [one for one in all_times if one is not None]) else None}
        for key, all_times in found.items()
    ]


@second("iteration", "trajectory_id")
def training_of(w: World, model: str) -> list[Row]:
    names = ("iteration", "trajectory_id", "source", "domain", "world", "task_id", "policy_version", "destination")
    times = {row["trajectory_id"]: row["times"] for row in trained_on(w) if row["checkpoint"] == model}
    rows = [row for row in trajectory_lineage(w) if row["trajectory_id"] in times]
    return [pick(row, *names, "score", "success") | {"times": times[row["trajectory_id"]]} for row in rows]


@second("iteration", "trajectory_id")
def trajectory_outcomes(w: World) -> list[Row]:
    tasks, routes = facts_of_tasks(w), by_place(w, "routes")
    verdicts = {
        (k, name): verdict
        for (k,), rows in groups(sorted(w["scores"], key=lambda row: row["scorer"]), "iteration").items()
        for name, verdict in verdicts_from_rows(rows).items()
    }
    names = ("iteration", "stage", "trajectory_id", "domain", "world", "level", "task_id", "instruction", "source")
    names += ("author", "sample", "status", "steps", "reward", "error", "policy_version", "started_at", "ended_at")
    found = []
    for row in w["trajectories"]:
        key = row["iteration"], row["trajectory_id"]
        route, said = routes.get(key, {}), verdicts.get(key)
        ended = row["ended_at"]
        success, score = route.get("success"), route.get("score")
        found.append(
            pick(row, *names, "run_id", "origin", "licence", "annotator", "skill", "parent_id", "start_step")
            | pick(route, "destination", "reason")
            | pick(tasks[row["task_id"]], "template", "split")
            | {"success": said.v if said and success is None else success, "scorer": said and said.scorer}
            | {"score": said.score if said and score is None else score}
            | {"seconds": ended and (ended - row["started_at"]).total_seconds()}
        )
    return found


@second("iteration", "source", "domain", "world")
def verifier_strength(w: World) -> list[Row]:
    found = []
    for key, rows in groups(w["tasks"], "iteration", "source", "domain", "world").items():
        rates = {row["task_id"]: row["verifier_kill_rate"] for row in rows}
        known = [rate for rate in rates.values() if rate is not None]
        figures = {
            "tasks": len(rates),
            "attacked": len(known),
            "kill_rate": mean(known),
            "weakest": min(known, default=None),
        }
        found.append(dict(zip(("iteration", "source", "domain", "world"), key, strict=True)) | figures)
    return found


@second("task_id")
def held_out_between(w: World, first: int, last: int) -> list[Row]:
    promotions = {row["iteration"]: row for row in w["promotions"]}
    merged = [
        row
        for row in w["lineage"]
        if (row["iteration"], row["stage"], row["relation"]) == (last, "merge", "weights of")
    ]
    if first not in promotions or not merged:
        return []
    held = {
        (row["iteration"], row["task_id"])
        for row in w["tasks"]
        if (row["stage"], row["split"]) == ("synthesize", "eval")
    }
    played = [
        row
        for row in trajectory_outcomes(w)
        if row["stage"] == "evaluate"
        and row["success"] is not None
        and (row["iteration"], row["task_id"]) in held
        and row["iteration"] <= max(first, last)
    ]

    def of(digest: str) -> dict[str, list[Row]]:
        own = [row for row in played if row["policy_version"] == digest]
        newest = max((row["iteration"] for row in own), default=None)
        return {name: rows for (k, name), rows in groups(own, "iteration", "task_id").items() if k == newest}

    before, after = of(promotions[first]["digest"]), of(merged[0]["child"])
    found = []
    for name in before.keys() & after.keys():
        sides = {"before": before[name], "after": after[name]}
        found.append(
            {"task_id": name, **pick(after[name][0], "domain", "world", "instruction")}
            | {side: 2 * count(rows, lambda row: row["success"]) > len(rows) for side, rows in sides.items()}
            | {f"trajectory_{side}": min(row["trajectory_id"] for row in rows) for side, rows in sides.items()}
            | {"model_before": promotions[first]["model"], "model_after": merged[0]["parent"]}
            | pick(promotions.get(last, {}), "promoted")
        )
    return found


@second("iteration", "stage", "trajectory_id")
def episode_ends(w: World) -> list[Row]:
    steps = groups(sorted(w["steps"], key=lambda row: row["step"]), "iteration", "stage", "trajectory_id")
    found = []
    for row in w["trajectories"]:
        key = pick(row, "iteration", "stage", "trajectory_id")
        own = steps.get(tuple(key.values()), [])
        actions = Counter(step.get("action") for step in own if step.get("action") is not None)
        last = own[-1].get("action_type") if own else None
        if row["status"] in ("crashed", "invalid"):
            ending = {"crashed": "the environment crashed", "invalid": "invalid"}[row["status"]]
        elif last in ("finished", "call_user"):
            ending = {"finished": "says it is finished", "call_user": "asks the user"}[last]
        elif row["status"] == "completed":
            ending = "the environment ended it"
        elif 2 * (len(own) - actions.total()) > len(own):
            ending = "limit: most texts held no action"
        elif own and 2 * max(actions.values(), default=0) > len(own):
            ending = "limit: one action, over and over"
        else:
            ending = "limit"
        found.append({**key, "ending": ending})
    return found


@second("ending")
def lost_between(w: World, first: int, last: int) -> list[Row]:
    ends = {row["trajectory_id"]: row["ending"] for row in episode_ends(w)}
    found = defaultdict(list)
    for row in held_out_between(w, first, last):
        if row["before"] and not row["after"]:
            found[ends[row["trajectory_after"]]].append(row)
    return [
        {"ending": ending, "tasks": len(rows), "worlds": sorted({row["world"] for row in rows})}
        | {"example": min(row["trajectory_after"] for row in rows)}
        for ending, rows in found.items()
    ]


# People's time.


@second("file", "line")
def recording_verdicts(w: World) -> list[Row]:
    return w["recording_verdicts"]


@second("iteration", "trajectory_id")
def recording_replays(w: World) -> list[Row]:
    found = []
    for row in w["reviews"]:
        if row["kind"] == "replay":
            numbers = [word for word in row["comment"].split() if word.isdigit()]
            facts = {"verdict": row["decision"], "detail": row["comment"], "step": int(numbers[0]) if numbers else None}
            found.append({"iteration": row["iteration"], "trajectory_id": row["subject"], **facts})
    return found


@second("iteration", "work", "skill")
def people_minutes(w: World) -> list[Row]:
    tasks, place = facts_of_tasks(w), ("iteration", "trajectory_id")
    stores = {store: {tuple(row[name] for name in place) for row in w[store]} for store in ("sft", "ct")}
    steps, pairs = groups(w["steps"], *place), groups(preference_pairs(w), *place)
    played = {(row["iteration"], row["world"], row["template"], row["level"]): row for row in template_success(w)}
    made = [
        row | {"skill": row.get("skill")} for row in w["trajectories"] if row["source"] in ("recording", "annotation")
    ]
    found = []
    for (k, work, skill), rows in groups(made, "iteration", "source", "skill").items():
        keys = [tuple(row[name] for name in place) for row in rows]
        kept = [key for key in keys if any(key in names for names in stores.values())]
        spent = [(row["ended_at"] - row["started_at"]).total_seconds() / 60 for row in rows if row["ended_at"]]
        by_people = sum(step["author"] == "human" for key in kept for step in steps.get(key, ()))
        slots = {(row["world"], tasks[row["task_id"]]["template"], row["level"]) for row in rows}
        liked = [
            (played[k, *slot], played[k + 1, *slot]) for slot in slots if {(k, *slot), (k + 1, *slot)} <= set(played)
        ]
        found.append(
            {"iteration": k, "work": work, "skill": skill, "people": len({row["annotator"] for row in rows} - {None})}
            | {"minutes": sum(spent), "trajectories": len(rows)}
            | {f"to_{store}": count(keys, lambda key, names=names: key in names) for store, names in stores.items()}
            | {"steps": sum(len(steps.get(key, ())) for key in kept)}
            | {"corrections": by_people if work == "annotation" else 0}
            | {"preference_pairs": sum(len(pairs.get(key, ())) for key in kept)}
            | {"like_templates": len(liked) or None}
            | {"success_before": mean(before["pass_1"] for before, _ in liked)}
            | {"success_after": mean(after["pass_1"] for _, after in liked)}
        )
    said = [{**row, "work": "labelling", "subject": row["trajectory_id"]} for row in w["label_history"]]
    answered = [row for row in w["recording_verdicts"] if row["correct"] is not None]
    said += [{**row, "work": "reviewing", "iteration": row["iteration"] or None} for row in answered]
    for rows in groups(said, "work", "reviewer").values():
        rows.sort(key=lambda row: (row["at"], row["line"]))
        for before, row in zip([None, *rows], rows, strict=False):
            gap = (row["at"] - before["at"]).total_seconds() / 60 if before else 0
            row["minutes"] = gap if gap <= 10 else 0
    unknown = dict.fromkeys(("skill", "to_sft", "to_ct", "steps", "corrections", "preference_pairs"))
    unknown |= dict.fromkeys(("like_templates", "success_before", "success_after"))
    for (k, work), rows in groups(said, "iteration", "work").items():
        figures = {"people": len(groups(rows, "reviewer")), "trajectories": len(groups(rows, "subject"))}
        minutes = sum(row["minutes"] for row in rows)
        found.append({"iteration": k, "work": work, "minutes": minutes, **figures, **unknown})
    return found
