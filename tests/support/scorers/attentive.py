"""A scorer for tests: it reads steps and screens, and is lost where it meets the word `riddle`."""

from __future__ import annotations

from flywheel.rewards.scorer import Need, Score, ScoringInput

PNG = b"\x89PNG"


class Attentive:
    name = "attentive"
    version = "3"
    needs: frozenset[Need] = frozenset({"steps", "screens"})

    def score(self, case: ScoringInput) -> Score:
        """The share of the steps whose screen is there and whose thought is not empty."""
        if "riddle" in case.trajectory.instruction:
            raise RuntimeError("it is a riddle to me")
        seen = [case.screens[step.image_sha256].startswith(PNG) and bool(step.thought) for step in case.steps]
        return Score(sum(seen) / len(seen), f"{len(case.screens)} screens looked at")


def open_scorer(settings) -> Attentive:
    return Attentive()
