"""A small workspace that looks like one after some turns, made through the schema alone: no browser, no model.

`workspace` makes it, and its settings; `incoming` writes what ingest, synthesize, rollout and score of an iteration
leave; `outgoing` what the stages after route leave. No back-end knows the verifiers of these tasks (`shop`), so that
the stage `score` refuses them: `played` of `test_scoring.py` writes rows that it takes.
"""

from __future__ import annotations

import math
import random
import shutil
from datetime import timedelta

from synthetic_rows import START, WORLDS, image_row, rl_curriculum, rl_metrics, step, task, trajectory

from flywheel.config import Settings
from flywheel.config.workspace import Workspace, iteration_label
from flywheel.evaluation import gate
from flywheel.pipeline.iterations import begin_iteration
from flywheel.pipeline.stage import StageContext, StageResult, run_stage
from flywheel.pipeline.stages import route
from flywheel.store import lineage, manifest
from flywheel.store.partitions import write_partition
from flywheel.store.schema import ALL_DOMAINS, fraction_metric_row, metric_row
from flywheel.store.versioning import stage_records
from flywheel.utils.files import write_json, write_text

_KINDS = ("click", "type", "drag", "scroll", "hotkey", "finished")


def workspace(root, **settings) -> tuple[Workspace, Settings]:
    ws = Workspace(root)
    chosen = Settings.model_validate({"recording": {"sessions_per_iteration": 0}, **settings})
    write_text(ws.params, "seed: 7\n")
    stage_records.init_dvc_project(ws)
    manifest.init_first_checkpoint(ws, digest="d0base")
    return ws, chosen


def incoming(ws: Workspace, settings: Settings, k: int, *, tasks: int = 10, samples: int = 4) -> None:
    """Partitions of ingest, synthesize, rollout and score of iteration k; two rollouts are not sound."""
    rng = random.Random(k)
    begin_iteration(ws, k, settings)
    places = [(domain, world) for domain, worlds in WORLDS.items() for world in worlds]
    train = [task(f"i{k}-task{n:02d}", *places[n % 4]) for n in range(tasks)]
    held = [task(f"held{n:02d}", *places[n % 4], "eval") for n in range(8)]
    write_partition(ws, "tasks", k, "synthesize", [*train, *held])
    write_partition(ws, "images", k, "synthesize", [])
    write_partition(ws, "grounding_examples", k, "synthesize", [])
    _metrics(ws, k, "synthesize", [metric_row("tasks", tasks)], 4)
    ingested(ws, k)
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
                    "success": good,
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
    write_partition(ws, "trajectories", k, "rollout", rolled)
    write_partition(ws, "steps", k, "rollout", steps)
    write_partition(ws, "images", k, "rollout", [image_row(n) for n in range(6)])
    _metrics(ws, k, "rollout", [metric_row("trajectories", len(rolled))], 61)
    write_partition(ws, "scores", k, "score", scores)
    verified = sum(row["success"] for row in scores)
    _metrics(ws, k, "score", [fraction_metric_row("p_v1", verified, len(scores))], 0.4)


def ingested(ws: Workspace, k: int) -> None:
    shop = task(f"i{k}-rec", "sites", "shop")
    at = START + timedelta(days=k, hours=-1)
    human = {"source": "recording", "author": "human", "policy_version": None, "run_id": f"run-{k}", "reward": None}
    rows = [trajectory(f"r{k}{n}", shop, at=at + timedelta(minutes=n), **human) for n in range(3)]
    rows[2] |= {"status": "invalid", "error": "audio.wav is cut off", "steps": 0}
    write_partition(ws, "tasks", k, "ingest", [shop])
    write_partition(ws, "trajectories", k, "ingest", rows)
    write_partition(ws, "steps", k, "ingest", [step(row, n, total=3) for row in rows[:2] for n in range(3)])
    write_partition(ws, "images", k, "ingest", [image_row(n) for n in range(3)])
    write_partition(ws, "events", k, "ingest", [])
    said = ("um so i click the uh add button", "I click the Add button.")
    write_partition(
        ws,
        "utterances",
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
                "low_confidence": n == 2,
            }
            for row in rows[:2]
            for n in range(3)
        ],
    )
    figures = [fraction_metric_row("steps_with_a_thought", 6, 6)]
    _metrics(ws, k, "ingest", figures, 22)


