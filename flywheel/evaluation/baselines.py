"""Store what the models that a candidate is compared with solve of the held-out tasks.

`iterations/NNN/held_out.json` says what the models of an evaluation did on the held-out tasks that are the same in all
iterations: {"about": key, "models": {digest: {task_id: share of its episodes that were solved}}}. The next iteration
reads it, so that only the new model has to play them; the key names the settings under which it was measured. The best
model so far is the promoted one with the highest success there; the newest of those that are equal. Which one that is
rests on few tasks and may be a matter of luck, but the comparison with it does not: it is made on others.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.evaluation.gate import EvalResult
from flywheel.utils.errors import DataError
from flywheel.utils.files import write_json

SolvedShares = dict[str, float]  # task_id -> share of the episodes that were solved


def held_out_key(settings: Settings, task_ids: Sequence[str]) -> str:
    """Hash all that an outcome on the held-out tasks depends on besides the model: 16 hexadecimal digits.

    settings: seed and the blocks policy, language_model, sandbox and evaluation count. task_ids: the held-out tasks, in
    any order.
    """
    blocks = (settings.policy, settings.language_model, settings.sandbox, settings.evaluation)
    content = [settings.seed, [block.model_dump(mode="json") for block in blocks], sorted(task_ids)]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def read_comparable_outcomes(ws: Workspace, iteration: int, about: str) -> dict[str, SolvedShares]:
    """Read the outcomes that an iteration's evaluation recorded, if they were measured in the same way.

    about: key of the present measure (`held_out_key`). Returns, by digest of a model, the share of solved episodes by
    task; {} where the key differs. Raises DataError for a file that is missing or cannot be read.
    """
    return read_outcomes(ws, iteration) if _load_outcomes(ws, ws.held_out(iteration))["about"] == about else {}


def read_outcomes(ws: Workspace, iteration: int) -> dict[str, SolvedShares]:
    """Read the outcomes that an evaluated iteration recorded, however they were measured.

    Returns, by digest of a model, the share of solved episodes by task. Raises DataError for a file that is missing or
    cannot be read.
    """
    return _load_outcomes(ws, ws.held_out(iteration))["models"]


def _load_outcomes(ws: Workspace, path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        return {"about": str(raw["about"]), "models": {name: dict(found) for name, found in raw["models"].items()}}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(
            f"not the outcomes of an evaluation: {error!r}", where=ws.relative(path), fix="restore it from git"
        ) from error


def write_outcomes(ws: Workspace, iteration: int, about: str, models: Mapping[str, SolvedShares]) -> None:
    """Write an iteration's `held_out.json`, which is replaced where it is there.

    about: key of how it was measured (`held_out_key`). models: by digest of a model, the share of solved episodes by
    task, in [0, 1]. Raises DiskFull.
    """
    write_json(ws.held_out(iteration), {"about": about, "models": dict(models)})


def solved_share_by_task(results: Sequence[EvalResult]) -> SolvedShares:
    """Compute the share of solved episodes of each task, in [0, 1], by task id; {} for no results.

    results: of one model, any number of episodes a task.
    """
    by_task: dict[str, list[bool]] = defaultdict(list)
    for result in results:
        by_task[result.task_id].append(result.v)
    return {task: sum(runs) / len(runs) for task, runs in sorted(by_task.items())}


def mean_success(outcome: SolvedShares) -> float:
    """Compute the mean success over tasks, each of the same weight; 0 where there are none. outcome: share solved by
    task."""
    return math.fsum(outcome.values()) / len(outcome) if outcome else 0.0


def get_best_model(promotion: Mapping[str, Any]) -> dict[str, Any]:
    """Return the best model so far as {"model", "digest"}.

    promotion: what the iteration before recorded of its promotion. Where it names no best model, its own `model` and
    `digest` count, which it must have.
    """
    return dict(promotion.get("best") or {name: promotion[name] for name in ("model", "digest")})


def choose_best_model(
    before: Mapping[str, Any], newest: Mapping[str, Any], promoted: bool, outcomes: Mapping[str, SolvedShares]
) -> dict[str, Any]:
    """Choose the best model after a promotion was decided, as {"model", "digest"}.

    before: what the iteration before recorded of its promotion. newest: the model that this iteration made, with
    `model` and `digest`. promoted: whether it was. outcomes: by digest, the share of solved episodes by task. A
    promoted model is the best where its mean success is not below that of the best before, or one of the two is not in
    `outcomes`; else the best before stays.
    """
    old = get_best_model(before)
    mine, theirs = outcomes.get(newest["digest"]), outcomes.get(old["digest"])
    if promoted and (theirs is None or mine is None or round(mean_success(mine) - mean_success(theirs), 12) >= 0):
        return {name: newest[name] for name in ("model", "digest")}
    return old
