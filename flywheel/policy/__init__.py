"""Open the policy that the settings name: in this process, or behind an OpenAI-compatible server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flywheel import config

if TYPE_CHECKING:
    from flywheel.policy.protocol import PolicyBackend

__all__ = [
    "adapter",
    "checkpoint",
    "client",
    "devices",
    "encoding",
    "guided_decoding",
    "inference",
    "model",
    "open_policy",
    "protocol",
    "server",
    "torch_threads",
]


def open_policy(folder: Path | str, policy: config.PolicySettings) -> PolicyBackend:
    """Open the policy back-end of the settings, which answers with the checkpoint in `folder`; the caller closes it.

    folder: a checkpoint's folder, or a Hugging Face name, which is downloaded. policy: block `policy`, whose `backend`
    chooses. Blocks while weights are read, or published to servers that have others. Raises ModelError for a checkpoint
    that cannot be loaded, or whose tokeniser does not allow guided decoding where that is set to always, and where
    `policy.device` is not there; BadInput for a `policy.endpoint` that is not an address, a request that the server
    refuses, and an action grammar that guided decoding does not support; PolicyError or a subclass for a server that
    does not answer, refuses the key, lacks `policy.model`, stays asleep, or cannot take the checkpoint's weights.
    """
    if policy.backend == "openai":
        from flywheel.policy.client.remote import RemotePolicy

        return RemotePolicy(folder, policy)
    from flywheel.policy.inference.embedded import EmbeddedPolicy  # imports torch

    return EmbeddedPolicy(folder, policy)
