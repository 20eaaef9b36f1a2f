"""A small workspace that looks like one after some turns, made through the schema alone: no browser, no model.

`incoming` writes what ingest, synthesize, rollout and score leave; `outgoing` what the stages after route leave.
"""

from __future__ import annotations

import hashlib
import io
import math
import random
from datetime import UTC, datetime, timedelta
from functools import cache

from PIL import Image, ImageDraw

from flywheel.evaluation import rivals
from flywheel.files import write_json, write_text
from flywheel.settings import Settings
from flywheel.store import lineage, manifest, metrics, versioning
from flywheel.store.partitions import write
from flywheel.workspace import Workspace, label

START = datetime(2026, 11, 1, 9, tzinfo=UTC)
WORLDS = {"games": ("tiles", "merge"), "sites": ("shop", "settings")}
_KINDS = ("click", "type", "drag", "scroll", "hotkey", "finished")


def workspace(root, **settings) -> tuple[Workspace, Settings]:
    ws = Workspace(root)
    chosen = Settings.model_validate({"recording": {"sessions_per_iteration": 0}, **settings})
    write_text(ws.params, "seed: 7\n")
    versioning.prepare(ws)
    manifest.genesis(ws, digest="d0base")
    return ws, chosen


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
        "seed": 3,
        "instruction": words[world],
        "params": "{}",
        "max_steps": 8,
        "split": split,
        "verifier": world,
        "threshold": 1.0,
        "checksum": "c",
    }


