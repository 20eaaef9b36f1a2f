"""Open the scorers that `routing.scorers` names, and score trajectories by them."""

from __future__ import annotations

import importlib
import logging
import pkgutil
from functools import cached_property

from flywheel.config import Settings
from flywheel.envs.verdict import Verdict
from flywheel.rewards import scorers
from flywheel.rewards.scorer import Need, Score, Scorer, ScoringInput
from flywheel.utils.errors import BadInput, FlywheelError, did_you_mean

log = logging.getLogger(__name__)


def list_scorers() -> list[str]:
    """List the names of all scorers."""
    return sorted(module.name for module in pkgutil.iter_modules(scorers.__path__))


class ScorerSet:
    """Hold the scorers of every domain. Raises BadInput for a name that no scorer has."""

    def __init__(self, settings: Settings) -> None:
        self._of_domain = settings.routing.scorers
        there = list_scorers()
        for name in {name for chosen in self._of_domain.values() for name in chosen}:
            if name not in there:
                raise BadInput(f"no scorer is called {name!r}", where="routing.scorers", fix=did_you_mean(name, there))
        self._settings = settings

    @cached_property
    def _scorers(self) -> dict[str, Scorer]:
        chosen = {name for of_domain in self._of_domain.values() for name in of_domain}
        modules = {name: importlib.import_module(f"{scorers.__name__}.{name}") for name in sorted(chosen)}
        return {name: module.open_scorer(self._settings) for name, module in modules.items()}

    def for_domain(self, domain: str) -> tuple[Scorer, ...]:
        """Return the scorers of a domain, in the settings' order."""
        chosen = self._of_domain.get(domain, self._of_domain["default"])
        return tuple(self._scorers[name] for name in chosen)

    def needs(self, domain: str = "") -> frozenset[Need]:
        """Return what the scorers of a domain read of a trajectory; "": of all domains."""
        judges = self.for_domain(domain) if domain else self._scorers.values()
        return frozenset(need for scorer in judges for need in scorer.needs)

    @property
    def versions(self) -> dict[str, list[list[str]]]:
        """Names and versions by domain, as JSON: what a verdict depends on beside the trajectory."""
        domains = sorted(self._of_domain)
        return {name: [[scorer.name, scorer.version] for scorer in self.for_domain(name)] for name in domains}

    def score_trajectory(self, case: ScoringInput) -> tuple[Verdict, ...]:
        """Run each scorer of the task's domain on a finished trajectory; `decide_verdict` says which of the verdicts
        counts.

        case: the trajectory with what scorers read of it. Raises BadInput where a scorer does. A scorer that raises
        anything else, or gives a score out of [0, 1], yields a verdict without a score, with the reason.
        """
        return tuple(_run_scorer(scorer, case) for scorer in self.for_domain(case.task.domain))


def _run_scorer(scorer: Scorer, case: ScoringInput) -> Verdict:
    try:
        score = scorer.score(case)
    except BadInput:
        raise
    except Exception as error:
        reason = str(error) if isinstance(error, FlywheelError) else f"{type(error).__name__}: {error}"
        log.warning("scorer %s failed on %s: %s", scorer.name, case.trajectory.trajectory_id, reason)
        score = Score(None, reason)
    value, detail = score.value, score.detail
    if value is not None and not 0.0 <= value <= 1.0:
        value, detail = None, f"it gave {value}, which is not in [0, 1]"
    name = f"{scorer.name}:{score.rule}" if score.rule else scorer.name
    return Verdict(value, case.task.threshold, name, scorer.version, detail)
