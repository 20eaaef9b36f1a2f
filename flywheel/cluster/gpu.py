"""The GPUs of a machine, where stages of one iteration run beside one another: one stage has them at a time."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from flywheel.cluster import needs
from flywheel.errors import ClusterError
from flywheel.files import locked
from flywheel.settings import Cluster
from flywheel.stages.base import Context
from flywheel.store import pipeline


@contextlib.contextmanager
def alone(ctx: Context, limits: Cluster, seconds: float) -> Iterator[None]:
    """Within the block no other stage of the workspace has this machine's GPUs; nothing happens where the stage takes
    none, or where Ray gives them out.

    Raises ClusterError where another stage has had them for so many seconds.
    """
    if limits.engine == "ray" or not needs.gpus(pipeline.get(ctx.stage), ctx, _has_one):
        yield
        return
    lock = ctx.ws.state / "stages" / f"gpu-{socket.gethostname()}.lock"
    with locked(lock, seconds, "at the GPU", ClusterError):
        yield


def _has_one() -> bool:
    import torch

    return torch.cuda.is_available()
