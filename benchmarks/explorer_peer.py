"""Inspect's viewer on a trajectory of ours, as a peer: it has an environment of its own, since it asks for other
versions (`python -m venv inspect && inspect/bin/pip install inspect_ai pyarrow`).
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from flywheel.config.workspace import Workspace
from flywheel.store import partitions
from flywheel.utils.local_ports import bind_free_port

_STARTS_S = 60


@contextlib.contextmanager
def inspect_viewer(environment: Path, ws: Workspace, iteration: int) -> Iterator[str]:
    """Serve the iteration's one trajectory within the block; gives the address of its messages."""
    files = [str(partitions.partition_files(ws, table, iteration, "rollout")[0]) for table in ("steps", "images")]
    with tempfile.TemporaryDirectory() as folder, bind_free_port() as taken:
        port = taken.getsockname()[1]
        taken.close()
        script = str(Path(__file__).with_name("explorer_inspect.py"))
        subprocess.run([environment / "bin" / "python", script, *files, f"{folder}/long.eval"], check=True)
        command = [environment / "bin" / "inspect", "view", "start", "--log-dir", folder, "--port", str(port)]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            address = f"http://127.0.0.1:{port}"
            _wait(address)
            yield f"{address}/#/logs/long.eval/samples/sample/long/1/messages"
        finally:
            server.terminate()
            server.wait(30)


def _wait(address: str) -> None:
    until = time.monotonic() + _STARTS_S
    while time.monotonic() < until:
        with contextlib.suppress(httpx.HTTPError):
            httpx.get(address)
            return
        time.sleep(0.2)
    raise SystemExit(f"Inspect's viewer does not answer within {_STARTS_S} s")
