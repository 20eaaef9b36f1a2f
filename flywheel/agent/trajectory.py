"""A trajectory: tau = {(t_0, a_0, o_0), ..., (t_T, a_T, o_T)} (section 2.1), and its identity."""

from __future__ import annotations

import hashlib


def trajectory_id(iteration: int, task_id: str, sample: int, policy_version: str) -> str:
    """Identity is content: a resumed run makes the same names, so it neither loses nor repeats a trajectory."""
    text = f"{iteration}|{task_id}|{sample}|{policy_version}"
    return "t" + hashlib.sha256(text.encode()).hexdigest()[:19]
