"""Block `rl`: reinforcement learning of the specialists."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from flywheel.settings.training import Training


class Rl(Training):
    """Reinforcement learning (RL): a specialist for each domain, by tasks that are played while it trains."""

    algorithm: str = Field("ppo", min_length=1)
    """ppo; grpo, which compares the episodes of a task and needs no value model; or another module of
    flywheel/training/rl/algorithms."""
    steps: int = Field(4, ge=0)
    """Training steps for each domain."""
    tasks_per_step: int = Field(4, ge=1)
    """Tasks of a training step."""
    samples: int = Field(4, ge=1)
    """Episodes of a task. A training step uses tasks_per_step x samples of them."""
    max_staleness: int = Field(1, ge=0)
    """Training steps by which the oldest weights that played an episode may lag. 0: play, then train, by turns."""
    batch_timeout_s: float = Field(3600.0, gt=0)
    """Seconds until the episodes of a training step must be there."""
    deterministic: bool = False
    """Whether each request is answered alone, so that a run repeats bit for bit. Goes with max_staleness 0."""
    threads: int = Field(0, ge=0, le=1024)
    """CPU threads of the trainer. 0: half of them where the policy answers on this CPU too, else all."""
    temperature: float = Field(0.5, gt=0)
    """Sampling temperature of the episodes. What is trained is the policy at this temperature."""
    epochs: int = Field(1, ge=1)
    """Times that the policy is trained on the episodes of a step."""
    critic_epochs: int = Field(4, ge=1)
    """Times that the value model, which is small, is trained on the episodes of a step."""
    minibatch: int = Field(32, ge=1)
    """Samples (turns of episodes) of a gradient step. Of long episodes take more, so that a batch is two or three of
    them: with seven for 32 outcomes of a dozen turns each, a model lost in 20 batches what it could do."""
    minibatch_by: Literal["task", "turn"] = "task"
    """How the samples of a gradient step are chosen. task: those of one task stay together, which saves time; turn: any
    mixture."""
    actor_lr: float = Field(1e-4, gt=0)
    """Learning rate of the policy."""
    critic_lr: float = Field(2e-4, gt=0)
    """Learning rate of the value model. At 0.0005 it overfits within 100 gradient steps."""
    warmup: int = Field(8, ge=0)
    """Gradient steps in which the policy's learning rate rises to actor_lr, where it stays."""
    eps_low: float = Field(0.2, gt=0, lt=1)
    """PPO's clip where the advantage is negative: a token whose probability ratio falls below 1 - eps_low gets no
    further gradient."""
    eps_high: float = Field(0.28, gt=0)
    """PPO's clip where the advantage is positive: a token whose probability ratio rises above 1 + eps_high gets no
    further gradient, and one of older weights weighs no more than that."""
    dual_clip: float = Field(3.0, gt=1)
    """Where the advantage is negative: the most that a token's probability ratio counts, and that a token of older
    weights weighs."""
    gamma: float = Field(1.0, gt=0, le=1)
    """Discount of later rewards."""
    lambda_critic: float = Field(1.0, ge=0, le=1)
    """Lambda of generalised advantage estimation (GAE) in the value model's targets."""
    alpha: float = Field(1.5, gt=0)
    """Lambda of GAE in the policy's advantages, by the trajectory's length l in tokens: max(0, 1 - 1/(alpha l)). The
    UI-TARS-2 report has 0.05."""
    lambda_policy: float | None = Field(None, ge=0, le=1)
    """A fixed lambda for the policy's advantages. null: by the trajectory's length, with alpha."""
    normalise: bool = True
    """Whether the advantages of a step are brought to mean 0 and deviation 1, over all its tokens."""
    bootstrap: bool = True
    """Whether the advantages of an episode that ran out of steps end in the value of its last screen, instead of in its
    outcome."""
    value_pretraining_steps: int = Field(100, ge=0)
    """Gradient steps of the value model before the first training step, at most."""
    value_pretraining_tasks: int = Field(4, ge=2)
    """Tasks played to train the value model before the first training step. A quarter of the episodes is held out and
    tells when to stop."""
    positive_nll: float = Field(0.1, ge=0)
    """Weight of an added loss that imitates successful episodes (mu of VAPO). 0: none."""
    format_penalty: float = Field(0.1, ge=0)
    """Taken from the reward for each step whose text is no action."""
    length_buffer: int = Field(8, ge=0)
    """A penalty for long answers begins this many tokens below policy.max_new_tokens. 0: no penalty."""
    length_penalty: float = Field(0.05, ge=0)
    """The penalty for an answer of policy.max_new_tokens tokens, to which it rises evenly."""
    reward_progress: bool = False
    """Whether each step is rewarded with what it adds to the score of the state, where the environment tells it,
    instead of the whole score at the end."""
    step_penalty: float = Field(0.0, ge=0)
    """Taken from the reward of an episode that uses all of its steps; of a shorter one, its share of them."""
    weight_decay: float = Field(0.0, ge=0)
    beta2: float = Field(0.999, ge=0, lt=1)
    max_mismatch: float = Field(0.05, gt=0)
    """The run stops where trainer and policy, with the same weights, disagree on the log-probabilities of tokens by
    more than this, on average."""
    max_drift: float = Field(0.5, gt=0)
    """The same limit as max_mismatch for tokens of older weights, which differ for a good reason."""
    curriculum_floor: float = Field(0.2, gt=0, le=1)
    """Share of tasks that is drawn evenly. The others come more often the more there is to learn from them. 1: no
    curriculum."""
    curriculum_memory: float = Field(0.7, ge=0, le=1)
    """Weight, from 0 to 1, that a task's earlier outcomes keep when newer ones come."""
    curriculum_rise: float = Field(0.6, ge=0, le=1)
    """Success at a world's level from which on the next level is open."""
