"""Hold one environment of a node as long as its lease lasts, and keep its episode for watchers and for take-over."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import zipfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from flywheel.agent.actions import ACTION_NAMES, Action
from flywheel.envs.base import Checkpointable, Env, PartialCheckpointable, StepResult, Task
from flywheel.envs.registry import EnvPool
from flywheel.envs.remote import protocol
from flywheel.envs.remote.protocol import LeaseToken
from flywheel.utils.errors import EnvError

log = logging.getLogger(__name__)
# The names of a client's calls.
CALLS = ("open", "reset", "step", "checkpoint", "restore", "save_partial", "restore_partial", "close")
_MAX_HISTORY_BYTES = 2**27
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)  # of the files: equal episodes give equal bytes


class EpisodeBuffer:
    """Keep the newest steps of an episode, for people who download it from the watch page.

    limit: bytes of pictures and texts; 0: nothing is kept. The oldest steps make room for new ones.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._about: dict[str, Any] = {}
        self._steps: deque[tuple[dict[str, Any], bytes | None, int]] = deque()  # step, picture, their size in bytes
        self._number = self._size = 0

    @property
    def empty(self) -> bool:
        """Tell whether no step is kept."""
        return not self._steps

    def begin(self, task: Task, seed: int) -> None:
        """Begin another episode; the steps of the last one are dropped."""
        self._about = {"task": task.task_id, "instruction": task.instruction, "world": task.world, "seed": seed}
        self._steps.clear()
        self._number = self._size = 0

    def add(self, action: Action | None, result: StepResult) -> None:
        """Append a step. action: None for a reset, or a checkpoint that was restored. result: what followed."""
        if not self._limit:
            return
        seen, info = result.observation, result.info
        step = {"step": self._number, "action": [ACTION_NAMES[type(action)], asdict(action)] if action else None}
        step |= {"text": seen.text, "url": seen.url, "reward": result.reward, "score": info.get("score")}
        step |= {name: info[name] for name in ("note", "result") if name in info}
        step |= {"terminated": result.terminated, "truncated": result.truncated}
        if seen.screenshot is not None:
            step["picture"] = f"{self._number:05d}.png"
        size = len(seen.screenshot or b"") + len(json.dumps(step, default=str))
        self._steps.append((step, seen.screenshot, size))
        self._number, self._size = self._number + 1, self._size + size
        while self._size > self._limit and len(self._steps) > 1:
            self._size -= self._steps.popleft()[2]

    def make_packer(self) -> Callable[[], bytes]:
        """Return a function that packs the steps into a ZIP file (`episode.json`, pictures); any thread may call it."""
        steps = list(self._steps)
        about = {**self._about, "left_out": self._number - len(steps), "steps": [step for step, _, _ in steps]}
        pictures = {step["picture"]: picture for step, picture, _ in steps if picture is not None}
        return partial(_zip_episode, about, pictures)


def _zip_episode(about: Mapping[str, Any], pictures: Mapping[str, bytes]) -> bytes:
    kept = io.BytesIO()
    with zipfile.ZipFile(kept, "w") as file:
        file.writestr(zipfile.ZipInfo("episode.json", _ZIP_DATE), json.dumps(about, indent=1, default=str))
        for name, picture in pictures.items():
            file.writestr(zipfile.ZipInfo(name, _ZIP_DATE), picture)
    return kept.getvalue()


@dataclass(frozen=True)
class PlayedStep:
    """Hold one step of an episode. action: None for the reset. said: what the agent announced before it."""

    action: Action | None
    said: tuple[Mapping[str, Any], ...]
    result: StepResult


class EpisodeHistory:
    """Keep a whole episode from its reset on, so that a person can take it over and finish it as training data.

    steps: the reset first. missing: why the episode is not here from its beginning; "": it is.
    """

    def __init__(self) -> None:
        self.steps: list[PlayedStep] = []
        self.missing = "no task has been given to it yet"  # why the episode is not here from its beginning; "": it is
        self._size = 0

    def begin(self, result: StepResult) -> None:
        """Begin an episode anew. result: of the reset."""
        self.steps, self.missing, self._size = [], "", 0
        self.add(None, (), result)

    def add(self, action: Action | None, said: Sequence[Mapping[str, Any]], result: StepResult) -> None:
        """Append a step; past 128 MiB of pictures and texts the whole episode is dropped.

        said: what the agent announced before it.
        """
        if self.missing:
            return
        seen = result.observation
        self._size += len(seen.screenshot or b"") + len(seen.text or "")
        self.steps.append(PlayedStep(action, tuple(said), result))
        if self._size > _MAX_HISTORY_BYTES:
            self.forget("its screens are more than can be kept")

    def forget(self, why: str) -> None:
        """Drop the episode. why: what `missing` tells from now on."""
        self.steps, self.missing = [], why


