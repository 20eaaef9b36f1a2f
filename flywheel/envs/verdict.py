"""Decide V (section 2.3): a verifier's score against the task's threshold, of one scorer or several."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from flywheel.utils.errors import DataError

# A verifier (section 2.5.2): from a task's params and the recorded state of a finished episode to a score in [0, 1].
#
# A pure function, so that stored trajectories can be scored again. 1 is reached only where exactly what was asked is
# done; a part of it, or something beside it, scores less. Each lies with its tasks: a suite's own in its `world.py`, a
# game's own score in `suites/verifiers.py`, a third-party page's reward in `browser/pages/session.py`.

Verifier = Callable[[Mapping[str, Any], Mapping[str, Any]], float]


def apply_verifier(
    verifier: Verifier, name: str, params: Mapping[str, Any], state: Mapping[str, Any], where: str
) -> float:
    """Score a final state by a verifier, in [0, 1].

    name: of the verifier, for messages. params: of the task. state: that it reads. where: the trajectory, for messages.
    Raises DataError for a state that lacks what the verifier reads, or a score out of [0, 1].
    """
    try:
        value = float(verifier(params, state))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError) as error:
        raise DataError(f"verifier {name} cannot read the state: {type(error).__name__} {error}", where=where) from None
    if not 0.0 <= value <= 1.0:
        raise DataError(f"verifier {name} gave {value}, which is not in [0, 1]", where=where)
    return value


# V (section 2.3): whether a trajectory counts as solved, decided here alone.
#
#     V = 1 where score >= threshold, else 0; none where there is no score
#
# The threshold is the task's own: it stands in the table `tasks` since the task was made; a template that names none
# gets `routing.threshold`. The end of an episode, the table `scores`, the route, evaluation, RL and its curriculum all
# compare scores with it.
#
# Several scorers may judge one trajectory. All of them must be satisfied, and the least satisfied one decides:
#
#     one says 0          V = 0, by the lowest score, even if others gave none
#     one gives no score  no V: what could not be judged is neither verified nor failed
#     else                V = 1, by the lowest score


@dataclass(frozen=True)
class Verdict:
    """Hold what one scorer says of one trajectory.

    score: in [0, 1]; None where the scorer gave none, and then `detail` says why. scorer, version: who said it. detail:
    in words, what it adds to its score.
    """

    score: float | None
    threshold: float | None
    scorer: str = ""
    version: str = ""
    detail: str = ""

    @property
    def v(self) -> bool | None:
        """V; None where there is no score in [0, 1], or no threshold to hold it against."""
        if self.score is None or self.threshold is None or not 0.0 <= self.score <= 1.0:
            return None
        return self.score >= self.threshold

    def row(self, trajectory_id: str) -> dict[str, Any]:
        """Make a row of the table `scores` for the trajectory `trajectory_id`."""
        return {"trajectory_id": trajectory_id, **asdict(self), "success": self.v}


def decide_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    """Choose the verdict that counts, of all `verdicts` on a trajectory: the least satisfied one.

    That is one whose V is false, else one without V, else one whose V is true; of several, the lowest score, then the
    first. A verdict without a score where there are none.
    """
    return min(verdicts, key=_verdict_rank, default=Verdict(None, None, detail="no score"))


def _verdict_rank(verdict: Verdict) -> tuple[int, float]:
    place = {False: 0, None: 1, True: 2}[verdict.v]
    return place, 0.0 if verdict.v is None else verdict.score


def verdicts_from_rows(rows: Iterable[Mapping[str, Any]]) -> dict[str, Verdict]:
    """Return the deciding verdict (`decide_verdict`) of each trajectory that has a row, by its id.

    rows: of the table `scores`; they need `trajectory_id`, other columns that a row lacks are empty.
    """
    by_trajectory: dict[str, list[Verdict]] = defaultdict(list)
    for row in rows:
        texts = {name: row.get(name) or "" for name in ("scorer", "version", "detail")}
        by_trajectory[row["trajectory_id"]].append(Verdict(row.get("score"), row.get("threshold"), **texts))
    return {name: decide_verdict(verdicts) for name, verdicts in by_trajectory.items()}
