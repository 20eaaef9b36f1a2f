"""For tests of the remote path: small checkpoints, a real `model serve` process, and a server that misbehaves."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image as Picture
from processes import PATIENCE_S

from flywheel.agent.prompt import Context, Image, Message
from flywheel.config import AdapterSettings
from flywheel.envs.screens import vocabulary
from flywheel.policy.adapter import attach_adapter, get_adapter_state, save_adapter
from flywheel.policy.chat_api import format_chat_answer, parse_chat_request
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.policy.encoding import Encoder
from flywheel.policy.model import load_model, make_tiny_model, save_checkpoint, train_tokenizer
from flywheel.policy.protocol import Completion

COMMAND = (sys.executable, "-c", "from flywheel.cli import main; main()", "model", "serve")
BODY = {"model": "small", "messages": [{"role": "user", "content": "Go."}]}  # the least that can be asked
TEXTS = ("Click the red tile.", "Go.", "Turn on night light and sync, then open the cart.", "Read the number.")


def screen(seed: int) -> bytes:
    out = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 255, (224, 224, 3), dtype=np.uint8)
    Picture.fromarray(pixels).save(out, format="PNG")
    return out.getvalue()


def context(number: int) -> Context:
    return (Message("user", (Image(screen(number)), TEXTS[number % 4])),)


def checkpoints(root: Path, count: int) -> list[Path]:
    """Folders of different random weights."""
    encoder = Encoder.new(train_tokenizer(vocabulary.tokenizer_corpus()))
    return [save_checkpoint(make_tiny_model(seed), encoder, root / f"m{seed}") for seed in range(count)]


def make_adapter(base: Path, folder: Path, seed: int, **settings) -> Path:
    """An adapter of random matrices, as large as training would make them. settings: of the block `adapter`."""
    model = load_model(base)
    attach_adapter(model, base, AdapterSettings(method="lora", **{"rank": 4, "alpha": 8} | settings), seed)
    drawn = torch.Generator().manual_seed(seed)
    for name, weight in get_adapter_state(model).items():
        if "lora_B" in name:
            weight.copy_(torch.randn(weight.shape, generator=drawn) * 0.05)
    return save_adapter(model, base, folder)


@dataclass(frozen=True)
class Server:
    process: subprocess.Popen
    url: str
    model: str
    weight_version: str
    key: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    def end(self) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate()
        return self.process.wait(PATIENCE_S)


@contextlib.contextmanager
def serving(folder: Path, *options: str) -> Iterator[Server]:
    """`flywheel model serve` in a process of its own, on a free port."""
    command = [*COMMAND, str(folder), "--port", "0", "--json", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert line, f"the server did not start: exit code {process.wait(PATIENCE_S)}"
        ready = json.loads(line)
        assert ready["pid"] == process.pid
        yield Server(
            process, ready["url"], ready["model"], ready["weight_version"], Path(ready["key_file"]).read_text().strip()
        )
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
        process.stdout.close()


# -- a server that misbehaves: for what a real one does only when it breaks -------------------------------------------
Write = Callable[[bytes], Awaitable[None]]
Behaviour = Callable[[bytes, Write], Awaitable[None]]


def http(status: int, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} x", f"Content-Length: {len(body)}", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body


def says(status: int, body: object, *headers: str) -> Behaviour:
    """Answers with this status and JSON (or these bytes)."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def behave(request: bytes, write: Write) -> None:
        await write(http(status, raw, *headers))

    return behave


async def breaks(request: bytes, write: Write) -> None:
    """Closes the connection without a word."""


async def half(request: bytes, write: Write) -> None:
    """Closes the connection in the middle of an answer."""
    await write(http(200, b'{"choices": [' + b" " * 1000)[:300])


async def hangs(request: bytes, write: Write) -> None:
    await asyncio.Event().wait()


@dataclass
class Misbehaving:
    """Plays `next` in order, one for each completion that is asked for; when they are used up it answers well."""

    folder: Path
    next: list[Behaviour] = field(default_factory=list)
    asked: int = 0
    url: str = ""

    def __post_init__(self) -> None:
        self.encoder, self.version = Encoder.from_folder(self.folder), checkpoint_digest(self.folder)
        row = {"id": "tiny", "owned_by": "flywheel", "root": str(self.folder), "weight_version": self.version}
        self.routes: dict[str, Behaviour] = {"GET /v1/models": says(200, {"data": [row]})}

    def good(self, raw: bytes) -> dict:
        """A well-formed answer: two tokens, of log-probability -1."""
        asked = parse_chat_request(raw, max_new_tokens=8, seed=lambda: 0)
        prompt = self.encoder.prompt_ids(asked.context)
        done = Completion("ab", (45, 46), (-1.0, -1.0), len(prompt), self.version, False)
        return format_chat_answer({"id": "x", "created": 0, "model": "tiny"}, asked, [done], prompt, str)

    def spoilt(self, spoil: Callable[[dict], object]) -> Behaviour:
        """The well-formed answer after `spoil` changed it."""

        async def behave(request: bytes, write: Write) -> None:
            body = self.good(request)
            spoil(body)
            await write(http(200, json.dumps(body).encode()))

        return behave

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def write(data: bytes) -> None:
            writer.write(data)
            await writer.drain()

        try:
            head = await reader.readuntil(b"\r\n\r\n")
            sizes = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            body = await reader.readexactly(int(sizes[0]) if sizes else 0)
            route = " ".join(head.decode().split(" ")[:2])
            if route == "POST /v1/chat/completions":
                self.asked += 1
                behave = self.next.pop(0) if self.next else self.spoilt(lambda body: None)
            else:
                behave = self.routes.get(route, says(404, {"detail": "Not Found"}))
            await behave(body, write)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    @contextlib.contextmanager
    def running(self) -> Iterator[Misbehaving]:
        """On a thread of its own, so that a test may wait for it."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        starting = asyncio.start_server(self._serve, "127.0.0.1", 0)
        server = asyncio.run_coroutine_threadsafe(starting, loop).result()
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(self._end, loop, server)
            thread.join()
            loop.close()

    @staticmethod
    def _end(loop: asyncio.AbstractEventLoop, server: asyncio.Server) -> None:
        server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.call_soon(loop.call_soon, loop.stop)