class NodeSession:
    """Hold an environment of a node as long as its lease; one asyncio task enters and leaves the pool's context.

    pool: lends the environment. note: the lease. film: bytes of its episode that are kept for watchers. history: keeps
    its episode for a person who takes it over as data; None: nobody can. taken_by: that person; "": nobody.
    """

    def __init__(self, pool: EnvPool, note: LeaseToken, film: int = 0, history: EpisodeHistory | None = None) -> None:
        self.history, self.taken_by = history, ""  # taken_by: the person whose it is now
        self.until, self.episode_buffer = note.until, EpisodeBuffer(film)
        self._over = asyncio.Event()
        self._env: asyncio.Future[Env] = asyncio.get_running_loop().create_future()
        self._env.add_done_callback(lambda one: one.cancelled() or one.exception())  # nobody may await it
        self.lock = asyncio.Lock()  # held by a call, and by a person's gestures
        self.visitor: object | None = None  # the watcher who has taken the session over
        self.kind = note.kind
        self.task: Task | None = None
        self.last_result: StepResult | None = None  # its newest; steps: results of this episode after the first
        self.steps = 0
        self.life = asyncio.create_task(self._live(pool))

    async def _live(self, pool: EnvPool) -> None:
        try:
            async with pool.env() as env:
                self._env.set_result(env)
                await self._over.wait()
        except Exception as error:
            if not self._env.done():
                self._env.set_exception(error)
            else:
                log.warning("a session did not end well: %s", error)

    async def env(self) -> Env:
        """Wait until the environment is open, and return it. Raises what opening it raised."""
        return await asyncio.shield(self._env)

    async def call(self, name: str, body: bytes) -> bytes:
        """Carry out a client's call on the environment and return the response's body; calls run one at a time.

        name: of CALLS. body: as `client.py` posts it. Raises what the environment's
        call and opening it raise (EnvError, BadInput, DataError), and ValueError, KeyError, TypeError or AttributeError
        for a body that cannot be decoded.
        """
        env = await self.env()
        async with self.lock:
            if self.taken_by:
                what = f"{self.taken_by} took this session over, and plays it to its end"
                raise EnvError(what, where=f"session of {self.kind}", fix="play the episode again elsewhere")
            match name:
                case "open":
                    kinds = {"checkpoints": Checkpointable, "keeps": PartialCheckpointable}
                    return protocol.encode_message({what: isinstance(env, kind) for what, kind in kinds.items()})
                case "reset":
                    said, _ = protocol.decode_message(body)
                    self.task, self.steps = Task(**said["task"]), -1
                    self.episode_buffer.begin(self.task, said["seed"])
                    if self.history and said["seed"] == self.task.seed:
                        return self._record(await env.reset(self.task, said["seed"]), begins=True)
                    return self._record(await env.reset(self.task, said["seed"]), missing="it has another seed")
                case "step":
                    action, said = protocol.decode_step(body)
                    return self._record(await env.step(action), action, said)
                case "checkpoint" | "save_partial":
                    return protocol.encode_message({}, await getattr(env, name)())
                case "restore" | "restore_partial":
                    return self._record(await getattr(env, name)(body), missing="it began from a checkpoint")
                case _:  # close
                    await env.close()
                    return protocol.encode_message({})

    def _record(
        self,
        result: StepResult,
        action: Action | None = None,
        said: Sequence[Mapping[str, Any]] = (),
        *,
        begins: bool = False,
        missing: str = "",
    ) -> bytes:
        """Record a result for watchers, and encode it for the client.

        said: what the agent announced. begins: it is a reset's. missing: why the episode cannot become data from here.
        """
        self.last_result, self.steps = result, self.steps + 1
        self.episode_buffer.add(action, result)
        if self.history:
            if begins:
                self.history.begin(result)
            elif missing:
                self.history.forget(missing)
            else:
                self.history.add(action, said, result)
        return protocol.encode_result(result)

    async def end(self) -> None:
        """Give the environment back to its pool, and wait until that is done."""
        self._over.set()
        if not self._env.done():
            self.life.cancel()
        await asyncio.wait([self.life])
