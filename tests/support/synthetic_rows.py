"""Rows of a small workspace: tasks, trajectories with their steps and screens, curves of RL."""

from __future__ import annotations

import hashlib
import io
import json
import math
import random
import zlib
from datetime import UTC, datetime, timedelta
from functools import cache

from PIL import Image, ImageDraw

from flywheel.envs.tasks.drawing import task_from_row
from flywheel.rewards.scorer import ScoringInput
from flywheel.store.schema import Step, Trajectory, metric_row, record_from_row

START = datetime(2026, 11, 1, 9, tzinfo=UTC)
WORLDS = {"games": ("tiles", "merge"), "sites": ("shop", "settings")}


@cache
def screen(number: int) -> bytes:
    """A PNG of a small page: a bar, a card, a button whose place depends on `number`."""
    image = Image.new("RGB", (224, 224), "#f4f5f7")
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, 224, 26), fill="#31456a")
    draw.text((8, 7), f"Shop  step {number}", fill="white")
    draw.rounded_rectangle((14, 40, 210, 200), 8, fill="white", outline="#cfd4dd")
    for line in range(3):
        draw.rectangle((28, 56 + 22 * line, 100 + 17 * ((number + line) % 5), 64 + 22 * line), fill="#d9dee8")
    x, y = 30 + 31 * (number % 5), 140 + 13 * (number % 3)
    draw.rounded_rectangle((x, y, x + 46, y + 22), 4, fill="#2f7d5b")
    draw.text((x + 9, y + 5), "Add", fill="white")
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def image_row(number: int) -> dict:
    data = screen(number)
    return {"sha256": hashlib.sha256(data).hexdigest(), "width": 224, "height": 224, "format": "png", "bytes": data}


def step(trajectory: dict, number: int, *, total: int, kind: str = "click") -> dict:
    human = trajectory["author"] == "human"
    x, y = 0.24 + 0.14 * (number % 5), 0.67 + 0.06 * (number % 3)
    action = {
        "click": f"click(point='<point>{int(100 * x)} {int(100 * y)}</point>')",
        "type": "type(content='blue mug\\n')",
        "drag": f"drag(start_point='<point>20 30</point>', end_point='<point>{int(100 * x)} {int(100 * y)}</point>')",
        "scroll": "scroll(point='<point>50 50</point>', direction='down')",
        "hotkey": "hotkey(key='ctrl a')",
        "finished": "finished(content='done')",
    }[kind]
    points = {"click": (x, y, None, None), "drag": (0.2, 0.3, x, y), "scroll": (0.5, 0.5, None, None)}.get(
        kind, (None,) * 4
    )
    begun = trajectory["started_at"] + timedelta(milliseconds=700 * number)
    return {
        "trajectory_id": trajectory["trajectory_id"],
        "step": number,
        "author": trajectory["author"],
        "thought": f"The item is not in the cart yet, so I {kind} the next thing I need.",
        "action_type": kind,
        "action": action,
        "raw_text": f"Thought: next.\nAction: {action}",
        "x": points[0],
        "y": points[1],
        "x2": points[2],
        "y2": points[3],
        "prompt_tokens": 210,
        "token_ids": None if human else [5, 6, 7],
        "logprobs": None if human else [-0.2, -0.1, -0.9],
        "weight_version": trajectory["policy_version"],
        "image_sha256": image_row(number)["sha256"],
        "url": "http://shop.local/",
        "reward": 0.0,
        "terminated": number == total - 1,
        "truncated": False,
        "started_at": begun,
        "ended_at": begun + timedelta(milliseconds=400),
    }


def trajectory(name: str, task: dict, *, at: datetime = START, **changes) -> dict:
    return {
        "trajectory_id": name,
        "task_id": task["task_id"],
        "domain": task["domain"],
        "world": task["world"],
        "level": 1,
        "instruction": task["instruction"],
        "source": "rollout",
        "author": "model",
        "sample": 0,
        "policy_version": "d0base",
        "status": "completed",
        "error": None,
        "steps": 3,
        "reward": 1.0,
        "final_state": "{}",
        "started_at": at,
        "ended_at": at + timedelta(seconds=5),
        "run_id": "run-1",
        **changes,
    }


