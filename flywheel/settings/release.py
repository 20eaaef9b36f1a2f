"""Blocks `merge`, `evaluation`, `promotion` and `versioning`: how specialists become a model, and when it is taken."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from flywheel.settings.block import Block


class Merge(Block):
    """How the specialists of RL become one model."""

    weights: dict[str, float] = Field({"games": 0.34, "sites": 0.33, "control": 0.33})
    """The weight of each domain's specialist. They sum to 1."""

    @model_validator(mode="after")
    def _convex(self) -> Merge:
        if any(w < 0 for w in self.weights.values()) or abs(sum(self.weights.values()) - 1) > 1e-6:
            raise ValueError("merge.weights must be 0 or more and sum to 1")
        return self


class Evaluation(Block):
    """How models play the tasks that they were not trained on."""

    samples: int = Field(1, ge=1)
    """Episodes of each task."""
    temperature: float = Field(0.0, ge=0)
    """Sampling temperature. 0: always the likeliest token."""
    stages: bool = False
    """Whether the models of CT, SFT and RL play the held-out tasks too, a specialist those of its domain: it shows
    which stage gains and which one loses (`success_by_stage`)."""


class Promotion(Block):
    """Whether the new model takes the place of the best one: both play fresh tasks until it is known. `flywheel bench
    gate` shows how often these rules err."""

    rule: Literal["better", "not_worse", "review", "always"] = "not_worse"
    """What is promoted. not_worse: what is shown not to be worse by the margin; better: what is shown to be better;
    review: what a person decides, who is told what not_worse says; always: everything, for experiments."""
    margin: float = Field(0.1, gt=0, lt=1)
    """A difference of success that matters: not_worse must not let such a loss pass, better must not miss such a
    gain."""
    false_promotion: float = Field(0.05, gt=0, lt=0.5)
    """Chance, at most, that a model is promoted which is worse by the margin (for better: not better)."""
    false_refusal: float = Field(0.1, gt=0, lt=0.5)
    """Chance, at most, that an equal model is called worse (for better: one better by the margin, not better)."""
    tasks: int = Field(120, ge=1)
    """Fresh tasks played, at most. What is not decided after them is not promoted."""
    tasks_per_look: int = Field(20, ge=1)
    """Tasks played between two looks at the outcome."""
    review_timeout_s: float = Field(86_400.0, gt=0)
    """Seconds that a run waits for a person's decision."""
    unanswered: Literal["keep", "fail"] = "keep"
    """What happens then. keep: the old model stays, the iteration ends, and `reviews` says that nobody decided; fail:
    the run fails, and goes on once it is decided (`flywheel review`)."""


class Versioning(Block):
    """How iterations are recorded beside DVC."""

    git: bool = False
    """Whether each iteration is committed and tagged in git. true in workspaces that `flywheel init` made."""
    remote: str = ""
    """Where what is recorded is copied to after each iteration: a folder, or a URL that DVC knows (s3://bucket/data).
    From there lost files come back, here and in clones. Empty: nowhere."""
