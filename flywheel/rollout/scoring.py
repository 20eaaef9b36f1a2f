"""From an episode to what the verifier reads."""

from __future__ import annotations

import json
from typing import Any

from flywheel.rollout.episode import Episode


def final_state(episode: Episode) -> Any | None:
    """The state the verifier reads; None where the environment crashed, which is never scored as an outcome."""
    text = episode.trajectory.get("final_state")
    return json.loads(text) if text else None
