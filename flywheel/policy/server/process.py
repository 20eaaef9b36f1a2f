"""Run the policy server (`flywheel model serve`) until a signal; store its API key where local clients find it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import ipaddress
import os
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from flywheel import config
from flywheel.policy import checkpoint
from flywheel.utils import credentials
from flywheel.utils.errors import BadInput, PolicyError
from flywheel.utils.local_ports import errors_of_port

# The API key is in a file that only the server's user can read, outside of any workspace, as a server belongs to none.
# The server holds a lock on the file while it runs, so a client does not take the key that a dead server left behind
# for the key of another server at the same port.


def server_key_path(port: int) -> Path:
    """Return the path of the key file: `$XDG_CACHE_HOME/flywheel/serve/<port>.key`, by default under `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "flywheel" / "serve" / f"{port}.key"


@contextlib.contextmanager
def hold_server_key(port: int, key: str) -> Iterator[Path]:
    """Keep the API key of the server at `port` in its key file within the block; yield the file's path.

    The file is locked meanwhile, and removed at the end of the block. Raises DiskFull.
    """
    path = server_key_path(port)
    credentials.write_private_file(path, f"{key}\n")
    with path.open(encoding="utf-8") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)


def find_server_key(url: str) -> str:
    """Return the API key of the server that this user runs at `url`; "" where there is no such server.

    "" too where `url` is not a loopback address.
    """
    try:
        parts = urlsplit(url)
        if parts.hostname != "localhost" and not ipaddress.ip_address(parts.hostname or "").is_loopback:
            return ""
        with server_key_path(parts.port or 80).open(encoding="utf-8") as left:
            try:
                fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # the server that holds the lock is running
                return left.read().strip()
    except (OSError, ValueError):
        pass
    return ""


GRACE_S = 20.0  # seconds that running requests get after the first signal
_WRITE_S = 5  # seconds to send the last responses


@dataclass(frozen=True)
class ServerReady:
    """Hold how clients reach a server that runs.

    url: policy.endpoint of its clients. model: its name in requests. weight_version: digest of its weights. key_file:
    path of the file with the API key.
    """

    url: str
    model: str
    weight_version: str
    key_file: str


def serve_policy(
    folder: Path,
    policy: config.PolicySettings,
    *,
    host: str,
    port: int,
    name: str,
    key: str,
    say: Callable[[ServerReady], None],
    grace_s: float = GRACE_S,
) -> None:
    """Serve a checkpoint by HTTP, as OpenAI's chat API, until SIGTERM or Ctrl-C; return once the server has shut down.

    Called in the main thread, outside of an event loop. folder: as `base` of `resolve_checkpoint`, without `root`.
    policy: block `policy`. host, port: address; port 0 takes a free one. name: name of the model in requests. key: API
    key that clients must send; it is stored in a file that only this user can read, and removed at the end. say: called
    once the server answers. grace_s: seconds that running requests get after the first signal; a second signal ends
    them. Raises, before the server answers, BadInput for an address that cannot be used and an action grammar that
    guided decoding does not support, ModelError for a folder or name that is no checkpoint or whose tokeniser does not
    allow guided decoding where that is set to always, and for a device that is not there, PolicyError where the server
    does not start, DiskFull where its key cannot be stored.
    """

    async def serve(listener: socket.socket, folder: Path) -> None:
        # Imported late, as it imports torch: a bad address is reported at once.
        from flywheel.policy.inference.embedded import EmbeddedPolicy
        from flywheel.policy.server.app import PolicyService, create_policy_app
        from flywheel.utils.local_server import LocalServer  # and uvicorn, which `find_server_key` does not need

        engine = EmbeddedPolicy(folder, policy)
        try:
            service = PolicyService(engine, name=name, folder=folder, key=key, settings=policy)
            stop = _stop_on_signals(service.cut.set)
            server = LocalServer(create_policy_app(service), [listener], _WRITE_S)
            running = await server.start("flywheel model serve", PolicyError)
            with hold_server_key(listener.getsockname()[1], key) as key_file:
                say(ServerReady(f"http://{_address(listener)}/v1", name, engine.weight_version, str(key_file)))
                stopping = asyncio.create_task(stop.wait())
                await asyncio.wait({stopping, running}, return_when=asyncio.FIRST_COMPLETED)
                await service.drain(grace_s)
                await server.stop()
                stopping.cancel()
        finally:
            await engine.close()

    with _listener(host, port) as listener:
        asyncio.run(serve(listener, checkpoint.resolve_checkpoint(folder)))


def _stop_on_signals(cut: Callable[[], None]) -> asyncio.Event:
    """Return an event that the first SIGTERM or SIGINT sets; each further signal calls `cut`."""
    stop = asyncio.Event()

    def told() -> None:
        if stop.is_set():
            cut()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told)
    return stop


@contextlib.contextmanager
def _listener(host: str, port: int) -> Iterator[socket.socket]:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:  # a part of a name that is empty or too long is a UnicodeError
        why = getattr(error, "strerror", None) or error
        raise BadInput(f"not an address: {why}", where=f"--host {host}") from None
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            with errors_of_port(port, host, "; 0 takes a free one"):
                listener.bind(address)
        except OSError as error:
            what = f"cannot serve at {host}:{port}: {error.strerror}"
            raise BadInput(what, where="--host, --port", fix="give another address") from None
        yield listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
