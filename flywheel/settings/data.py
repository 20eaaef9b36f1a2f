"""Blocks `recording`, `synthesis`, `rollout` and `routing`: where the data come from and where they go."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from flywheel.settings.block import Block, Domain


class Recording(Block):
    """Recordings of people who work and think aloud: where they lie, and how their speech is recognized."""

    folder: str = Field("recordings", min_length=1)
    """Folder of the recordings. New ones may be added at any time."""
    sessions_per_iteration: int = Field(72, ge=0)
    """New recordings that one iteration takes in, at most."""
    imports_per_iteration: int = Field(200, ge=0)
    """Demonstrations of other data sets (`flywheel import`) that one iteration takes in, at most."""
    recognizer: Literal["pocketsphinx", "whisper"] = "pocketsphinx"
    """The speech recognizer. whisper needs flywheel[whisper] and whisper_model."""
    whisper_model: str = ""
    """A checkpoint file of Whisper, or the name of one in its cache, such as base.en."""
    processes: int = Field(2, ge=1, le=256)
    """Processes that take in recordings at the same time."""
    timeout_s: float = Field(120.0, gt=0)
    """Seconds until the speech of one recording must be recognized."""
    least_confidence: float = Field(0.6, ge=0, le=1)
    """An utterance whose words the recognizer trusts less, on average, becomes no thought of a step."""


class Synthesis(Block):
    """The tasks that are made for the model, and the general screens that are mixed into its training."""

    domains: dict[Domain, list[str]] = Field(
        {"games": ["tiles", "shapes", "merge"], "sites": ["shop", "settings"], "control": ["control"]}
    )
    """The worlds of each domain, and the third-party pages of `manifests` by name. RL trains a specialist for each
    domain."""
    held_out: Annotated[float, Field(ge=0, le=0.5)] | list[str] = Field(
        [
            "settings/size",
            "shop/search",
            "control/click_side",
            "control/radio",
            "control/type_number",
            "control/sort",
            "control/pages",
            "control/right_click",
            "control/size",
        ]
    )
    """Task templates that only evaluation uses: their names (world/template), or a share of the templates of each
    world that has four or more."""
    left_out: list[str] = Field([])
    """Task templates that are not asked at all, by their names (world/template)."""
    manifests: list[str] = Field([])
    """Third-party pages: manifest files, folders of them, or names of shipped ones (`flywheel page list`)."""
    worlds: list[str] = Field([])
    """Worlds on computers and phones that others wrote: manifest files. `domains` names them as any other world."""
    train_tasks: int = Field(40, ge=1, le=100_000)
    """Tasks made in each iteration to train on, over all worlds."""
    repeated: float = Field(0.5, ge=0, le=1)
    """Share of a world's training tasks that are of the same templates and levels in each iteration, with other
    contents: on these, P(V=1) of two iterations is compared (`p_v1_rise`). The others go through all templates."""
    eval_tasks: int = Field(40, ge=1, le=100_000)
    """Tasks for evaluation, the same in every iteration."""
    levels: list[int] = Field([1, 2], min_length=1)
    """Levels of difficulty that tasks are made of."""
    opens_at: float = Field(0.0, ge=0, le=1)
    """Training tasks of a world begin with the lowest of these levels, and the next one opens once this share of the
    model's trajectories of the highest open one succeed. 0: all levels are open from the first iteration. Evaluation
    has all levels, always. Recordings of levels that are not open wait while there are others."""
    general_samples: int = Field(1000, ge=0, le=1_000_000)
    """General screens, with something to say of them, that CT and SFT mix with the steps of tasks."""


class Rollout(Block):
    """How the model plays the iteration's tasks."""

    samples: int = Field(4, ge=1)
    """Trajectories of each task. SFT takes those that solved it (rejection sampling)."""
    max_concurrent: int = Field(16, ge=1, le=4096)
    """Trajectories that are played at once, at most. No more than sandbox.pages can be, on each node where
    environments are leased."""
    temperature: float = Field(0.5, gt=0)
    """Sampling temperature. At 1 a model as small as the shipped one garbles every second answer."""
    tasks_per_shard: int = Field(20, ge=1)
    """Tasks that one Prefect task plays. A run that is killed loses what such tasks had not finished, no more."""
    retries: int = Field(2, ge=0)
    """Times that a trajectory is begun again if its page crashes."""


class Routing(Block):
    """Which trajectories count as solved. Solved ones are kept for SFT, others for CT, unsound ones for neither."""

    threshold: float = Field(1.0, gt=0, le=1)
    """The score from which on a task is solved, where its template names none."""
    scorers: dict[str, list[str]] = Field({"default": ["verifier"]})
    """Who judges the trajectories of a domain; default: those of every other domain. A trajectory counts as solved
    where all of them say so."""
    broken_limit: float = Field(0.5, ge=0, le=1)
    """The share of an iteration's trajectories that may break a data contract: so many are set aside, each with its
    reason; where it is more, the iteration stops before anything is stored."""

    review: int = Field(0, ge=0, le=200)
    """Trajectories that a person looks at after each iteration is routed and before it trains; what they say moves them
    to the other store. Drawn evenly over domains and stores. 0: none, and the turn waits for nobody."""
    review_doubtful: float = Field(0.5, ge=0, le=1)
    """Share of them that is drawn from doubtful ones, as long as there are any: scorers disagree or gave no score, or
    a score is within review_near of its threshold."""
    review_near: float = Field(0.1, ge=0, le=1)
    """How near a score below 1 has to be to its threshold for the trajectory to be doubtful."""
    review_timeout_s: float = Field(86_400.0, gt=0)
    """Seconds that a run waits for what people say of them (`flywheel label`)."""
    unanswered: Literal["keep", "fail"] = "keep"
    """What happens then. keep: what nobody looked at stays where it is, and the turn goes on; fail: the run fails, and
    goes on once all are labelled."""

    duplicates_least: float = Field(0.8, gt=0, le=1)
    """Share of steps from which on two of the model's trajectories of one task count as near-duplicates. 1: the same
    steps alone."""
    duplicates_window: int = Field(2, ge=0)
    """Iterations before this one that its trajectories are compared with, besides each other."""
    duplicates_weigh: Literal["one", "each"] = "one"
    """What a step of a near-duplicate weighs in training. one: near-duplicates share the weight of one. each: 1."""

    @field_validator("scorers")
    @classmethod
    def _somebody(cls, scorers: dict[str, list[str]]) -> dict[str, list[str]]:
        if "default" not in scorers:
            raise ValueError("default must be named: who judges in the domains that are not")
        for domain, names in scorers.items():
            if not names or len(set(names)) < len(names):
                raise ValueError(f"{domain} must name scorers, each once")
        return scorers
