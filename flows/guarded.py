"""Prefect's server as `prefect server start` starts it, but that it answers to its own host and origin alone.

Prefect itself looks at neither. `python -m flows.guarded PORT`, with its settings in the environment.
"""

from __future__ import annotations

import sys

import uvicorn
from prefect.server.api.server import create_app
from prefect.settings import get_current_settings

from flywheel.local_server import OwnHost


def serve(port: int) -> None:
    server = get_current_settings().server
    uvicorn.run(
        OwnHost(create_app(final=True), [port]),
        host="127.0.0.1",
        port=port,
        timeout_keep_alive=server.api.keepalive_timeout,
        ws_ping_interval=server.api.websocket_ping_interval,
        ws_ping_timeout=server.api.websocket_ping_timeout,
        log_level=server.logging_level.lower(),
    )


if __name__ == "__main__":
    serve(int(sys.argv[1]))
