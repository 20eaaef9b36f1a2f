"""A task with many long runs that part and meet again, for tests of the page that lays them side by side."""

from __future__ import annotations

import hashlib
import random

from synthetic_rows import image_row, step, task, trajectory

from flywheel.config.workspace import Workspace
from flywheel.store.partitions import write_partition

TASK = "kside"


def runs_of_a_task(ws: Workspace, runs: int = 12, steps: int = 50, iteration: int = 1) -> list[str]:
    """Runs that begin alike, part in the middle by twos and threes, and meet again near the end; the last one is a
    solver's correction of the first. Every third is verified. Returns their ids in the order of their numbers."""
    about = task(TASK, "sites", "shop") | {"instruction": "Put the blue mug into the cart and pay."}
    rows, taken, shown, scores = [], [], {}, []
    for run in range(runs):
        parent = "side0" if run == runs - 1 else None
        draw = random.Random(run // 3)
        begin, end = steps // 3 + draw.randrange(5), steps - steps // 5
        number = steps - run % 4
        row = trajectory(f"side{run}", about, sample=run, steps=number, instruction=about["instruction"])
        row |= {"reward": float(run % 3 == 0), "policy_version": "d0base"}
        if parent:
            row |= {"source": "correction", "author": "solver", "parent_id": parent, "start_step": begin}
        for n in range(number):
            place = n if n < begin else n + 1000 * (1 + run // 3) + 200 * (n % 5 and run % 3) if n < end else n + 100
            screen = (
                place if place < 200 else 200 + place % 41
            )  # of those between, few are drawn: they differ by address
            shown[screen] = image_row(screen)
            one = step(row, n, total=number, kind=("click", "type", "scroll", "click")[(n + run * (n > begin)) % 4])
            one |= {"author": "solver" if parent and n >= begin else "model"}
            one |= (
                {"image_sha256": shown[screen]["sha256"]}
                if place < 200
                else {"image_sha256": None, "observation": f"page {place}"}
            )
            one |= {"thought": f"I look for the mug, place {place}."}
            taken.append(one)
        last = image_row(199 + run % 3)
        shown[f"last{run % 3}"] = last
        rows.append(row | {"final_image_sha256": last["sha256"]})
        scores.append({"trajectory_id": row["trajectory_id"], "scorer": "verifier", "score": row["reward"]})
    scores = [one | {"success": one["score"] == 1.0, "threshold": 1.0, "detail": ""} for one in scores]
    write_partition(ws, "tasks", iteration, "synthesize", [about])
    write_partition(ws, "trajectories", iteration, "rollout", rows)
    write_partition(ws, "steps", iteration, "rollout", taken)
    images = {row["sha256"]: row for row in shown.values()}
    assert all(hashlib.sha256(row["bytes"]).hexdigest() == name for name, row in images.items())
    write_partition(ws, "images", iteration, "rollout", list(images.values()))
    write_partition(ws, "scores", iteration, "score", scores)
    return [row["trajectory_id"] for row in rows]
