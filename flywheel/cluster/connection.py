"""Connect to a Ray cluster, or start one on this machine, for as long as a run takes."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import socket
from collections.abc import Iterator
from typing import Any

from flywheel.config import Settings
from flywheel.pipeline.stage import BROWSERS
from flywheel.training.distributed.worker_group import HostPort
from flywheel.utils.errors import BadInput, first_line

_STORE_MB = 100  # results are small JSON values: all else lies in the workspace. Ray's default is 30% of the memory.
_REACH_S = 10  # a head that answers does so at once

# No usage statistics. Where the head is gone Ray would end this process after a minute; `RayCluster.check_head`
# reports it instead.
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_gcs_rpc_server_reconnect_timeout_s": "1000000"}


def is_reachable(place: HostPort) -> bool:
    """Tell whether anything listens at `place`, (host, port); waits up to 10 seconds."""
    try:
        socket.create_connection(place, timeout=_REACH_S).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def connect_to_ray(settings: Settings) -> Iterator[HostPort]:
    """Connect this process to `cluster.address`, or to a Ray that it starts, and yield the (host, port) of its head.

    The connection, and a Ray that was started, end with the block. Raises BadInput where Ray is not installed, cannot
    be reached, or cannot be started.
    """
    if importlib.util.find_spec("ray") is None:
        raise BadInput("Ray is not installed", where="cluster.engine", fix="pip install 'flywheel[ray]'")
    address = settings.cluster.address
    if address and not is_reachable(_parse_address(address)):
        raise BadInput(
            f"no Ray answers at {address}",
            where="cluster.address",
            fix="start its head (`ray start --head`), or leave it empty for one on this machine",
        )
    os.environ.update(_ENVIRONMENT)
    if not address:
        # It needs a token. This process's environment holds it: else Ray would write one into the home folder.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        if not os.environ.keys() & {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}:
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    import ray

    options: dict[str, Any] = {"address": address}
    if not address:  # of this machine alone; it ends with this process
        options = {
            "address": "local",
            "resources": {BROWSERS: settings.sandbox.browsers},
            "include_dashboard": False,
            "object_store_memory": _STORE_MB << 20,
            "_node_ip_address": "127.0.0.1",
        }
    try:
        ray.init(**options, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # of a dozen kinds: a wrong token, another version, a machine that is no node
        with contextlib.suppress(Exception):
            ray.shutdown()
        raise BadInput(
            f"Ray cannot be {'reached' if address else 'started'}: {first_line(str(error)) or type(error).__name__}",
            where=f"cluster.address {address}".strip(),
            fix="look at the token (RAY_AUTH_TOKEN) and at the versions of Ray and Python, which must be the cluster's",
        ) from error
    try:
        yield _parse_address(address or ray.get_runtime_context().gcs_address)
    finally:
        ray.shutdown()


def _parse_address(address: str) -> HostPort:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    return host, int(port)
