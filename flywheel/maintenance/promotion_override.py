"""Reverse a person's or the gate's decision about a promotion, as long as no later iteration has begun from it.

The person's decision is written first, then the stage `promote` runs again by it: what the next iteration begins with,
the table `reviews`, the metrics and DVC's record follow. A kill in between leaves the decision, which
`resume_promotion_override` carries out. Iterations that began from the earlier decision are not touched: they stand on
a model that it chose, so they are rolled back first.
"""

from __future__ import annotations

from flywheel import config
from flywheel.config.workspace import Workspace, iteration_label
from flywheel.evaluation import promotion_review
from flywheel.evaluation.promotion_review import PromotionDecision
from flywheel.pipeline import dag
from flywheel.pipeline.stage import StageContext, clear_staging, run_stage
from flywheel.store import manifest
from flywheel.store.versioning import backup, dvc_files, git_tags, stage_records

_STAGE = "promote"


def override_promotion(
    ws: Workspace, iteration: int, *, promote: bool, reviewer: str, comment: str
) -> PromotionDecision:
    """Reverse the decision about the promotion of `iteration`; return the new decision.

    Call it under the workspace's lock. promote: whether its model is to be the newest. reviewer: the person's name.
    comment: why; it must not be "". With `versioning.git` the change is committed, and the iteration's tag is moved to
    that commit; what changed is pushed to `versioning.remote`. Raises BadInput for a decision that cannot be reversed
    or is the same already, a name or a comment that is not valid, and a wrong params.yaml; DataError for a damaged
    record, ModelError for a damaged model, DiskFull, VersioningError where DVC fails, FlywheelError where git refuses.
    """
    decided = promotion_review.record_override(ws, iteration, promote=promote, reviewer=reviewer, comment=comment)
    _carry_out(ws, iteration)
    return decided


def resume_promotion_override(ws: Workspace) -> None:
    """Carry out an override of a promotion that a killed process recorded and did not finish, if there is one.

    Call it under the workspace's lock.

    Raises as `override_promotion`.
    """
    newest = max(ws.list_iteration_folders(), default=0)
    if not newest or not dvc_files.is_promotion_decided(ws, newest):
        return
    decided = promotion_review.read_review(ws, newest)
    if not decided or not decided.overrides:
        return
    behind = manifest.is_model_promoted(ws, newest) != decided.promote
    if behind or stage_records.unfinished_stages(ws, _recorded(ws, newest), newest):
        _carry_out(ws, newest)


def _carry_out(ws: Workspace, iteration: int) -> None:
    ctx = StageContext.open(ws, iteration, _STAGE)
    run_stage(dag.find_stage(_STAGE), ctx)
    stage_records.record_stage(ws, _STAGE, iteration)
    clear_staging(ctx)
    stage_records.rerecord_changed(ws, iteration, _recorded(ws, iteration))
    versions = config.load_settings(ws.params).versioning
    if versions.git:
        git_tags.commit_workspace(ws, f"Decided again: the promotion of iteration {iteration_label(iteration)}")
        if git_tags.is_iteration_tagged(ws, iteration):
            git_tags.tag_iteration(ws, iteration)
    backup.push_iterations(ws, versions.remote)


def _recorded(ws: Workspace, iteration: int) -> tuple[str, ...]:
    """Name the recorded stages that a promotion changes: the iteration's last one reads it."""
    last = (dvc_files.LAST_STAGE,) if dvc_files.is_iteration_complete(ws, iteration) else ()
    return (_STAGE, *last)
