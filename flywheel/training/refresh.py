"""Choose the kinds of tasks that the next iteration plays again because the newest model needs them.

It is weak in them, has forgotten them, or solves them only sometimes (`synthesis.refresh`). A kind of task (world,
template, level) has at most one reason, by the model's own rollouts of the last iterations; p is the share that was
solved in the newest of them that played the kind:

  forgotten  in an earlier one of these iterations half or more were solved, and p is at most half of that share
  weak       else, where p is below a fifth
  mixed      else, where some succeeded and some failed

Their weights are how far p has fallen, 1 - E[p], and E[4 p (1 - p)], the means over a Beta distribution of p from the
newest counts and a uniform prior, so that few rollouts say less. What was always solved, and what was not played in
these iterations, has no reason and comes evenly.
"""

from __future__ import annotations

from flywheel.envs.tasks.open_levels import Kind, Outcomes
from flywheel.training.rl.curriculum import mixed_group_probability

_SOLVED, _FALLEN, _WEAK = 0.5, 0.5, 0.2


def find_wanted(outcomes: Outcomes) -> dict[Kind, tuple[str, float]]:
    """Return why the next iteration is to play a kind of task ("forgotten", "weak", "mixed"), and its weight (above 0).

    A kind is (world, template, level); one that is absent is wanted for no reason; {} where nothing was played.
    outcomes: (verified, scored) rollouts by iteration and kind; at least one scored rollout each (ZeroDivisionError).
    """
    wanted: dict[Kind, tuple[str, float]] = {}
    for kind in sorted({kind for ended in outcomes.values() for kind in ended}):
        *earlier, (won, n) = (outcomes[k][kind] for k in sorted(outcomes) if kind in outcomes[k])
        p, best = won / n, max((won / n for won, n in earlier), default=0.0)
        if best >= _SOLVED and p <= _FALLEN * best:
            wanted[kind] = "forgotten", best - p
        elif p < _WEAK:
            wanted[kind] = "weak", (n - won + 1) / (n + 2)
        elif won < n:
            wanted[kind] = "mixed", 2 * mixed_group_probability(won + 1, n - won + 1, 2)
    return wanted
