"""How far an outcome reward model is right: precision, NPV, F1 and false positives by domain, at 10% abstained.

Trajectories of a workspace, of models at several stages, with the verifier's word as the truth, are divided by template
(a share of them no ORM is trained or calibrated on: `template`) and the others by task: some train, some calibrate,
some test (`task`). Each variant is an ORM of its own, with the same recipe and batches: `whole`; fewer screens; words
hidden; the last screen alone; the agent's words alone. Beside them are `whole` before its RL (`sft_alone`) and `always
yes`. At 10% abstained the tenth whose calibrated probability is nearest to a half is left out, and the others are yes
from a half on; `bands` is what the scorer does by itself. Variants that --out has are not trained again.

With --orm the case `rl_by_orm` follows (`orm_rl.py`): RL from --begin by that ORM and by the verifier, seed by seed.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import orm_rl
from bench_case import BenchCase, emit_case, exit_code

from flywheel.config.workspace import Workspace
from flywheel.rewards.outcome import DomainCalibration, VerdictInput
from flywheel.training.outcome_reward import trainer
from flywheel.training.outcome_reward.labels import LabelledTrajectory, cut_short, load_labelled, share_of
from flywheel.utils.confidence_intervals import wilson_interval
from flywheel.utils.files import write_json

VARIANTS = {
    "whole": VerdictInput(5),
    "final_hidden": VerdictInput(5, final=False),
    "three_screens": VerdictInput(3),
    "one_screen": VerdictInput(1),
    "words_hidden": VerdictInput(5, words=False),
    "last_screen_alone": VerdictInput(1, words=False),
    "words_alone": VerdictInput(0),
    "with_cuts": VerdictInput(5),
}
TEMPLATES, TEST, CALIBRATED = 0.18, 0.25, 0.15  # shares: of templates held out; of the other tasks
ABSTAINED, BINS = 0.1, 10
GOALS = {"precision": 0.90, "npv": 0.95, "f1": 0.84, "false_positive_rate": 0.05}


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="flywheel bench orm", description=__doc__)
    parser.add_argument("--workspace", type=Path, help="with the trajectories; without it nothing is trained on them")
    parser.add_argument("--iterations", default="1-99", help="whose trajectories, such as 3-7")
    parser.add_argument("--begin", type=Path, default=Path("models/base"), help="checkpoint that each ORM starts from")
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--steps", type=int, default=120, help="of SFT")
    parser.add_argument("--rl-steps", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--orm", type=Path, help="checkpoint that rewards RL, such as models/orm@1")
    parser.add_argument("--rl-seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--rl-run-steps", type=int, default=12, help="steps of each RL run")
    parser.add_argument("--out", type=Path, required=True, help="folder of the models and of what they said")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.variants if options.workspace else ():
        if not (options.out / f"{name}.json").exists():
            measure(name, options)
    for arm, seed in [("", 0), *product(orm_rl.ARMS, options.rl_seeds)] if options.orm else ():
        orm_rl.run(arm, seed, options.rl_run_steps, options.begin, options.orm, options.out / "rl")
    said = {path.stem: json.loads(path.read_text()) for path in sorted(options.out.glob("*.json"))}
    cases = [case for split in ("task", "template") for case in compare(split, said)] if "whole" in said else []
    return exit_code(map(emit_case, [*cases, *orm_rl.compare(options.out / "rl")]))


def divide(labelled: Sequence[LabelledTrajectory], seed: int) -> dict[str, list[LabelledTrajectory]]:
    """Divide trajectories into train, calibrate, task and template."""
    parts: dict[str, list[LabelledTrajectory]] = {name: [] for name in ("train", "calibrate", "task", "template")}
    for one in labelled:
        place = share_of(one.task_id, seed)
        held = share_of(one.template, seed) < TEMPLATES
        other = "task" if place < TEST else "calibrate" if place < TEST + CALIBRATED else "train"
        parts["template" if held else other].append(one)
    return parts


def measure(name: str, options: Any) -> None:
    """Train the variant `name`, and write what it says of each trajectory that it was not trained on to --out."""
    first, _, last = options.iterations.partition("-")
    work = options.out / name
    labelled, images = load_labelled(Workspace(options.workspace), (int(first), int(last or first)), work)
    parts = divide(labelled, options.seed)
    trainer.check_labels(parts["train"], str(options.workspace))
    parts["cut"] = cut_short(parts["task"] + parts["template"])
    if name == "with_cuts":
        parts["train"] += cut_short(parts["train"])
    counts = {part: len(some) for part, some in parts.items()}
    print(f"# {name}: {counts}, templates held out: {sorted({one.template for one in parts['template']})}", flush=True)
    recipe = trainer.OrmRecipe(options.begin, VARIANTS[name], options.steps, 0, seed=options.seed)

    def tell(metric: Mapping[str, Any]) -> None:
        if metric["step"] % 10 == 0:
            print(f"# {name}: {metric['stage']} {metric['step']}, {metric['probability']:.3f}", flush=True)

    def ask(written: str) -> None:
        found = {}
        for part in ("calibrate", "task", "template", "cut"):
            said = trainer.compute_yes_probabilities(work / "model", recipe.reads, parts[part], images)
            found[part] = [
                {"id": one.trajectory_id, "domain": one.domain, "template": one.template, "iteration": one.iteration}
                | {"claims": one.claims_success, "truth": one.truth, "p": round(float(p), 6)}
                for one, p in zip(parts[part], said, strict=True)
            ]
        write_json(options.out / f"{written}.json", found)

    trainer.train_verdicts(parts["train"], images, recipe, work / "model", tell)
    if options.rl_steps:
        if name == "whole":
            ask("sft_alone")
        on = replace(recipe, begin=work / "model", sft_steps=0, rl_steps=options.rl_steps)
        trainer.train_verdicts(parts["train"], images, on, work / "model", tell)
    ask(name)


def judged(said: Mapping[str, list[dict]], split: str) -> dict[str, np.ndarray]:
    """Return what an ORM makes of the trajectories of `split`: arrays domain, truth, probability, band (1 certain, 0
    certain not, -1 to review), each [trajectories]. A domain that cannot be calibrated is left out."""
    rows, columns = said[split], {"domain": [], "truth": [], "probability": [], "band": []}
    for domain in sorted({row["domain"] for row in rows}):
        kinds = [
            tuple(sorted(row["p"] for row in said["calibrate"] if (row["domain"], row["truth"]) == (domain, truth)))
            for truth in (True, False)
        ]
        if min(map(len, kinds)) < trainer.LEAST:
            continue
        known, mine = DomainCalibration(*kinds), [row for row in rows if row["domain"] == domain]
        low, high = known.bands(0.05, 0.05)
        p = np.array([row["p"] for row in mine])
        columns["domain"] += [domain] * len(mine)
        columns["truth"] += [row["truth"] for row in mine]
        columns["probability"] += known.probability(p).tolist()
        columns["band"] += np.where(p > high, 1, np.where(p < low, 0, -1)).tolist()
    return {name: np.array(column) for name, column in columns.items()}


def at_ten_percent(probability: np.ndarray) -> np.ndarray:
    """Return 1 for yes, 0 for no, -1 for the tenth nearest to a half."""
    decided = (probability >= 0.5).astype(int)
    decided[np.argsort(np.abs(probability - 0.5), kind="stable")[: round(ABSTAINED * len(probability))]] = -1
    return decided


def rates(decided: np.ndarray, truth: np.ndarray) -> dict[str, tuple[float | None, float, float, int]]:
    """Return, of verdicts (1, 0, -1: none) on trajectories with `truth`, (value, low, high, n) of each figure; n 0 has
    no value. Rates are of what was decided, but for `false_yes_of_not_done` and `abstained`; intervals are Wilson's."""
    yes, no = decided == 1, decided == 0
    hits, false_yes, false_no, rejected = (
        int(one.sum()) for one in (yes & truth, yes & ~truth, no & truth, no & ~truth)
    )
    shares = {
        "precision": (hits, hits + false_yes),
        "npv": (rejected, rejected + false_no),
        "f1": (hits, hits + (false_yes + false_no) / 2),
        "false_positive_rate": (false_yes, false_yes + rejected),
        "false_yes_of_not_done": (false_yes, int((~truth).sum())),
        "abstained": (int((decided == -1).sum()), len(decided)),
    }
    intervals = {name: [round(end, 4) for end in wilson_interval(k, n)] for name, (k, n) in shares.items()}
    return {name: (round(k / n, 4) if n else None, *intervals[name], n) for name, (k, n) in shares.items()}


