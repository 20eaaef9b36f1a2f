"""Score stored trajectories again by one scorer's present version, and show what that changes (`flywheel score`).

It routes as `flywheel data reroute` does (`reroute.py`); only the rule differs, which is made here for each iteration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flywheel import config
from flywheel.config import Panel, Settings
from flywheel.config.workspace import Workspace, iteration_label
from flywheel.maintenance import reroute, route_review
from flywheel.pipeline.stages.route import INCOMING
from flywheel.rewards.scorer import PERSON, ScorerSet, list_panel, list_scorer_blocks, list_scorers
from flywheel.store import routing_decisions
from flywheel.store.routing import training_stores
from flywheel.store.routing_decisions import NOT_SOLVED, SOLVED, RoutingRule
from flywheel.store.versioning import stage_records
from flywheel.utils.errors import BadInput, did_you_mean

_PREFIX = 4  # characters of a version that may stand for it


@dataclass(frozen=True)
class Rescoring:
    """Hold what scoring an iteration again changes.

    difference: the changes of routes. rule: the one that they follow from. reviewed: people's verdicts, as
    `RoutingDecision.looked` has them; {} for none.
    """

    difference: reroute.RouteDifference
    rule: RoutingRule
    reviewed: Mapping[str, Any] = field(default_factory=dict)


def parse_iterations(text: str) -> list[int]:
    """Parse the numbers and ranges of iterations in `text`, such as `1-3,5`, to ascending numbers, each once.

    Raises BadInput for another form, a range that descends, and a number above a million.
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        is_form = first.isdecimal() and (last.isdecimal() if dash else True) and len(part) < 60  # `int` refuses more
        if not is_form or int(first) > int(last or first):
            raise BadInput(f"not iterations: {text[:60]!r}", where="--iteration", fix="for example 3, or 1-5")
        if int(last or first) > 10**6:
            raise BadInput(f"there is no iteration {last or first}", where="--iteration", fix="see `flywheel status`")
        found.update(range(int(first), int(last or first) + 1))
    return sorted(found)


def prepare_rescoring(ws: Workspace, asked: str, which: Iterable[int]) -> list[Rescoring]:
    """Score the trajectories of iterations again by one scorer, and choose their routes anew; the data do not change.

    The results are written to copies under `.flywheel`. asked: NAME or NAME@VERSION of the scorer, whose present
    version must be VERSION or begin with it (four characters or more). The scorer is opened with the blocks of
    params.yaml that it reads. It judges within the panels that hold for the iteration where they name it, else within
    those of params.yaml, else alone; scores that other scorers gave in their present versions stay. For `person`
    people's labels become the verdicts of what waits for them. which: numbers of iterations. Call it under the
    workspace's lock. Returns what changes, one per iteration in the order of `which`, for `apply_rescoring`. Raises
    BadInput for a scorer, a version or an iteration that does not exist, an iteration that is not routed yet, wrong
    `SETTINGS` of a scorer, and where a review of routes is open (`person`); otherwise as `reroute.prepare_reroute`.
    """
    name, _, version = asked.partition("@")
    if name not in (there := list_scorers()):
        raise BadInput(f"no scorer is called {name[:60]!r}", where="--scorer", fix=did_you_mean(name[:60], there))
    which = list(which)
    stage_records.check_iterations_begun(ws, which, where="--iteration")
    for k in which:
        reroute.check_routed(ws, k, where="--iteration")
    today = config.load_settings(ws.params)
    rules = {k: _make_rule(ws, k, name, today) for k in which}
    for k, rule in rules.items():
        _check_version(ws, k, name, version, rule)
    return [_rescore_by_people(ws, k) if name == PERSON else _rescore(ws, k, rule) for k, rule in rules.items()]


def apply_rescoring(ws: Workspace, found: Iterable[Rescoring]) -> None:
    """Apply `found`, which `prepare_rescoring` returned, to the workspace; iterations without a change are left out.

    Call it under the workspace's lock. Writes, commits, pushes and raises as `reroute.apply_reroute`.
    """
    decided = {
        one.difference.iteration: reroute.make_decision(ws, one.difference, one.rule, reviewed=dict(one.reviewed))
        for one in found
        if one.difference.routes or one.difference.scores or one.reviewed
    }
    if decided:
        reroute.apply_decisions(ws, decided)


def _make_rule(ws: Workspace, iteration: int, name: str, today: Settings) -> RoutingRule:
    """Return the rule that holds for the iteration, with panels that have the scorer `name`, and with the blocks of
    `today` that it reads; where the panels are of `today` too, those that all of them read."""
    now, own = routing_decisions.current_routing_rule(ws, iteration), stage_records.load_iteration_params(ws, iteration)
    held = now.apply_to(own).routing.scorers
    with_it = (panels for panels in (held, today.routing.scorers) if name in _list_scorers(panels))
    panels = next(with_it, {"default": [name]})
    anew = {name} if panels is held else _list_scorers(panels)
    read = {block for one in anew for block in list_scorer_blocks(one)}
    blocks = {block: getattr(today, block).model_dump(mode="json") for block in sorted(read)}
    return RoutingRule(now.threshold, panels, now.band, {**(now.settings or {}), **blocks} or None)


def _list_scorers(panels: Mapping[str, Panel]) -> set[str]:
    return {name for panel in panels.values() for name in list_panel(panel)}


def _check_version(ws: Workspace, iteration: int, name: str, version: str, rule: RoutingRule) -> None:
    panel = ScorerSet(rule.apply_to(stage_records.load_iteration_params(ws, iteration)))
    (present,) = {one[1] for of_domain in panel.versions.values() for one in of_domain if one[0] == name}
    if version and present != version and not (len(version) >= _PREFIX and present.startswith(version)):
        raise BadInput(
            f"the scorer {name} has version {present}, not {version[:60]}",
            where="--scorer",
            fix=f"leave @{version[:60]} out, or set in params.yaml what makes that version; what an earlier one said "
            "stands in `flywheel query 'from score_history'`",
        )


def _rescore(ws: Workspace, iteration: int, rule: RoutingRule) -> Rescoring:
    return Rescoring(reroute.prepare_reroute(ws, iteration, rule), rule)


def _rescore_by_people(ws: Workspace, iteration: int) -> Rescoring:
    if route_review.open_questions(ws, iteration):
        what = f"people are asked about iteration {iteration_label(iteration)} before it trains"
        raise BadInput(what, where="--scorer person", fix="`flywheel review routes`: their labels count at its end")
    rule = routing_decisions.current_routing_rule(ws, iteration)
    rows = [row for row in route_review.read_waiting(ws, iteration) if row["label"] in (SOLVED, NOT_SOLVED)]
    asked = [{**row, "drawn": PERSON, "at": row["at"].isoformat()} for row in rows]
    reviewed = {"ended": "labels were taken", "asked": asked} if asked else {}
    settings, staged = stage_records.load_iteration_params(ws, iteration), reroute.get_staged_workspace(ws, iteration)
    with training_stores.connect_incoming(ws, iteration, INCOMING, staged) as connection:
        difference = reroute.reroute_on_connection(ws, connection, iteration, rule, settings, reviewed=reviewed)
    return Rescoring(difference, rule, reviewed)
