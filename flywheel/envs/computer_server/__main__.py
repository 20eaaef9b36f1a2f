"""Start the computer server: `python flywheel/envs/computer_server --socket FILE`, or `--port N` with a token.

The token is in FLYWHEEL_GUEST_TOKEN, or in the file that --token-file names. Inside a machine that flywheel opens the
server is the first process, which none of the others can end, and is handed its socket (`--fd`; where the machine is a
container, by who waits at `--hello`).
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # it runs as a folder, wherever it was copied to

import desktop
import init_process
import osworld_api
from screen import ScreenAccess, screen_routes
from server import make_http_server

TOKEN = "FLYWHEEL_GUEST_TOKEN"


def main() -> None:
    """Parse the options and serve until the process is ended."""
    parser = argparse.ArgumentParser(prog="flywheel env computer-server", description=__doc__)
    parser.add_argument("--socket", type=Path, help="a unix socket to make")
    parser.add_argument("--port", type=int, help="a port on 127.0.0.1")
    parser.add_argument("--host", default="127.0.0.1", help="where the port is (default: %(default)s)")
    parser.add_argument("--token-file", type=Path, help=f"a file with the token, in place of {TOKEN}")
    parser.add_argument("--fd", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--ready-fd", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--hello", help=argparse.SUPPRESS)
    options = parser.parse_args()
    token = os.environ.pop(TOKEN, "")
    if options.token_file is not None:
        token = options.token_file.read_text(encoding="utf-8").strip()
    waits = socket.socket(fileno=options.ready_fd) if options.ready_fd is not None else None
    if options.hello:
        waits, listening = init_process.receive_listening_socket(options.hello)
    else:
        listening = _listening(options, token)
    home, environment, screen = Path.home(), {**os.environ, "HOME": str(Path.home())}, ScreenAccess()
    routes: dict = {}
    if os.name == "posix":  # shell, Python, files and streams need Unix terminals
        import sdk_routes

        routes |= sdk_routes.sdk_routes(home, environment)
    routes |= {
        **screen_routes(screen),
        **desktop.desktop_routes(screen, home, environment),
        **osworld_api.osworld_routes(screen, home, environment),
        ("GET", "/health"): lambda request: {"ok": True},
    }
    server = make_http_server(listening, routes, token)
    if waits is not None:
        init_process.start_as_init_process(waits, home)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # by an exception, so that exit handlers end the desktop
    server.serve_forever()


def _listening(options: argparse.Namespace, token: str) -> socket.socket:
    if options.fd is not None:
        return socket.socket(fileno=options.fd)
    if options.socket is not None:
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(options.socket))
        options.socket.chmod(0o600)
        return listening
    if options.port is None:
        sys.exit("flywheel env computer-server: give --socket FILE, or --port N")
    if not token:
        sys.exit(
            "flywheel env computer-server: a port is open to all users of this machine: "
            f"set {TOKEN}, or give --token-file"
        )
    return socket.create_server((options.host, options.port))


if __name__ == "__main__":
    main()
