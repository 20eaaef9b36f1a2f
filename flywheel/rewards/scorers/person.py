"""Leave trajectories to people: their labels (`flywheel review routes`) become this scorer's verdicts."""

from __future__ import annotations

from flywheel.config import Settings
from flywheel.rewards.scorer import PERSON, Need, Score, ScoringInput


class PersonScorer:
    """Give no score: the trajectory waits in quarantine until a person has labelled it; see `Scorer`."""

    name = PERSON
    version = "1"
    needs: frozenset[Need] = frozenset()

    def score(self, case: ScoringInput) -> Score:
        """Return no value, with the reason that `case` waits for a person."""
        return Score(None, "waits for a person")


def open_scorer(settings: Settings) -> PersonScorer:
    """Open the scorer; it reads nothing of `settings`."""
    return PersonScorer()
