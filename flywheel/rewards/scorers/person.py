"""Leave a trajectory to people: what they say of it (`flywheel review routes`) becomes this scorer's verdict."""

from __future__ import annotations

from flywheel.config import Settings
from flywheel.rewards.scorer import PERSON, Need, Score, ScoringInput


class PersonScorer:
    """Give no score: the trajectory waits in quarantine until a person has labelled it; see `Scorer`."""

    name = PERSON
    version = "1"
    needs: frozenset[Need] = frozenset()

    def score(self, case: ScoringInput) -> Score:
        """Say of `case` that it waits."""
        return Score(None, "waits for a person")


def open_scorer(settings: Settings) -> PersonScorer:
    """Open the scorer; it reads nothing of `settings`."""
    return PersonScorer()
