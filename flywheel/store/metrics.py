"""The names that figures go by in the table `metrics`, keyed by (iteration, stage, domain, name, step).

One word a thing, so that a query or a picture works for every stage. `domain` is a name of
`synthesis.domains`, a world as `domain/world`, the tasks of one interface as `domain/gui` (sdk, both), or
`ALL`. `step` counts optimiser or PPO steps along a curve and is 0 for a single figure. Other names may be
written: they appear in `learning_curves` and in the report under their own name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from flywheel.intervals import wilson

ALL = "all"


@dataclass(frozen=True)
class Name:
    """unit: what `value` counts; better: the direction that is an improvement (empty where neither is)."""

    unit: str
    meaning: str
    better: str = ""


VOCABULARY: dict[str, Name] = {
    # every stage
    "seconds": Name("s", "duration of the stage"),
    # ingest
    "utterances": Name("utterances", "spoken thoughts recognised"),
    "steps_with_a_thought": Name("fraction", "of the steps of recordings that a thought was aligned with", "higher"),
    "doubtful_thoughts": Name("fraction", "of the utterances, hardly understood: kept out of the steps", "lower"),
    "sessions": Name("sessions", "recorded sessions taken in"),
    "alignment_score": Name("score", "mean confidence of the alignment of thoughts with steps", "higher"),
    # synthesize, rollout, score
    "tasks": Name("tasks", "tasks made"),
    "trajectories": Name("trajectories", "episodes finished"),
    "retries": Name("episodes", "episodes done again after an environment crashed", "lower"),
    "crashes": Name("crashes", "of browsers and pages, hung ones included", "lower"),
    "reclaimed": Name("sessions", "taken back from holders that were late or silent", "lower"),
    "answers": Name("answers", "resets and steps answered by environments, those of lost episodes included"),
    "steps_per_second": Name("1/s", "environment steps a second, over all sessions", "higher"),
    "parse_error_rate": Name("fraction", "of steps whose text held no action", "lower"),
    "p_v1": Name("fraction", "P(V = 1): verified rollouts over scored rollouts (section 2.3)", "higher"),
    # route
    "to_sft": Name("trajectories", "routed to the SFT store"),
    "to_ct": Name("trajectories", "routed to the CT store"),
    "to_quarantine": Name("trajectories", "set aside with a reason"),
    # ct, sft
    "loss": Name("nats", "cross-entropy a trained token", "lower"),
    "learning_rate": Name("", "of the optimiser"),
    "agent_fraction": Name("fraction", "agent data in the mix"),
    # rl
    "reward": Name("reward", "mean shaped reward of an episode of the batch", "higher"),
    "score": Name("score", "mean score of the batch's episodes", "higher"),
    "success": Name("fraction", "of the batch's episodes that are verified", "higher"),
    "entropy": Name("nats", "mean entropy of the policy at a token"),
    "policy_loss": Name("", "clipped surrogate objective, negated", "lower"),
    "value_loss": Name("", "of the value function", "lower"),
    "value_pretraining_steps": Name("steps", "of the value function before the policy moves"),
    "value_pretraining_loss": Name("", "of the value function before the policy moves", "lower"),
    "value_pretraining_explained_variance": Name("fraction", "held out, before the policy moves", "higher"),
    "explained_variance": Name("fraction", "of the returns, by the value function", "higher"),
    "clip_fraction": Name("fraction", "tokens whose gradient the clipping removed"),
    "truncated_fraction": Name("fraction", "tokens of older weights whose importance weight was held"),
    "mismatch": Name("nats", "mean |log-probability recomputed - sampled|", "lower"),
    "drift": Name("nats", "the same, of tokens that older weights sampled"),
    "stale_fraction": Name("fraction", "of the tokens, those that older weights sampled", "lower"),
    "tokens": Name("tokens", "trained on in the step"),
    "grad_norm": Name("", "before clipping"),
    "kl": Name("nats", "mean divergence of the policy from the one that sampled"),
    "response_length": Name("tokens", "mean tokens a step"),
    "think_length": Name("tokens", "mean tokens of thought a step"),
    "rounds": Name("steps", "mean steps an episode"),
    "horizon": Name("tokens", "mean effective horizon of the policy's advantage, 1 / (1 - lambda)"),
    "episodes": Name("episodes", "trained on in the step"),
    "crashed": Name("episodes", "lost with their environments, in every try", "lower"),
    "rollout_s": Name("s", "waited for episodes", "lower"),
    "update_s": Name("s", "spent on the update", "lower"),
    "staleness_mean": Name("versions", "between the weights that sampled a token and those trained, mean"),
    "staleness_max": Name("versions", "between the weights that sampled a token and those trained, at most"),
    "length_consumed": Name("steps", "mean length of the episodes that the step trained on"),
    "length_in_flight": Name("steps", "mean length so far of the episodes that were left running"),
    "running": Name("episodes", "at work when the batch was taken"),
    "accepted": Name("episodes", "finished and waiting when the batch was taken"),
    "utilisation": Name("fraction", "of the environments' time that episodes were at work", "higher"),
    "curriculum_level": Name("level", "the open one, mean over worlds", "higher"),
    "curriculum_informative": Name("fraction", "of the newest groups, those whose scores differ", "higher"),
    "curriculum_always": Name("fraction", "of the tasks, those always solved of late"),
    "curriculum_never": Name("fraction", "of the tasks, those never solved of late"),
    "curriculum_untried": Name("fraction", "of the tasks, those of which too little is known"),
    # evaluate, promote
    "success_before": Name("fraction", "held-out tasks solved by the predecessor", "higher"),
    "success_ct": Name("fraction", "held-out tasks solved by the model of ct", "higher"),
    "success_sft": Name("fraction", "held-out tasks solved by the model of sft", "higher"),
    "success_rl": Name("fraction", "held-out tasks solved by the specialists, each in its domain", "higher"),
    "success_after": Name("fraction", "held-out tasks solved by the merged model", "higher"),
    "success_seen_before": Name("fraction", "those of templates that training draws from, the predecessor", "higher"),
    "success_seen_after": Name("fraction", "those of templates that training draws from, the merged model", "higher"),
    "success_unseen_before": Name("fraction", "those of templates held out from training, the predecessor", "higher"),
    "success_unseen_after": Name("fraction", "those of templates held out from training, the merged model", "higher"),
    "success_difference": Name("fraction", "paired difference, after less before", "higher"),
    "gate_difference": Name("fraction", "paired difference on the gate's fresh tasks, to the predecessor", "higher"),
    "gate_passing": Name("nats", "evidence that the merged model is good enough (promotion.rule)", "higher"),
    "gate_failing": Name("nats", "evidence that it is not", "lower"),
    "gate_discordance": Name("fraction", "of the gate's tasks, those on which the two models differ"),
    "gate_difference_best": Name("fraction", "the same, to the best model so far", "higher"),
    "gate_passing_best": Name("nats", "the same, against the best model so far", "higher"),
    "gate_failing_best": Name("nats", "the same, against the best model so far", "lower"),
    "gate_discordance_best": Name("fraction", "the same, against the best model so far"),
    "promoted": Name("0 or 1", "whether the merged model is the newest from here on"),
}


def row(
    name: str,
    value: float,
    *,
    domain: str = ALL,
    step: int = 0,
    low: float | None = None,
    high: float | None = None,
    n: int | None = None,
) -> dict[str, Any]:
    """One row of the table `metrics`. A value that is not finite is written as null, so that SQL can
    average.
    """
    value = float(value)
    return {
        "domain": domain,
        "name": name,
        "step": step,
        "value": value if math.isfinite(value) else None,
        "low": low,
        "high": high,
        "n": n,
    }


def share(name: str, successes: int, n: int, *, domain: str = ALL, step: int = 0) -> dict[str, Any]:
    """A fraction of `n` cases with its 95% Wilson interval; null where there is no case."""
    low, high = wilson(successes, n) if n else (None, None)
    value = successes / n if n else math.nan
    return row(name, value, domain=domain, step=step, low=low, high=high, n=n)