def calibration_error(probability: np.ndarray, truth: np.ndarray) -> float:
    """Return the expected calibration error over `BINS` bins of equal width."""
    places = np.minimum((probability * BINS).astype(int), BINS - 1)
    gaps = [
        abs(probability[places == k].mean() - truth[places == k].mean()) * (places == k).mean() for k in set(places)
    ]
    return float(sum(gaps))


def compare(split: str, said: Mapping[str, Mapping[str, list[dict]]]) -> list[BenchCase]:
    """Return the cases of one split: figures of `whole`, with those of the other variants beside them."""
    ours = {name: judged(one, split) for name, one in said.items()}
    main = ours["whole"]
    if not len(main["truth"]):
        return []
    truth, domains = main["truth"], sorted(set(main["domain"]))
    ten = {name: rates(at_ten_percent(one["probability"]), one["truth"]) for name, one in ours.items()}
    ten["always_yes"] = rates(np.ones(len(truth), int), truth)
    decided = at_ten_percent(main["probability"])
    masks = {name: main["domain"] == name for name in domains}
    by_domain = {name: rates(decided[mask], truth[mask]) for name, mask in masks.items()}
    cases = []
    for figure, goal in GOALS.items():
        value, low, high, n = ten["whole"][figure]
        worst = figure == "false_positive_rate"
        value = max(one[figure][0] or 0.0 for one in by_domain.values()) if worst else value
        extra = {"n": n, "interval": [low, high], "by_domain": {name: one[figure] for name, one in by_domain.items()}}
        extra["beside"] = {name: one[figure][0] for name, one in ten.items() if name not in ("whole", "always_yes")}
        peer = ten["always_yes"][figure][0]
        met = value is not None and (value <= goal if worst else value >= goal)
        name = f"{split}_{figure}" + ("_worst_domain" if worst else "")
        cases.append(BenchCase("orm", name, "fraction", value, peer, "always yes", None, goal, met, extra))
    by_bands = {name: rates(main["band"][mask], truth[mask]) for name, mask in masks.items()}
    every = rates(main["band"], truth)
    extra = {figure: every[figure] for figure in (*GOALS, "false_yes_of_not_done")} | {
        "by_domain": by_bands,
        "n": len(truth),
    }
    part = ("orm", f"{split}_bands_abstained", "fraction", every["abstained"][0])
    cases.append(BenchCase(*part, None, "", None, None, True, extra))
    errors = {name: calibration_error(one["probability"], one["truth"]) for name, one in ours.items()}
    by = {name: calibration_error(main["probability"][mask], truth[mask]) for name, mask in masks.items()}
    extra = {"n": len(truth), "by_domain": by, "beside": errors}
    cases.append(
        BenchCase("orm", f"{split}_calibration_error", "fraction", errors["whole"], None, "", None, None, True, extra)
    )
    return cases
