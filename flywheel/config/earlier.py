"""Parameters as earlier versions named them: what to type now, and what an iteration's own copy of them means.

A person who edits `params.yaml` is told the new name. The copy that an iteration was begun with is a record and stays
as it is on disk: it is read as it was meant.
"""

from __future__ import annotations

from typing import Any

_ALGORITHMS = {"gae": "ppo", "group": "grpo"}  # by the value of rl.advantage, beside which rl.algorithm was always ppo

# What versions before a parameter did, where that is not its default of today.
_BEFORE = {
    "synthesis.repeated": 0.0,
    "policy.constrained": "never",
    "ct.freeze_vision": False,
    "sft.freeze_vision": False,
    "sft.demonstrations": 0.0,
}


def suggest_current_name(name: str) -> str:
    """What to type in place of a parameter that is no more; empty where there never was one of this dotted name."""
    if name == "rl.advantage":
        values = " or ".join(f"algorithm: {new} (for {old})" for old, new in _ALGORITHMS.items())
        return f"there is no such parameter any more; leave it out and set {values}"
    return ""


def upgrade_raw_settings(raw: dict[str, Any]) -> dict[str, Any]:
    """The same parameters by the names of today; a parameter that came later is as if it had been there."""
    raw = _with_words(_with_algorithm(raw))
    for name, value in _BEFORE.items():
        block, _, leaf = name.partition(".")
        if isinstance(raw.get(block), dict):
            raw = {**raw, block: {leaf: value, **raw[block]}}
    return raw


def _with_words(raw: dict[str, Any]) -> dict[str, Any]:
    """`policy.constrained` was true or false."""
    policy = raw.get("policy")
    if not isinstance(policy, dict) or not isinstance(policy.get("constrained"), bool):
        return raw
    return {**raw, "policy": {**policy, "constrained": "always" if policy["constrained"] else "never"}}


def _with_algorithm(raw: dict[str, Any]) -> dict[str, Any]:
    rl = raw.get("rl")
    if not isinstance(rl, dict) or rl.get("advantage") not in _ALGORITHMS:
        return raw
    kept = {name: value for name, value in rl.items() if name != "advantage"}
    return {**raw, "rl": kept | {"algorithm": _ALGORITHMS[rl["advantage"]]}}
