"""How often the promotion gate errs: simulated models that are worse, equal or better, and what each costs in tasks.

Two models play the same tasks; they differ on a share of them (the discordance), and in success by a mean difference.
promotes_*: share of runs that promote, for each difference, mean over discordances of 0.1, 0.2 and 0.3; the parts
are told by discordance, with the mean number of tasks played. The peer is a rule of fixed size as it is often seen:
40 tasks, promote where the mean is 0 or more and the lower end of Newcombe's paired 95% interval above -0.15.
No model is played: `flywheel run` prints these rates for the models that it compares.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence

import numpy as np
from bench_case import BenchCase, emit_case, exit_code

from flywheel.config import PromotionSettings
from flywheel.evaluation import gate
from flywheel.utils.confidence_intervals import newcombe_paired_interval

DISCORDANCES = (0.1, 0.2, 0.3)
FIXED_TASKS, FIXED_MARGIN, SUCCESS = 40, 0.15, 0.3  # of the peer; success of the old model where the two agree


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="flywheel bench gate", description=__doc__)
    parser.add_argument("--margin", type=float, default=PromotionSettings().margin, help="promotion.margin")
    parser.add_argument("--tasks", type=int, default=PromotionSettings().tasks, help="promotion.tasks")
    parser.add_argument("--runs", type=int, default=4000, help="simulated, each figure")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args(argv)
    rule = PromotionSettings(margin=options.margin, tasks=options.tasks)
    # difference, and the most (-) or the least (+) that is asked of the share promoted
    asked = {-rule.margin: -rule.type_i_error, -rule.margin / 2: None, 0.0: None, 0.05: None, 0.1: 0.9}
    cases = []
    for difference, goal in asked.items():
        ours, parts = [], {}
        for share in DISCORDANCES:
            share = max(share, abs(difference))
            promoted, tasks = gate.simulate_gate(rule, difference, share, options.seed, options.runs)
            ours.append(promoted)
            parts[f"{share:g}"] = f"{promoted:.3f} after {tasks:.0f} tasks"
        fixed = [_fixed(difference, max(share, abs(difference)), options) for share in DISCORDANCES]
        value, peer = float(np.mean(ours)), float(np.mean(fixed))
        met = goal is None or (max(ours) <= -goal if goal < 0 else value >= goal)
        cases.append(
            emit_case(
                BenchCase(
                    "gate",
                    f"promotes_{difference:+g}",
                    "fraction",
                    value,
                    peer,
                    f"{FIXED_TASKS} tasks, fixed",
                    value / peer if peer else None,
                    abs(goal) if goal else None,
                    met,
                    {
                        "by_discordance": parts,
                        "margin": rule.margin,
                        "tasks": rule.tasks,
                        "runs": options.runs,
                        "seed": options.seed,
                    },
                )
            )
        )
    return exit_code(cases)


def _fixed(difference: float, discordance: float, options) -> float:
    """Share of runs in which the rule of fixed size promotes."""
    gain, loss = (discordance + difference) / 2, (discordance - difference) / 2
    agree = 1 - gain - loss
    rng = np.random.default_rng(options.seed)
    outcomes = rng.multinomial(FIXED_TASKS, [agree * SUCCESS, gain, loss, agree * (1 - SUCCESS)], size=options.runs)
    return float(
        np.mean(
            [
                gained >= lost and newcombe_paired_interval(both, gained, lost, neither)[0] > -FIXED_MARGIN
                for both, gained, lost, neither in outcomes.tolist()
            ]
        )
    )


if __name__ == "__main__":
    raise SystemExit(main())
