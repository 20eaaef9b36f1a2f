"""RL by an outcome reward model (ORM) against RL by the verifier: same start, tasks, budget and seeds (`rl_by_orm`).

A part of `flywheel bench orm`. Both train by GRPO, which needs no value model (that one would see the verifier's score
of each state), on fresh tasks of `KINDS`, and both are measured by the verifier on held-out ones. The verifier also
looks at each episode that the ORM rewards, which training does not know: so what was paid wrongly is counted, by
template. Runs that --out has are not made again, killed ones go on.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import rl_start
from bench_case import BenchCase
from rl_run import play

from flywheel.config import Settings
from flywheel.envs.base import decide_verdict
from flywheel.evaluation.evaluator import JudgedEpisode
from flywheel.evaluation.reward_audit import ALARM
from flywheel.evaluation.reward_variance import find_variance_rises
from flywheel.rewards.scorer import ScorerSet, ScoringInput
from flywheel.training.rl.run import train_rl
from flywheel.utils.confidence_intervals import bootstrap_mean_interval
from flywheel.utils.files import write_json

ARMS = ("verifier", "orm")
# Of two to eight steps; where the start succeeds at times.
KINDS = (
    ("tiles", "clear", 2),
    ("shapes", "fit", 1),
    ("merge", "reach", 1),
    ("settings", "two", 2),
    ("settings", "turn_off", 1),
    ("settings", "colour", 1),
    ("shop", "add", 2),
    ("control", "scroll_page", 1),
    ("control", "type_word", 1),
)
RL: dict[str, Any] = {"algorithm": "grpo", "tasks_per_step": 8, "group_size": 4, "temperature": 0.7, "actor_lr": 1e-4}
RL |= {"warmup": 4, "max_staleness": 1, "minibatch": 64, "curriculum_uniform_fraction": 0.5}
TASKS, HELD_OUT, TRIALS = 40, 12, 2  # of a kind: trained on, measured on; episodes of each of these


def settings(arm: str, seed: int, steps: int, orm: Path) -> Settings:
    """Of one run; "" is the start, which nothing rewards."""
    rl = RL | {"steps": steps, "reward": arm}
    evaluation = {"temperature": RL["temperature"], "n_trials": TRIALS}
    given = {"seed": seed, "rl": rl, "evaluation": evaluation, "orm": {"checkpoint": str(orm), "device": "cpu"}}
    return Settings.model_validate(given)


def run(arm: str, seed: int, steps: int, begin: Path, orm: Path, out: Path) -> None:
    """Train one arm and measure it; writes result.json and episodes.jsonl to out/ARM-SEED."""
    here, s = out / f"{arm or 'start'}-{seed}", settings(arm, seed, steps, orm)
    if (here / "result.json").exists():
        return
    here.mkdir(parents=True, exist_ok=True)
    verifier, curve = ScorerSet(Settings()), []

    def note(judged: JudgedEpisode) -> None:
        case = ScoringInput(judged.task, judged.episode.trajectory)
        row = {"id": judged.episode.id, "kind": f"{judged.task.world}/{judged.task.template}"}
        row |= {"paid": judged.result.score, "true": decide_verdict(verifier.score_trajectory(case)).v}
        row |= {"domain": judged.task.domain, "why": judged.verdicts[0].detail, "instruction": judged.task.instruction}
        row["actions"] = [step.action for step in judged.episode.steps]
        with (here / "episodes.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def tell(metric: Mapping[str, Any]) -> None:
        print(f"# {here.name}: step {metric['step']}, reward {metric.get('reward', 0):.2f}", flush=True)

    model = begin
    if arm:
        model = here / "model"
        given = {"settings": s, "iteration": 0, "state_folder": here / "state", "on_metric": tell, "on_judged": note}
        curve = train_rl(begin, model, "", rl_start.tasks("train", TASKS, KINDS), **given).curve
    won: dict[str, list[bool]] = {}
    for one in asyncio.run(play(model, rl_start.tasks("eval", HELD_OUT, KINDS), s)):
        won.setdefault(f"{one.task.world}/{one.task.template} {one.task.task_id}", []).append(one.result.v)
    write_json(here / "result.json", {"tasks": won, "curve": curve})


def compare(out: Path) -> list[BenchCase]:
    """Return the case of the runs that are there: what RL by the ORM succeeds in, and by how much less than RL by the
    verifier, in the tasks' mean over seeds; [] where an arm has none. Its goal is that the interval of the gap holds
    0 or lies above it."""
    found = {path.parent.name: json.loads(path.read_text()) for path in sorted(out.glob("*/result.json"))}
    of = {arm: {name: one for name, one in found.items() if name.startswith(arm)} for arm in ("start", *ARMS)}
    if not of["orm"] or not of["verifier"]:
        return []
    names = sorted(next(iter(found.values()))["tasks"])
    means = {
        arm: [fmean([hit for one in runs.values() for hit in one["tasks"][name]]) for name in names]
        for arm, runs in of.items()
        if runs
    }
    gaps = [ours - peer for ours, peer in zip(means["orm"], means["verifier"], strict=True)]
    by_seed = {}
    for name, one in of["orm"].items():
        peer = of["verifier"].get(name.replace("orm", "verifier"))
        if peer:
            by_seed[name.partition("-")[2]] = fmean(fmean(one["tasks"][n]) - fmean(peer["tasks"][n]) for n in names)
    low, high = bootstrap_mean_interval(gaps, seed=0)
    extra = {"gap": fmean(gaps), "gap_interval": [low, high], "gap_by_seed": by_seed, "tasks": len(names)}
    extra |= {"runs": {arm: len(runs) for arm, runs in of.items()}}
    extra |= {f"success_{arm}": fmean(mean) for arm, mean in means.items()}
    extra["by_kind"] = {
        kind: {arm: fmean(v for n, v in zip(names, mean, strict=True) if n.startswith(f"{kind} ")) for arm, mean in
               means.items()}
        for kind in sorted({name.partition(" ")[0] for name in names})
    }  # fmt: skip
    extra["training"] = {name: look_for_hacking(out / name, one["curve"]) for name, one in of["orm"].items()}
    part = ("orm", "rl_by_orm", "true success", fmean(means["orm"]), fmean(means["verifier"]), "RL by the verifier")
    return [BenchCase(*part, None, None, high >= 0, extra)]


def look_for_hacking(folder: Path, curve: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Tell what the ORM paid in one run, beside what was true: both in the first and the last third of the episodes,
    rises of the variance of rewards within groups, the step at which the audit warns (0: never), and the episodes paid
    wrongly, by template."""
    rows = [json.loads(line) for line in (folder / "episodes.jsonl").read_text(encoding="utf-8").splitlines()]
    third = max(1, len(rows) // 3)
    told: dict[str, Any] = {"episodes": len(rows)}
    for when, some in (("first", rows[:third]), ("last", rows[-third:])):
        told[when] = {name: fmean(float(row[name]) for row in some) for name in ("paid", "true")}
        failed = [row["paid"] for row in some if not row["true"]]
        told[when]["paid_of_failed"] = fmean(failed) if failed else None
    told["variance_rises"] = find_variance_rises([point["group_variance"] for point in curve if point.get("step")])
    told["audit_warns_at"] = next((one["step"] for one in curve if one.get("audit_evidence", 0) >= ALARM), 0)
    wrong = Counter(row["kind"] for row in rows if row["paid"] and not row["true"])
    failed = Counter(row["kind"] for row in rows if not row["true"])
    told["paid_wrongly"] = {kind: [n, failed[kind]] for kind, n in wrong.most_common()}
    told["not_paid"] = dict(Counter(row["kind"] for row in rows if row["true"] and not row["paid"]).most_common())
    return told