def routed(ws: Workspace, settings: Settings, k: int, **blocks) -> StageResult:
    """The stage `route` of iteration k, without DVC. blocks: of the settings, other ones."""
    settings = settings.model_copy(update=blocks)
    shutil.rmtree(ws.staging(k, "route"), ignore_errors=True)
    return run_stage(route.STAGE, StageContext(ws, settings, k, "route"))


def outgoing(ws: Workspace, k: int) -> None:
    """Metrics, models' lineage, evaluation episodes, promotion and runs of iteration k."""
    rng = random.Random(100 + k)
    begun = manifest.read_promotion(ws, k - 1)["model"]
    here = f"models/iteration={iteration_label(k)}"
    for stage, parents, stores in (
        ("ct", [begun], [lineage.dataset_name("ct", n) for n in range(1, k + 1)]),
        ("sft", [f"{here}/ct"], [lineage.dataset_name("sft", n) for n in range(max(1, k - 1), k + 1)]),
        ("rl-games", [f"{here}/sft"], []),
        ("rl-sites", [f"{here}/sft"], []),
        ("merge", [f"{here}/rl-games", f"{here}/rl-sites"], []),
    ):
        name = "merged" if stage == "merge" else stage
        write_partition(
            ws,
            "lineage",
            k,
            stage,
            lineage.checkpoint_links(f"{here}/{name}", f"d{k}{name}", parents=parents, datasets=stores),
        )
        rows = []
        if stage in ("ct", "sft"):
            rows = [
                metric_row(
                    "loss", (1.6 if stage == "ct" else 1.1) / k * math.exp(-n / 25) + 0.2 + 0.05 * rng.random(), step=n
                )
                for n in range(0, 47, 2)
            ]
        if stage.startswith("rl"):
            domain = stage.removeprefix("rl-")
            rows = rl_metrics(domain, k, rng)
            write_partition(ws, "curriculum", k, stage, rl_curriculum(domain, k))
        _metrics(ws, k, stage, rows, {"ct": 40, "sft": 38, "merge": 1}.get(stage, 55))
    figures = []
    for domain, at in (("games", 4), ("sites", 5), (ALL_DOMAINS, 9)):
        n = 40 if domain == ALL_DOMAINS else 20
        before, after = min(n, at * k), min(n, at * (k + 1) + (0 if k < 3 else -at))
        figures += [
            fraction_metric_row("success_before", before, n, domain=domain),
            fraction_metric_row("success_after", after, n, domain=domain),
            metric_row("success_difference", (after - before) / n, domain=domain, low=-0.05, high=0.3, n=n),
        ]
    _metrics(ws, k, "evaluate", figures, 58)
    held = task("held00", "games", "tiles", "eval")
    episode = trajectory(f"e{k}", held, at=START + timedelta(days=k, hours=2), policy_version=f"d{k}merged")
    write_partition(ws, "trajectories", k, "evaluate", [episode])
    write_partition(ws, "steps", k, "evaluate", [step(episode, n, total=3) for n in range(3)])
    write_partition(ws, "images", k, "evaluate", [image_row(n) for n in range(3)])
    write_partition(ws, "tasks", k, "evaluate", [task(f"fresh{k}", "games", "tiles", "eval")])
    write_partition(
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
                "success": True,
                "detail": "",
            }
        ],
    )
    gate.write_outcomes(ws, k, "synthetic", {f"d{k}merged": {"held00": 1.0}})
    promoted = k != 3
    before = manifest.read_promotion(ws, k - 1)
    newest = {"model": f"{here}/merged", "digest": f"d{k}merged"} if promoted else before
    reason = "not worse by 0.1 or more: success +0.22" if promoted else "worse: success -0.21"
    write_json(
        ws.promotion(k),
        {"model": newest["model"], "digest": newest["digest"], "iteration": k, "promoted": promoted, "reason": reason},
    )
    write_partition(ws, "reviews", k, "promote", [])
    _metrics(ws, k, "promote", [metric_row("promoted", promoted)], 0.3)
    at = START + timedelta(days=k)
    run = {
        "run_id": f"run-{k}",
        "parent_id": None,
        "kind": "flow",
        "name": f"{iteration_label(k)} rollout",
        "state": "COMPLETED",
        "attempts": 1,
        "started_at": at,
        "ended_at": at,
        "seconds": 61.0,
        "parameters": "{}",
    }
    write_partition(ws, "runs", k, "runs", [run])
    _metrics(ws, k, "runs", [], 0.1)


def _metrics(ws: Workspace, k: int, stage: str, rows: list[dict], seconds: float) -> None:
    write_partition(ws, "metrics", k, stage, [*rows, metric_row("seconds", seconds)])