def incoming(ws: Workspace, settings: Settings, k: int, *, tasks: int = 10, samples: int = 4) -> None:
    """Partitions of ingest, synthesize, rollout and score of iteration k; two rollouts are not sound."""
    rng = random.Random(k)
    versioning.add_iteration(ws, k, settings)
    places = [(domain, world) for domain, worlds in WORLDS.items() for world in worlds]
    train = [task(f"i{k}-task{n:02d}", *places[n % 4]) for n in range(tasks)]
    held = [task(f"held{n:02d}", *places[n % 4], "eval") for n in range(8)]
    write(ws, "tasks", k, "synthesize", [*train, *held])
    write(ws, "images", k, "synthesize", [])
    write(ws, "general", k, "synthesize", [])
    _metrics(ws, k, "synthesize", [metrics.row("tasks", tasks)], 4)
    _ingest(ws, k)
    rolled, scores = [], []
    policy = manifest.read_promotion(ws, k - 1)["digest"]
    for n in range(tasks * samples):
        at = START + timedelta(days=k, seconds=9 * n)
        good = rng.random() < 0.15 + 0.17 * k
        row = trajectory(
            f"t{k}{n:04d}",
            train[n // samples],
            at=at,
            sample=n % samples,
            policy_version=policy,
            reward=float(good),
            steps=2 + n % 4,
            run_id=f"run-{k}",
            status="completed" if good or n % 3 else "truncated",
        )
        if n == 1:
            row |= {"status": "crashed", "error": "EnvTimeout: the page did not answer in 10 s", "reward": None}
        rolled.append(row)
        if row["status"] in ("completed", "truncated"):
            scores.append(
                {
                    "trajectory_id": row["trajectory_id"],
                    "scorer": "verifier:shop",
                    "score": row["reward"],
                    "threshold": 1.0,
                    "v": good,
                    "detail": "",
                }
            )
    steps = [
        step(row, n, total=row["steps"], kind="finished" if n == row["steps"] - 1 else _KINDS[n % 5])
        for row in rolled
        for n in range(row["steps"])
    ]
    wrong = next(row for row in steps if row["trajectory_id"] == f"t{k}0002")
    wrong["logprobs"] = wrong["logprobs"][:-1]
    write(ws, "trajectories", k, "rollout", rolled)
    write(ws, "steps", k, "rollout", steps)
    write(ws, "images", k, "rollout", [image_row(n) for n in range(6)])
    _metrics(ws, k, "rollout", [metrics.row("trajectories", len(rolled))], 61)
    write(ws, "scores", k, "score", scores)
    verified = sum(row["v"] for row in scores)
    _metrics(ws, k, "score", [metrics.share("p_v1", verified, len(scores))], 0.4)


def _ingest(ws: Workspace, k: int) -> None:
    shop = task(f"i{k}-rec", "sites", "shop")
    at = START + timedelta(days=k, hours=-1)
    human = {"source": "recording", "author": "human", "policy_version": None, "run_id": f"run-{k}", "reward": None}
    rows = [trajectory(f"r{k}{n}", shop, at=at + timedelta(minutes=n), **human) for n in range(3)]
    rows[2] |= {"status": "invalid", "error": "audio.wav is cut off", "steps": 0}
    write(ws, "tasks", k, "ingest", [shop])
    write(ws, "trajectories", k, "ingest", rows)
    write(ws, "steps", k, "ingest", [step(row, n, total=3) for row in rows[:2] for n in range(3)])
    write(ws, "images", k, "ingest", [image_row(n) for n in range(3)])
    write(ws, "events", k, "ingest", [])
    said = ("um so i click the uh add button", "I click the Add button.")
    write(
        ws,
        "thoughts",
        k,
        "ingest",
        [
            {
                "trajectory_id": row["trajectory_id"],
                "utterance": n,
                "start_s": 1.4 * n,
                "end_s": 1.4 * n + 1.1,
                "asr_text": said[0],
                "text": said[1],
                "words": [],
                "step": n,
                "alignment_score": 0.9 - 0.1 * n,
                "recognizer": "pocketsphinx",
                "refined_by": "rules",
                "confidence": 0.95 - 0.2 * n,
                "doubtful": n == 2,
            }
            for row in rows[:2]
            for n in range(3)
        ],
    )
    figures = [metrics.share("steps_with_a_thought", 6, 6)]
    _metrics(ws, k, "ingest", figures, 22)


def outgoing(ws: Workspace, k: int) -> None:
    """Metrics, models' lineage, evaluation episodes, promotion and runs of iteration k."""
    rng = random.Random(100 + k)
    begun = manifest.read_promotion(ws, k - 1)["model"]
    here = f"models/iteration={label(k)}"
    for stage, parents, stores in (
        ("ct", [begun], [lineage.dataset("ct", n) for n in range(1, k + 1)]),
        ("sft", [f"{here}/ct"], [lineage.dataset("sft", n) for n in range(max(1, k - 1), k + 1)]),
        ("rl-games", [f"{here}/sft"], []),
        ("rl-sites", [f"{here}/sft"], []),
        ("merge", [f"{here}/rl-games", f"{here}/rl-sites"], []),
    ):
        name = "merged" if stage == "merge" else stage
        write(
            ws, "lineage", k, stage, lineage.trained(f"{here}/{name}", f"d{k}{name}", parents=parents, datasets=stores)
        )
        rows = []
        if stage in ("ct", "sft"):
            rows = [
                metrics.row(
                    "loss", (1.6 if stage == "ct" else 1.1) / k * math.exp(-n / 25) + 0.2 + 0.05 * rng.random(), step=n
                )
                for n in range(0, 47, 2)
            ]
        if stage.startswith("rl"):
            domain = stage.removeprefix("rl-")
            rows = rl_metrics(domain, k, rng)
            write(ws, "curriculum", k, stage, rl_curriculum(domain, k))
        _metrics(ws, k, stage, rows, {"ct": 40, "sft": 38, "merge": 1}.get(stage, 55))
    figures = []
    for domain, at in (("games", 4), ("sites", 5), (metrics.ALL, 9)):
        n = 40 if domain == metrics.ALL else 20
        before, after = min(n, at * k), min(n, at * (k + 1) + (0 if k < 3 else -at))
        figures += [
            metrics.share("success_before", before, n, domain=domain),
            metrics.share("success_after", after, n, domain=domain),
            metrics.row("success_difference", (after - before) / n, domain=domain, low=-0.05, high=0.3, n=n),
        ]
    _metrics(ws, k, "evaluate", figures, 58)
    held = task("held00", "games", "tiles", "eval")
    episode = trajectory(f"e{k}", held, at=START + timedelta(days=k, hours=2), policy_version=f"d{k}merged")
    write(ws, "trajectories", k, "evaluate", [episode])
    write(ws, "steps", k, "evaluate", [step(episode, n, total=3) for n in range(3)])
    write(ws, "images", k, "evaluate", [image_row(n) for n in range(3)])
    write(ws, "tasks", k, "evaluate", [task(f"fresh{k}", "games", "tiles", "eval")])
    write(
        ws,
        "scores",
        k,
        "evaluate",
        [
            {
                "trajectory_id": f"e{k}",
                "scorer": "verifier:tiles",
                "score": 1.0,
                "threshold": 1.0,
                "v": True,
                "detail": "",
            }
        ],
    )
    rivals.write(ws, k, "synthetic", {f"d{k}merged": {"held00": 1.0}})
    promoted = k != 3
    before = manifest.read_promotion(ws, k - 1)
    newest = {"model": f"{here}/merged", "digest": f"d{k}merged"} if promoted else before
    reason = "not worse by 0.1 or more: success +0.220" if promoted else "worse: success -0.210"
    write_json(
        ws.promotion(k),
        {"model": newest["model"], "digest": newest["digest"], "iteration": k, "promoted": promoted, "reason": reason},
    )
    write(ws, "reviews", k, "promote", [])
    _metrics(ws, k, "promote", [metrics.row("promoted", promoted)], 0.3)
    at = START + timedelta(days=k)
    run = {
        "run_id": f"run-{k}",
        "parent_id": None,
        "kind": "flow",
        "name": f"{label(k)} rollout",
        "state": "COMPLETED",
        "attempts": 1,
        "started_at": at,
        "ended_at": at,
        "seconds": 61.0,
        "parameters": "{}",
    }
    write(ws, "runs", k, "runs", [run])
    _metrics(ws, k, "runs", [], 0.1)


def rl_metrics(domain: str, k: int, rng: random.Random, steps: int = 8) -> list[dict]:
    """The curves of one specialist."""
    rows = [metrics.row("value_pretraining_explained_variance", 0.1 + 0.1 * rng.random(), domain=domain)]
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
            "curriculum_always": 0.1 + 0.3 * at,
            "curriculum_never": 0.5 - 0.3 * at,
            "curriculum_level": 1 + round(at),
        }
        for name, value in shape.items():
            noise = 0 if name in ("staleness_max", "curriculum_level") else 0.12 * value * (rng.random() - 0.5)
            rows.append(metrics.row(name, value + noise, domain=domain, step=n))
        for number, world in enumerate(WORLDS[domain]):
            value = min(1.0, shape["success"] * (0.6 + 0.5 * number) + 0.1 * rng.random())
            rows.append(metrics.row("success", value, domain=f"{domain}/{world}", step=n))
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
            "chance": share[why],
            "relative": 6 * share[why],
            "reason": why,
        }
        for n, (why, won) in enumerate(fates)
    ]


def _metrics(ws: Workspace, k: int, stage: str, rows: list[dict], seconds: float) -> None:
    write(ws, "metrics", k, stage, [*rows, metrics.row("seconds", seconds)])
