"""verifier: the task's own verifier reads the recorded final state (section 2.5.2). Its rows say which one it was."""

from __future__ import annotations

from flywheel.errors import DataError
from flywheel.scoring import verifiers
from flywheel.scoring.scorer import Case, Need, Score
from flywheel.settings import Settings


class VerifierScorer:
    name = "verifier"
    version = "1"
    needs: frozenset[Need] = frozenset({"final_state"})

    def score(self, case: Case) -> Score:
        """Raises BadInput for a task whose verifier is not there."""
        try:
            return Score(verifiers.score(case.task, case.final_state), rule=case.task.verifier)
        except DataError as error:
            return Score(None, str(error), rule=case.task.verifier)


def open_scorer(settings: Settings) -> VerifierScorer:
    return VerifierScorer()
