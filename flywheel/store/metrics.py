"""Name the figures of the table `metrics` and build its rows.

One name a figure, so that a query or a picture works for every stage. `domain` is a name of `synthesis.domains`, a
world as `domain/world`, the tasks of one interface as `domain/gui` (sdk, both), or `ALL_DOMAINS`. `step` counts
optimiser or PPO steps along a curve and is 0 for a single figure. Other names may be written: they appear in
`learning_curves` and in the report under their own name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from flywheel.utils.confidence_intervals import wilson_interval

ALL_DOMAINS = "all"


@dataclass(frozen=True)
class MetricName:
    """Describe a figure.

    unit: what `value` counts; better: the direction that is an improvement (empty where neither is).
    """

    unit: str
    meaning: str
    better: str = ""


METRICS: dict[str, MetricName] = {
    # every stage
    "seconds": MetricName("s", "duration of the stage"),
    # ingest
    "utterances": MetricName("utterances", "spoken thoughts recognised"),
    "steps_with_a_thought": MetricName(
        "fraction", "of the steps of recordings that a thought was aligned with", "higher"
    ),
    "doubtful_thoughts": MetricName("fraction", "of the utterances, hardly understood: kept out of the steps", "lower"),
    "sessions": MetricName("sessions", "recorded sessions taken in"),
    "alignment_score": MetricName("score", "mean confidence of the alignment of thoughts with steps", "higher"),
    # synthesize, rollout, score
    "tasks": MetricName("tasks", "tasks made"),
    "trajectories": MetricName("trajectories", "episodes finished"),
    "retries": MetricName("episodes", "episodes done again after an environment crashed", "lower"),
    "crashes": MetricName("crashes", "of browsers and pages, hung ones included", "lower"),
    "reclaimed": MetricName("sessions", "taken back from holders that were late or silent", "lower"),
    "answers": MetricName("answers", "resets and steps answered by environments, those of lost episodes included"),
    "steps_per_second": MetricName("1/s", "environment steps a second, over all sessions", "higher"),
    "parse_error_rate": MetricName("fraction", "of steps whose text held no action", "lower"),
    "p_v1": MetricName("fraction", "P(V = 1): verified rollouts over scored rollouts (section 2.3)", "higher"),
    # route
    "to_sft": MetricName("trajectories", "routed to the SFT store"),
    "to_ct": MetricName("trajectories", "routed to the CT store"),
    "to_quarantine": MetricName("trajectories", "set aside with a reason"),
    # ct, sft
    "loss": MetricName("nats", "cross-entropy a trained token", "lower"),
    "learning_rate": MetricName("", "of the optimiser"),
    "agent_fraction": MetricName("fraction", "agent data in the mix"),
    # rl
    "reward": MetricName("reward", "mean shaped reward of an episode of the batch", "higher"),
    "score": MetricName("score", "mean score of the batch's episodes", "higher"),
    "success": MetricName("fraction", "of the batch's episodes that are verified", "higher"),
    "entropy": MetricName("nats", "mean entropy of the policy at a token"),
    "policy_loss": MetricName("", "clipped surrogate objective, negated", "lower"),
    "value_loss": MetricName("", "of the value function", "lower"),
    "value_pretraining_steps": MetricName("steps", "of the value function before the policy moves"),
    "value_pretraining_loss": MetricName("", "of the value function before the policy moves", "lower"),
    "value_pretraining_explained_variance": MetricName("fraction", "held out, before the policy moves", "higher"),
    "explained_variance": MetricName("fraction", "of the returns, by the value function", "higher"),
    "clip_fraction": MetricName("fraction", "tokens whose gradient the clipping removed"),
    "truncated_fraction": MetricName("fraction", "tokens of older weights whose importance weight was held"),
    "mismatch": MetricName("nats", "mean |log-probability recomputed - sampled|", "lower"),
    "drift": MetricName("nats", "the same, of tokens that older weights sampled"),
    "stale_fraction": MetricName("fraction", "of the tokens, those that older weights sampled", "lower"),
    "tokens": MetricName("tokens", "trained on in the step"),
    "grad_norm": MetricName("", "before clipping"),
    "kl": MetricName("nats", "mean divergence of the policy from the one that sampled"),
    "response_length": MetricName("tokens", "mean tokens a step"),
    "think_length": MetricName("tokens", "mean tokens of thought a step"),
    "rounds": MetricName("steps", "mean steps an episode"),
    "horizon": MetricName("tokens", "mean effective horizon of the policy's advantage, 1 / (1 - lambda)"),
    "episodes": MetricName("episodes", "trained on in the step"),
    "crashed": MetricName("episodes", "lost with their environments, in every try", "lower"),
    "rollout_s": MetricName("s", "waited for episodes", "lower"),
    "update_s": MetricName("s", "spent on the update", "lower"),
    "staleness_mean": MetricName("versions", "between the weights that sampled a token and those trained, mean"),
    "staleness_max": MetricName("versions", "between the weights that sampled a token and those trained, at most"),
    "length_consumed": MetricName("steps", "mean length of the episodes that the step trained on"),
    "length_in_flight": MetricName("steps", "mean length so far of the episodes that were left running"),
    "running": MetricName("episodes", "at work when the batch was taken"),
    "accepted": MetricName("episodes", "finished and waiting when the batch was taken"),
    "utilisation": MetricName("fraction", "of the environments' time that episodes were at work", "higher"),
    "curriculum_level": MetricName("level", "the open one, mean over worlds", "higher"),
    "curriculum_informative": MetricName("fraction", "of the newest groups, those whose scores differ", "higher"),
    "curriculum_always": MetricName("fraction", "of the tasks, those always solved of late"),
    "curriculum_never": MetricName("fraction", "of the tasks, those never solved of late"),
    "curriculum_untried": MetricName("fraction", "of the tasks, those of which too little is known"),
    # evaluate, promote
    "success_before": MetricName("fraction", "held-out tasks solved by the predecessor", "higher"),
    "success_ct": MetricName("fraction", "held-out tasks solved by the model of ct", "higher"),
    "success_sft": MetricName("fraction", "held-out tasks solved by the model of sft", "higher"),
    "success_rl": MetricName("fraction", "held-out tasks solved by the specialists, each in its domain", "higher"),
    "success_after": MetricName("fraction", "held-out tasks solved by the merged model", "higher"),
    "success_seen_before": MetricName(
        "fraction", "those of templates that training draws from, the predecessor", "higher"
    ),
    "success_seen_after": MetricName(
        "fraction", "those of templates that training draws from, the merged model", "higher"
    ),
    "success_unseen_before": MetricName(
        "fraction", "those of templates held out from training, the predecessor", "higher"
    ),
    "success_unseen_after": MetricName(
        "fraction", "those of templates held out from training, the merged model", "higher"
    ),
    "success_difference": MetricName("fraction", "paired difference, after less before", "higher"),
    "gate_difference": MetricName(
        "fraction", "paired difference on the gate's fresh tasks, to the predecessor", "higher"
    ),
    "gate_passing": MetricName("nats", "evidence that the merged model is good enough (promotion.rule)", "higher"),
    "gate_failing": MetricName("nats", "evidence that it is not", "lower"),
    "gate_discordance": MetricName("fraction", "of the gate's tasks, those on which the two models differ"),
    "gate_difference_best": MetricName("fraction", "the same, to the best model so far", "higher"),
    "gate_passing_best": MetricName("nats", "the same, against the best model so far", "higher"),
    "gate_failing_best": MetricName("nats", "the same, against the best model so far", "lower"),
    "gate_discordance_best": MetricName("fraction", "the same, against the best model so far"),
    "promoted": MetricName("0 or 1", "whether the merged model is the newest from here on"),
}


def metric_row(
    name: str,
    value: float,
    *,
    domain: str = ALL_DOMAINS,
    step: int = 0,
    low: float | None = None,
    high: float | None = None,
    n: int | None = None,
) -> dict[str, Any]:
    """Build one row of the table `metrics`.

    name: of the figure. value: written as null where it is not finite, so that SQL can average. domain: by default all.
    step: of a curve; 0 for a single figure. low, high: ends of its confidence interval. n: cases that it rests on.
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


def fraction_metric_row(
    name: str, successes: int, n: int, *, domain: str = ALL_DOMAINS, step: int = 0
) -> dict[str, Any]:
    """Build a row of `metrics` for the fraction successes / n, with its 95% Wilson interval; null where n is 0.

    name: of the figure. domain: by default all. step: of a curve; 0 for a single figure.
    """
    low, high = wilson_interval(successes, n) if n else (None, None)
    value = successes / n if n else math.nan
    return metric_row(name, value, domain=domain, step=step, low=low, high=high, n=n)
