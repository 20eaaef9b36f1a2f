"""Read and write a person's decision about a promotion, one file an iteration.

The stage `promote` copies it into the table `reviews`; the file itself lies with the iteration, so git keeps it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flywheel.config.workspace import Workspace, iteration_label
from flywheel.store.versioning import dvc_files, iteration_params
from flywheel.utils.errors import BadInput, DataError
from flywheel.utils.files import file_lock, write_json

MAX_REVIEWER_LENGTH, MAX_COMMENT_LENGTH = 100, 2000  # characters, at most
_WAIT_S = 10.0


@dataclass(frozen=True)
class PromotionDecision:
    """Hold a person's decision about a promotion.

    promote: yes or no. at: ISO 8601 with its zone. earlier: the decisions that it replaced, oldest first.
    """

    promote: bool
    reviewer: str
    comment: str
    at: str
    earlier: tuple[dict[str, Any], ...] = ()

    @property
    def words(self) -> str:
        return f"{'promote' if self.promote else 'keep'} ({self.reviewer}, {self.at})"

    @property
    def history(self) -> list[PromotionDecision]:
        """Each decision, oldest first; this one is the last."""
        return [*(PromotionDecision(**facts) for facts in self.earlier), self]


def review_path(ws: Workspace, iteration: int) -> Path:
    """Return the path of the file with a person's decision about the promotion of `iteration`, there or not."""
    return ws.iteration(iteration) / "review.json"


def read_review(ws: Workspace, iteration: int) -> PromotionDecision | None:
    """Read a person's decision about the promotion of `iteration`; None where nobody has decided.

    Raises DataError for a file that holds no decision.
    """
    file = review_path(ws, iteration)
    if not file.is_file():
        return None
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
        return PromotionDecision(**{**raw, "earlier": tuple(raw.get("earlier", ()))})
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(
            f"not a review: {error}",
            where=ws.relative(file),
            fix="delete it and decide again with `flywheel review promotion`",
        ) from error


def find_review_obstacle(ws: Workspace, iteration: int) -> BadInput | None:
    """Find why nobody can decide the promotion of `iteration` now; None where somebody can.

    Returns the error, which is not raised.
    """
    if dvc_files.is_promotion_decided(ws, iteration):
        return BadInput(
            f"the promotion of iteration {iteration_label(iteration)} is decided already",
            where=ws.relative(ws.iteration(iteration)),
            fix='`flywheel query "from promotions"` shows how',
        )
    if not ws.partition("metrics", iteration, "evaluate").is_dir():
        where = ws.relative(ws.iteration(iteration))
        return BadInput(f"iteration {iteration} is not evaluated", where=where, fix="see `flywheel status`")
    rule = iteration_params.load_iteration_params(ws, iteration).promotion.rule
    if rule != "review":
        return BadInput(
            f"nobody is asked: promotion.rule is {rule}",
            where=ws.relative(ws.frozen_params(iteration)),
            fix="change it there to review, and decide then",
        )
    return None


def list_pending_reviews(ws: Workspace) -> list[int]:
    """List the iterations whose promotion a person can decide now, oldest first; none before the newest decided one."""
    found: list[int] = []
    folders = (path.name for path in (ws.root / "iterations").glob("[0-9]*"))
    for k in sorted((int(name) for name in folders if name.isdigit()), reverse=True):
        if dvc_files.is_promotion_decided(ws, k):
            break
        if find_review_obstacle(ws, k) is None:
            found.insert(0, k)
    return found


def decide_promotion(ws: Workspace, iteration: int, *, promote: bool, reviewer: str, comment: str) -> PromotionDecision:
    """Record a person's decision about the promotion of `iteration`, in its `review.json`.

    An earlier decision stays in that file, under `earlier`. Nothing else happens until the stage `promote` reads it.
    promote: yes or no. reviewer: the person's name. comment: why; may be "". Raises BadInput where no decision is open,
    the name is empty, or name or comment is too long (MAX_REVIEWER_LENGTH, MAX_COMMENT_LENGTH); DataError where the
    file holds no decision, or another process has been deciding for 10 seconds.
    """
    if not reviewer.strip():
        raise BadInput("the reviewer has no name", fix="give yours")
    for name, text, most in (("name", reviewer, MAX_REVIEWER_LENGTH), ("comment", comment, MAX_COMMENT_LENGTH)):
        if len(text) > most:
            raise BadInput(f"a {name} may have {most:,} characters, this one has {len(text):,}", fix="shorten it")
    with file_lock(ws.state / "review.lock", _WAIT_S, "deciding a promotion"):
        if why := find_review_obstacle(ws, iteration):
            raise why
        before, earlier = read_review(ws, iteration), ()
        if before:
            facts = asdict(before)
            earlier = (*facts.pop("earlier"), facts)
        decided = PromotionDecision(
            promote, reviewer.strip(), comment, datetime.now(UTC).isoformat(timespec="seconds"), earlier
        )
        write_json(review_path(ws, iteration), asdict(decided))
    return decided
