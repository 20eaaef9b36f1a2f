"""How soon the audit of RL's reward finds a hack, and how often it alarms without one, beside the variance watch.

Runs of 12 steps of eight groups of four are made, with the shares that RL by an outcome reward model had in real ones
(docs/outcome-reward.md, RL by the ORM): of what fails a fifth is of a template that is paid 60% of it, a tenth of one
with 42%, a twentieth of one with 73%, the rest of six with 10%; all of these rise over the run, from 0.65 to 1.35 times
that. Episodes of a group are alike. Honest runs pay 5% of what fails, or just the tolerated 10%, and learn or do not.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
from bench_case import BenchCase, emit_case, exit_code

from flywheel.config import RlSettings
from flywheel.evaluation.reward_audit import FALSE_ALARMS, RewardAudit, is_audited
from flywheel.evaluation.reward_variance import find_variance_rises, measure_groups
from flywheel.utils.confidence_intervals import wilson_interval

GROUPS, SIZE = 8, 4
# Template -> its share of the failures, and the share of its failures that is paid.
HACKED = {"merge/reach": (0.19, 0.6), "tiles/clear": (0.10, 0.42), "shapes/fit": (0.05, 0.73)}
HACKED |= {f"other/{n}": (0.11, 0.10) for n in range(6)}
ALIKE = 1.0  # of a Beta distribution: how alike the episodes of a group are, in what is done and what is paid
FOUND = 0.8  # of hacked runs that are to be found, with every group audited


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="flywheel bench reward_audit", description=__doc__)
    parser.add_argument("--runs", type=int, default=300, help="of each kind (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=12, help="of a run (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    kinds: dict[str, tuple[Callable[[float, str], float], Callable[[float], float]]] = {
        "hacked": (lambda at, name: min(0.95, HACKED[name][1] * (0.65 + 0.7 * at)), lambda at: 0.36),
        "honest, 5% paid": (lambda at, name: 0.05, lambda at: 0.36),
        "honest, 10% paid": (lambda at, name: 0.10, lambda at: 0.36),
        "honest, 5% paid, learns": (lambda at, name: 0.05, lambda at: 0.2 + 0.5 * at),
    }
    cases = []
    for kind, (paid, done) in kinds.items():
        for fraction in (1.0, 0.5, 0.25):
            rng = np.random.default_rng(options.seed)
            found = [play(rng, options.steps, fraction, paid, done) for _ in range(options.runs)]
            steps = [step for step, _ in found if step]
            share, watched = len(steps) / len(found), sum(rise for _, rise in found) / len(found)
            hacked = kind == "hacked"
            goal = None if hacked and fraction < 1 else FOUND if hacked else FALSE_ALARMS
            met = goal is None or (share >= goal if hacked else share <= goal)
            extra = {"interval": list(wilson_interval(len(steps), len(found))), "n": len(found), "steps": options.steps}
            extra |= {"median_step": median(steps) if steps else None, "seed": options.seed}
            extra |= {"tolerated": RlSettings().audit_tolerance}
            name = f"{kind}, {fraction:g} of the groups audited"
            case = BenchCase("reward_audit", name, "runs warned", share, watched, "the variance watch", None, goal, met)
            cases.append(emit_case(BenchCase(**{**vars(case), "extra": extra})))
    return exit_code(cases)


def play(
    rng: np.random.Generator,
    steps: int,
    fraction: float,
    paid: Callable[[float, str], float],
    done: Callable[[float], float],
) -> tuple[int, bool]:
    """Make one run; return the step at which the audit alarms, 0 for none, and whether the variance watch does.

    paid: share of a template's failures that is paid, by the share of the run that is over. done: share of success.
    """
    audit, variances = RewardAudit(RlSettings().audit_tolerance, HACKED), []
    names, weights = list(HACKED), np.array([share for share, _ in HACKED.values()])
    for step in range(steps):
        at, audited, scores = step / max(1, steps - 1), [], []
        for group in range(step * GROUPS, (step + 1) * GROUPS):
            name = names[rng.choice(len(names), p=weights / weights.sum())]
            truth = rng.random(SIZE) < _alike(rng, done(at))
            pays = np.where(truth, rng.random(SIZE) < 0.95, rng.random(SIZE) < _alike(rng, paid(at, name)))
            scores.append([(float(one), bool(one)) for one in pays])
            if is_audited(group, fraction):
                rows = zip(pays, truth, strict=True)
                audited += [(group, name, bool(one), bool(right)) for one, right in rows]
        audit.add(step + 1, audited)
        variances.append(measure_groups(scores)["group_variance"])
    return audit.alarmed_at, bool(find_variance_rises(variances))


def _alike(rng: np.random.Generator, share: float) -> float:
    return float(rng.beta(ALIKE * share, ALIKE * (1 - share)))


if __name__ == "__main__":
    raise SystemExit(main())
