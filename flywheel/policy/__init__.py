"""The policy: base model, tokeniser, inference back-ends behind one protocol (`protocol.Policy`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flywheel import settings as config

if TYPE_CHECKING:
    from flywheel.policy.protocol import Policy


def open_policy(folder: Path | str, policy: config.Policy) -> Policy:
    """The back-end that the settings name, answering with the checkpoint in `folder`.

    Raises ModelError for a folder that cannot be loaded, PolicyError for a server that does not answer or cannot
    take the checkpoint's weights.
    """
    if policy.backend == "openai":
        from flywheel.policy.remote import RemotePolicy

        return RemotePolicy(folder, policy)
    from flywheel.policy.embedded import EmbeddedPolicy  # imports torch

    return EmbeddedPolicy(folder, policy)
