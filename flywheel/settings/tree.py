"""The tree of settings: every block, and the combinations that are refused."""

from __future__ import annotations

from pydantic import Field, model_validator

from flywheel.settings.block import Block
from flywheel.settings.cluster import Cluster
from flywheel.settings.data import Recording, Rollout, Routing, Synthesis
from flywheel.settings.operations import Operations
from flywheel.settings.policy import CONSTRAINED, SPACES, LanguageModel, Policy
from flywheel.settings.release import Evaluation, Merge, Promotion, Versioning
from flywheel.settings.rl import Rl
from flywheel.settings.sandbox import Sandbox
from flywheel.settings.training import Ct, Sft

_TAKEN = {"all", "general", "prev", "turns"}  # names that stand for something else where domains are listed


class Settings(Block):
    """All parameters."""

    seed: int = Field(7, ge=0, lt=2**63)
    """The seed that every random choice follows from."""
    iterations: int = Field(2, ge=1)
    """Iterations that one `flywheel run` makes."""
    policy: Policy = Policy()
    sandbox: Sandbox = Sandbox()
    recording: Recording = Recording()
    language_model: LanguageModel = LanguageModel()
    synthesis: Synthesis = Synthesis()
    rollout: Rollout = Rollout()
    routing: Routing = Routing()
    ct: Ct = Ct()
    sft: Sft = Sft()
    rl: Rl = Rl()
    merge: Merge = Merge()
    evaluation: Evaluation = Evaluation()
    promotion: Promotion = Promotion()
    versioning: Versioning = Versioning()
    operations: Operations = Operations()
    cluster: Cluster = Cluster()

    @model_validator(mode="after")
    def _combinations(self) -> Settings:
        if not self.synthesis.domains:
            raise ValueError("synthesis.domains has no domain")
        if taken := _TAKEN & set(self.synthesis.domains):
            raise ValueError(f"synthesis.domains: {min(taken)} has another meaning, so no domain can be called so")
        placed = [world for worlds in self.synthesis.domains.values() for world in worlds]
        if twice := {world for world in placed if placed.count(world) > 1}:
            raise ValueError(f"synthesis.domains has {min(twice)} twice: a world is of one domain")
        if set(self.merge.weights) != set(self.synthesis.domains):
            raise ValueError("merge.weights must name the same domains as synthesis.domains")
        judged = set(self.routing.scorers) - {"default", *self.synthesis.domains}
        if judged:
            raise ValueError(f"routing.scorers names {sorted(judged)}, which synthesis.domains does not have")
        if self.recording.recognizer == "whisper" and not self.recording.whisper_model:
            raise ValueError("recording.recognizer is whisper, so recording.whisper_model must name a checkpoint")
        if self.language_model.endpoint and not self.language_model.model:
            raise ValueError("language_model.endpoint is set, so language_model.model must name a model")
        if self.policy.summarizer == "language_model":
            if not self.language_model.endpoint:
                raise ValueError("policy.summarizer is language_model, so language_model.endpoint must name a server")
            if not self.policy.digest_characters:
                raise ValueError("policy.summarizer is language_model, so policy.digest_characters must be above 0")
        if self.cluster.address and self.cluster.engine != "ray":
            raise ValueError("cluster.address is set, so cluster.engine must be ray")
        if self.cluster.training_nodes > max(self.ct.processes, self.sft.processes, self.rl.processes):
            raise ValueError(
                f"cluster.training_nodes is {self.cluster.training_nodes}, so ct.processes, sft.processes or "
                "rl.processes must be as many or more"
            )
        if self.policy.backend == "openai" and not self.policy.endpoint:
            raise ValueError("policy.backend is openai, so policy.endpoint must name a server")
        spaces = SPACES[self.policy.template]
        if self.policy.space not in spaces:
            raise ValueError(
                f"policy.template {self.policy.template} goes with policy.space {' or '.join(spaces)}, "
                f"not {self.policy.space}"
            )
        if self.policy.constrained == "always":
            self._can_be_constrained()
        if max(self.sandbox.width, self.sandbox.height) > self.policy.max_image_side:
            raise ValueError("sandbox.width and sandbox.height must not be above policy.max_image_side")
        if self.sandbox.pages_min > self.sandbox.pages:
            raise ValueError("sandbox.pages_min must not be above sandbox.pages")
        if self.sandbox.silent_s < 2 * self.policy.timeout_s:
            raise ValueError("sandbox.silent_s must be twice policy.timeout_s or more: a session waits for its policy")
        if self.policy.min_pixels > self.policy.max_pixels:
            raise ValueError("policy.min_pixels must not be above policy.max_pixels")
        if self.rl.deterministic and self.rl.max_staleness:
            raise ValueError("rl.deterministic goes with rl.max_staleness 0: a stream depends on what finishes first")
        if self.rl.length_buffer >= self.policy.max_new_tokens:
            raise ValueError("rl.length_buffer must be under policy.max_new_tokens")
        if self.policy.max_new_tokens >= self.policy.max_context_tokens:
            raise ValueError("policy.max_new_tokens must be under policy.max_context_tokens")
        return self

    def _can_be_constrained(self) -> None:
        for name in self.policy.unheld():
            value, fit = getattr(self.policy, name), " or ".join(str(one).lower() for one in CONSTRAINED[name])
            raise ValueError(f"policy.constrained always goes with policy.{name} {fit}, not {str(value).lower()}")
