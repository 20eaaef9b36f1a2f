"""A world for tests of rollout and training: one lamp is lit, left or right, and must be clicked. No browser.

With it a model of some ten thousand parameters, so that training tests take seconds.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from PIL import Image, ImageDraw

from flywheel.agent.actions import Action, Click, Finished
from flywheel.agent.prompt import Context
from flywheel.config import Settings
from flywheel.envs.base import Observation, StepResult, Task
from flywheel.policy.encoding import Encoder
from flywheel.policy.protocol import Completion, SamplingParams
from flywheel.utils.errors import EnvError

SIZE = 64
LEFT = "Thought: left.\nAction: click(point='<point>25 50</point>')"
RIGHT = "Thought: right.\nAction: click(point='<point>75 50</point>')"


def settings(**blocks) -> Settings:
    """Answers are free: these tests train on what a policy says by itself."""
    small = {"policy": {"max_new_tokens": 24, "timeout_s": 30}, "sandbox": {"width": SIZE, "height": SIZE}}
    raw = {**small, **blocks}
    return Settings.model_validate({**raw, "policy": {"guided_decoding": "never", **raw["policy"]}})


def task(number: int, *, max_steps: int = 3, side: str = "") -> Task:
    side = side or ("left" if number % 2 else "right")
    return Task(
        f"lamp{number:03d}",
        "games",
        "tiles",
        "lamp",
        1,
        number,
        "Click the lamp.",
        {"side": side},
        max_steps,
        "train",
        "tiles_cleared",
        1.0,
        "",
    )


def screen(side: str, clicks: int = 0) -> bytes:
    image = Image.new("RGB", (SIZE, SIZE), "black")
    draw = ImageDraw.Draw(image)
    x = 0 if side == "left" else SIZE // 2
    draw.rectangle((x, 0, x + SIZE // 2 - 1, SIZE - 1), fill="yellow")
    draw.rectangle((2, 2, 3 + clicks, 3), fill="red")
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


class LampEnv:
    """Terminated by a click on the lamp or by `finished`. crash_at: the step whose call raises."""

    def __init__(self, crash_at: int | None = None) -> None:
        self.crash_at, self.closed, self.actions = crash_at, False, []

    async def reset(self, task: Task, seed: int) -> StepResult:
        self.task, self.clicks, self.hit = task, 0, False
        return self._result()

    async def step(self, action: Action) -> StepResult:
        await asyncio.sleep(0)
        if self.crash_at == len(self.actions):
            raise EnvError("the page crashed", where=self.task.task_id)
        self.actions.append(action)
        self.clicks += 1
        side = self.task.params["side"]
        self.hit = isinstance(action, Click) and (action.point.x < 0.5) == (side == "left")
        return self._result(terminated=self.hit or isinstance(action, Finished))

    def _result(self, terminated: bool = False) -> StepResult:
        side = self.task.params["side"]
        # The state that the verifier tiles_cleared reads: all of `tiles` gone or none.
        state = {"hit": self.hit, "clicks": self.clicks}
        screenshot = screen(side, self.clicks)
        truncated = not terminated and self.clicks >= self.task.max_steps
        return StepResult(Observation(screenshot, SIZE, SIZE), float(self.hit), terminated, truncated, {"state": state})

    async def checkpoint(self) -> bytes:
        return bytes([self.clicks, self.hit])

    async def restore(self, checkpoint: bytes) -> StepResult:
        self.clicks, self.hit = checkpoint[0], bool(checkpoint[1])
        return self._result(terminated=self.hit)

    async def close(self) -> None:
        self.closed = True


class Lamps:
    """Environments, all of them LampEnvs. make: called with the number of the lease."""

    def __init__(self, make: Callable[[int], LampEnv] = lambda lease: LampEnv()) -> None:
        self.make, self.leases, self.running, self.most = make, 0, 0, 0
        self.lent: list[LampEnv] = []

    @asynccontextmanager
    async def env(self, task: Task | None = None) -> AsyncIterator[LampEnv]:
        env = self.make(self.leases)
        self.lent.append(env)
        self.leases, self.running = self.leases + 1, self.running + 1
        self.most = max(self.most, self.running)
        try:
            yield env
        finally:
            self.running -= 1
            await env.close()

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: Settings, tasks: Iterable[Task] = ()) -> AsyncIterator[Lamps]:
        yield cls()

    @classmethod
    @asynccontextmanager
    async def of(cls, make: Callable[[int], LampEnv]) -> AsyncIterator[Lamps]:
        yield cls(make)


def score_lamp(task: Task, state) -> float:
    """The verifier of this world, put in the place of `flywheel.rewards.scorers.verifier.score_final_state`."""
    return float(state["hit"])


class Scripted:
    """A policy that answers by a function of (context, sampling). Tokens are the text's characters."""

    weight_version = "scripted"

    def __init__(self, answer: Callable[[Context, SamplingParams], str]) -> None:
        self.answer, self.asked = answer, []

    async def complete(self, context: Context, sampling: SamplingParams) -> Completion:
        self.asked.append((context, sampling))
        for _ in range(sampling.seed % 5):  # episodes finish in another order than they began
            await asyncio.sleep(0)
        text = self.answer(context, sampling)
        ids = tuple(map(ord, text))
        return Completion(text, ids, tuple(-0.5 for _ in ids), 7, self.weight_version, True)

    async def load(self, checkpoint: Path) -> None:
        raise AssertionError("never loaded here")

    async def close(self) -> None:
        pass


def small_model(folder: Path, project: Path, seed: int = 0) -> Path:
    """A checkpoint of the real architecture and tokeniser, as small as it goes."""
    import torch
    from transformers import Qwen3VLForConditionalGeneration

    from flywheel.policy.model import save_checkpoint, tiny_config

    config = tiny_config()
    text, vision = config.text_config, config.vision_config
    text.hidden_size, text.intermediate_size, text.num_hidden_layers = 64, 128, 2
    text.num_attention_heads = text.num_key_value_heads = 2
    vision.depth, vision.hidden_size, vision.intermediate_size, vision.num_heads = 1, 64, 128, 2
    vision.out_hidden_size, vision.num_position_embeddings = 64, 16
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3VLForConditionalGeneration(config)
    encoder = Encoder.from_folder(project / "models" / "base")
    encoder.images.size = {"shortest_edge": SIZE * SIZE, "longest_edge": SIZE * SIZE}
    return save_checkpoint(model, encoder, folder)
