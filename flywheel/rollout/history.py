"""The context of a step, built from step rows: the same function for the rollout and for training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flywheel.agent.memory import PastStep
from flywheel.agent.prompt import build_context
from flywheel.policy.protocol import Context
from flywheel.settings import Policy as PolicySettings


def step_context(
    instruction: str,
    before: Sequence[Mapping[str, Any]],
    images: Mapping[str, bytes],
    screen: bytes,
    settings: PolicySettings,
) -> Context:
    """What the policy is shown: the instruction, M_t made of the rows `before` (table `steps`, in order), the screen.

    images: PNG by sha256; those of the last working_steps - 1 rows are read, if there.
    """
    past = [
        PastStep(
            screenshot=images.get(row["image_sha256"]),
            thought=row.get("thought") or "",
            action=row.get("action") or "",
            result=row.get("tool_result") or "",
        )
        for row in before
    ]
    return build_context(instruction, past, screen, settings)