def task(name: str, domain: str, world: str, split: str = "train") -> dict:
    words = {"tiles": "Clear the red tile", "merge": "Reach 64", "shop": "Buy the blue mug", "settings": "Turn on sync"}
    return {
        "task_id": name,
        "domain": domain,
        "world": world,
        "template": "one",
        "level": 1,
        "seed": zlib.crc32(name.encode()),
        "instruction": words[world],
        "params": "{}",
        "max_steps": 8,
        "split": split,
        "verifier": world,
        "threshold": 1.0,
        "checksum": "c",
        "environment": "browser",
    }


def scoring_input(steps: int = 3, *, state: dict | None = None, **changes) -> ScoringInput:
    """A finished trajectory with its task and its screens, as scorers see it.

    steps: how many. state: the final one; None: one that the task's verifier holds for solved. changes: other columns
    of the trajectory.
    """
    about = task("k1", "sites", "shop") | {"verifier": "state:score"}
    ended = json.dumps({"won": True, "score": 1.0} if state is None else state)
    row = trajectory("t1", about, steps=steps, final_state=ended, **changes)
    done = (step(row, n, total=steps, kind="finished" if n == steps - 1 else "click") for n in range(steps))
    return ScoringInput(
        task_from_row(about),
        record_from_row("trajectories", Trajectory, row),
        tuple(record_from_row("steps", Step, one) for one in done),
        {image_row(n)["sha256"]: screen(n) for n in range(steps)},
    )


def rl_metrics(domain: str, k: int, rng: random.Random, steps: int = 8) -> list[dict]:
    """The curves of one specialist."""
    rows = [metric_row("value_pretraining_explained_variance", 0.1 + 0.1 * rng.random(), domain=domain)]
    for n in range(1, steps + 1):
        at = n / steps
        shape = {
            "reward": 0.2 + 0.12 * k + 0.3 * at,
            "success": 0.15 + 0.1 * k + 0.35 * at,
            "entropy": 0.9 - 0.4 * at,
            "kl": 0.001 + 0.002 * at,
            "mismatch": 3e-6,
            "clip_fraction": 0.01 + 0.03 * at,
            "value_loss": 0.3 * math.exp(-n / 4),
            "explained_variance": 0.2 + 0.4 * at,
            "think_length": 9 - 2 * at,
            "response_length": 24 - 3 * at,
            "rounds": 5 - at,
            "length_consumed": 3.5 + 0.5 * at,
            "length_in_flight": 6 - at,
            "staleness_mean": 0.4 + 0.3 * at,
            "staleness_max": 2,
            "utilisation": 0.8,
            "curriculum_informative": 0.5 + 0.2 * at,
            "group_variance": 0.1,
            "audit_false_pay": 0.05,
            "audit_missed": 0.1,
            "groups_all_success": 0.2,
            "groups_all_failed": 0.4 - 0.2 * at,
            "curriculum_always": 0.1 + 0.3 * at,
            "curriculum_never": 0.5 - 0.3 * at,
            "curriculum_level": 1 + round(at),
        }
        for name, value in shape.items():
            noise = 0 if name in ("staleness_max", "curriculum_level") else 0.12 * value * (rng.random() - 0.5)
            rows.append(metric_row(name, value + noise, domain=domain, step=n))
        for number, world in enumerate(WORLDS[domain]):
            value = min(1.0, shape["success"] * (0.6 + 0.5 * number) + 0.1 * rng.random())
            rows.append(metric_row("success", value, domain=f"{domain}/{world}", step=n))
    return rows


def rl_curriculum(domain: str, k: int) -> list[dict]:
    """Six tasks: one always solved, two never, one above the level, two mixed."""
    never, above = ("never solved", 0.0), ("level not reached", 0.0)
    fates = (("always solved", 4.0), never, never, above, ("", 2.0), ("", 1.0))
    share = {"": 0.34, "level not reached": 0.04, "always solved": 0.1, "never solved": 0.09}
    return [
        {
            "task_id": f"i{k}-task{n:02d}",
            "domain": domain,
            "world": WORLDS[domain][n % 2],
            "template": "one",
            "level": 1,
            "groups": 3 - n % 3,
            "successes": won,
            "episodes": 0.0 if why == above[0] else 4.0,
            "sampling_prob": share[why],
            "relative_prob": 6 * share[why],
            "reason": why,
        }
        for n, (why, won) in enumerate(fates)
    ]
