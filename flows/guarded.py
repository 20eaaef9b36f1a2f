"""Prefect's server as `prefect server start` starts it, but that it answers to its own host and origin alone.

Prefect itself looks at neither. `python -m flows.guarded SOCKET`: the number under which it was given the socket to
listen at; its settings are in the environment.
"""

from __future__ import annotations

import socket
import sys
from datetime import timedelta
from functools import partial

import uvicorn
from prefect.server.api import background_workers
from prefect.server.api.server import create_app
from prefect.settings import get_current_settings

from flows import database
from flywheel.errors import BadInput
from flywheel.local_server import OwnHost

# Its own services look whether one of them is due, and whether one is to be called off: four times a second by default,
# which is a sixth of what an idle server takes. They are due each 20 seconds and more.
_LOOKS = timedelta(seconds=1)


def serve(listener: socket.socket) -> None:
    background_workers.Worker = partial(
        background_workers.Worker, minimum_check_interval=_LOOKS, scheduling_resolution=_LOOKS
    )
    server = get_current_settings().server
    config = uvicorn.Config(
        OwnHost(create_app(final=True), [listener.getsockname()[1]]),
        timeout_keep_alive=server.api.keepalive_timeout,
        ws_ping_interval=server.api.websocket_ping_interval,
        ws_ping_timeout=server.api.websocket_ping_timeout,
        log_level=server.logging_level.lower(),
    )
    uvicorn.Server(config).run(sockets=[listener])


def _main(descriptor: str) -> int:
    try:
        database.look()
    except BadInput as error:
        print(error, flush=True)
        return error.exit_code
    serve(socket.socket(fileno=int(descriptor)))
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
