"""Keep what the models that a candidate is compared with solve of the held-out tasks.

`iterations/NNN/held_out.json` says what the models of an evaluation did on the held-out tasks that are the same in all
iterations: {"about": key, "models": {digest: {task_id: share of its episodes that were solved}}}. The next iteration
takes it up, so that only the new model has to play them; the key names the settings under which it was measured.
The best model so far is the promoted one with the highest success there; the newest of those that are equal. Which
one that is rests on few tasks and may be a matter of luck, but the comparison with it does not: it is made on others.
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
    """Names all that an outcome on the held-out tasks depends on besides the model."""
    blocks = (settings.policy, settings.language_model, settings.sandbox, settings.evaluation)
    said = [settings.seed, [block.model_dump(mode="json") for block in blocks], sorted(task_ids)]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def read_comparable_outcomes(ws: Workspace, iteration: int, about: str) -> dict[str, SolvedShares]:
    """What an iteration's evaluation knew of models, by digest; nothing where it was measured in another way.

    about: the key. Raises DataError for a file that cannot be read.
    """
    return read_outcomes(ws, iteration) if _load_outcomes(ws, ws.held_out(iteration))["about"] == about else {}


def read_outcomes(ws: Workspace, iteration: int) -> dict[str, SolvedShares]:
    """The same of an iteration that has been evaluated, by its own measure. Raises DataError."""
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
    write_json(ws.held_out(iteration), {"about": about, "models": dict(models)})


def solved_share_by_task(results: Sequence[EvalResult]) -> SolvedShares:
    """Results of one model by task."""
    by_task: dict[str, list[bool]] = defaultdict(list)
    for result in results:
        by_task[result.task_id].append(result.v)
    return {task: sum(runs) / len(runs) for task, runs in sorted(by_task.items())}


def mean_success(outcome: SolvedShares) -> float:
    """Mean over tasks, each task the same weight."""
    return math.fsum(outcome.values()) / len(outcome) if outcome else 0.0


def get_best_model(promotion: Mapping[str, Any]) -> dict[str, Any]:
    """The best model so far, `model` and `digest`, by the promotion of the iteration before; the newest one where
    none was named yet."""
    return dict(promotion.get("best") or {name: promotion[name] for name in ("model", "digest")})


def choose_best_model(
    before: Mapping[str, Any], newest: Mapping[str, Any], promoted: bool, outcomes: Mapping[str, SolvedShares]
) -> dict[str, Any]:
    """The best model after a promotion was decided. before: the promotion of the iteration before; newest: the model
    that this one made, `model` and `digest`."""
    old = get_best_model(before)
    mine, theirs = outcomes.get(newest["digest"]), outcomes.get(old["digest"])
    if promoted and (theirs is None or mine is None or round(mean_success(mine) - mean_success(theirs), 12) >= 0):
        return {name: newest[name] for name in ("model", "digest")}
    return old
