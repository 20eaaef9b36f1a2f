"""Open a policy by the settings: in this process, or behind an OpenAI-compatible server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flywheel import config

if TYPE_CHECKING:
    from flywheel.policy.protocol import PolicyBackend


def open_policy(folder: Path | str, policy: config.PolicySettings) -> PolicyBackend:
    """Open the back-end that the settings name, answering with the checkpoint in `folder`; the caller closes it.

    folder: of a checkpoint, or a Hugging Face name. policy: block `policy`. Raises ModelError for a folder or name that
    cannot be loaded, or whose answers cannot be held to a form as asked; BadInput for a `policy.endpoint` that is not
    an address, a request that its server refuses, and a form of answers that cannot be constrained; PolicyError, and
    its kinds, for a server that does not answer, lacks `policy.model`, or cannot take the checkpoint's weights.
    """
    if policy.backend == "openai":
        from flywheel.policy.client.remote import RemotePolicy

        return RemotePolicy(folder, policy)
    from flywheel.policy.inference.embedded import EmbeddedPolicy  # imports torch

    return EmbeddedPolicy(folder, policy)
