"""The policy: base model, tokeniser, inference back-ends behind one protocol (`protocol.Policy`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flywheel import settings as config
from flywheel.errors import BadInput

if TYPE_CHECKING:
    from flywheel.policy.protocol import Policy


def open_policy(folder: Path | str, policy: config.Policy) -> Policy:
    """The back-end that the settings name, answering with the checkpoint in `folder`.

    Raises ModelError for a folder that cannot be loaded, BadInput for a back-end that this version lacks.
    """
    if policy.backend != "transformers":
        raise BadInput(
            f"policy.backend {policy.backend!r} comes with a later version",
            where="params.yaml", fix="set policy.backend to transformers",
        )  # fmt: skip
    from flywheel.policy.embedded import EmbeddedPolicy  # imports torch

    return EmbeddedPolicy(folder, policy)
