"""Connect to a Ray cluster, or start one on this machine, for as long as a run takes."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import secrets
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.pipeline.stage import BROWSERS
from flywheel.utils.errors import BadInput, first_line
from flywheel.utils.files import atomic_file

if TYPE_CHECKING:
    from flywheel.cluster.nodes import SharedFolder
    from flywheel.cluster.ray_cluster import RayCluster

_STORE_MB = 100  # results are small JSON values: all else lies in the workspace. Ray's default is 30% of the memory.
_REACH_S = 10  # a head that answers does so at once

# Nothing is sent to Ray's makers. Where the head is gone Ray would end this process after a minute, without a word from
# us: `RayCluster.watch` tells of it.
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_gcs_rpc_server_reconnect_timeout_s": "1000000"}

HostPort = tuple[str, int]  # host and port


@contextlib.contextmanager
def open_ray(ws: Workspace, settings: Settings) -> Iterator[RayCluster]:
    """The cluster, its nodes looked at.

    Raises BadInput where Ray is not installed or cannot be reached, ClusterError for a node with a fault, and where no
    environments come to be on the nodes that are to have them.
    """
    if importlib.util.find_spec("ray") is None:
        raise BadInput("Ray is not installed", where="cluster.engine", fix="pip install 'flywheel[ray]'")
    with _ray_connection(settings) as place:
        from flywheel.cluster import env_nodes
        from flywheel.cluster.ray_cluster import RayCluster

        with _open_shared_folder(ws) as shared:
            cluster = RayCluster(shared, settings, place)
            cluster.check()
            with env_nodes.serve_environments_on_nodes(cluster, settings):
                yield cluster


def is_reachable(place: HostPort) -> bool:
    """Whether anything listens there."""
    try:
        socket.create_connection(place, timeout=_REACH_S).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _ray_connection(settings: Settings) -> Iterator[HostPort]:
    """This process as a driver of the cluster; where its head listens."""
    address = settings.cluster.address
    if address and not is_reachable(_parse_address(address)):
        raise BadInput(
            f"no Ray answers at {address}",
            where="cluster.address",
            fix="start its head (`ray start --head`), or leave it empty for one on this machine",
        )
    os.environ.update(_ENVIRONMENT)
    if not address:
        # It wants a token, which the environment of this process keeps: Ray would write one into the home.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        if not os.environ.keys() & {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}:
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    import ray

    try:
        ray.init(
            **({"address": address} if address else _local_ray_options(settings)),
            log_to_driver=False,
            logging_level="ERROR",
        )
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


def _local_ray_options(settings: Settings) -> dict[str, Any]:
    """Of a cluster of this machine alone, which ends with this process."""
    return {
        "address": "local",
        "resources": {BROWSERS: settings.sandbox.browsers},
        "include_dashboard": False,
        "object_store_memory": _STORE_MB << 20,
        "_node_ip_address": "127.0.0.1",
    }


def _parse_address(address: str) -> HostPort:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    return host, int(port)


@contextlib.contextmanager
def _open_shared_folder(ws: Workspace) -> Iterator[SharedFolder]:
    from flywheel.cluster.nodes import SharedFolder, compute_source_digest

    path, text = ws.state / "cluster" / secrets.token_hex(4), secrets.token_hex(16)
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    try:
        with path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield SharedFolder(path, text, compute_source_digest(), ws.root)
    finally:
        path.unlink()
