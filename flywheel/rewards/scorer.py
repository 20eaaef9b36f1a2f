"""Define the interface of scorers, which judge finished trajectories, and open those that `routing.scorers` names.

The verifier is the first scorer; a judge that reads the text, or a reward model that looks at the screens, is another.
"""

from __future__ import annotations

import importlib
import json
import logging
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol, get_args

from flywheel.config import Settings
from flywheel.envs.base import Task, Verdict
from flywheel.rewards import scorers
from flywheel.store.schema import Step, Trajectory
from flywheel.utils.errors import BadInput, DataError, FlywheelError, did_you_mean

log = logging.getLogger(__name__)

Need = Literal["final_state", "steps", "screens"]


@dataclass(frozen=True)
class ScoringInput:
    """Hold a finished trajectory, as its scorers see it.

    task: of the trajectory. steps: in order. screens: PNG by sha256; a step names the one that it was chosen on. What
    no scorer needs is not read: there are then no steps, no screens, no final state.
    """

    task: Task
    trajectory: Trajectory
    steps: tuple[Step, ...] = ()
    screens: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def final_state(self) -> Any:
        """Return the final state; {} where there is none. Raises DataError where the stored text is not JSON."""
        try:
            return json.loads(self.trajectory.final_state or "{}")
        except ValueError as error:
            where = self.trajectory.trajectory_id
            raise DataError(f"final_state is not JSON: {error}", where=where) from None


@dataclass(frozen=True)
class Score:
    """Hold the result of a scorer.

    value: in [0, 1], on the scale of the task's threshold: 1 is what was asked and no less; None where the scorer
    cannot tell, and then `detail` says why. detail: explanation in words. rule: which of the scorer's rules it was.
    """

    value: float | None
    detail: str = ""
    rule: str = ""


class Scorer(Protocol):
    """Judge finished trajectories.

    name: as in `routing.scorers`. version: changes when the same trajectory may get another score, so it names all that
    a score depends on besides the trajectory: rules, a prompt, a model. needs: what it reads of a `ScoringInput`.
    """

    name: str
    version: str
    needs: frozenset[Need]

    def score(self, case: ScoringInput) -> Score:
        """Score the finished trajectory `case`. It may be slow, and is called from several threads.

        Where the scorer itself fails it returns no value or raises, but never scores 0; the reason is stored with the
        trajectory. Only BadInput, for settings that must be corrected, stops the stage.
        """


def list_scorers() -> list[str]:
    """List the names of all scorers."""
    return sorted(module.name for module in pkgutil.iter_modules(scorers.__path__))


class ScorerSet:
    """Hold the scorers of every domain; all are opened when one is first asked for.

    settings: `routing.scorers`, and the scorers' own. Raises BadInput for a name that no scorer has; every method also
    where a scorer refuses its settings, or its module is not one as `Scorer` asks.
    """

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
        return {name: _open_scorer(name, self._settings) for name in sorted(chosen)}

    def for_domain(self, domain: str) -> tuple[Scorer, ...]:
        """Return the scorers of `domain`, in the settings' order; the default ones for a name that has none."""
        chosen = self._of_domain.get(domain, self._of_domain["default"])
        return tuple(self._scorers[name] for name in chosen)

    def needs(self, domain: str = "") -> frozenset[Need]:
        """Return what the scorers of `domain` read of a trajectory; "": of all domains."""
        judges = self.for_domain(domain) if domain else self._scorers.values()
        return frozenset(need for scorer in judges for need in scorer.needs)

    @property
    def versions(self) -> dict[str, list[list[str]]]:
        """Return, by domain, [name, version] of its scorers: what a verdict depends on besides the trajectory."""
        domains = sorted(self._of_domain)
        return {name: [[scorer.name, scorer.version] for scorer in self.for_domain(name)] for name in domains}

    def score_trajectory(self, case: ScoringInput) -> tuple[Verdict, ...]:
        """Run each scorer of the task's domain on the finished trajectory `case`, and return a verdict of each;
        `decide_verdict` says which of them counts.

        Raises BadInput where a scorer does. A scorer that raises anything else, or gives a score out of [0, 1], yields
        a verdict without a score, with the reason.
        """
        return tuple(_run_scorer(scorer, case) for scorer in self.for_domain(case.task.domain))


def _open_scorer(name: str, settings: Settings) -> Scorer:
    module = importlib.import_module(f"{scorers.__name__}.{name}")
    if not hasattr(module, "open_scorer"):
        raise BadInput("it has no function open_scorer", where=module.__file__, fix="let it return the scorer")
    scorer = module.open_scorer(settings)
    if unknown := sorted(set(scorer.needs) - set(get_args(Need))):
        fix = f"it may need {', '.join(get_args(Need))}"
        raise BadInput(f"scorer {name} needs what there is not: {', '.join(unknown)}", where=module.__file__, fix=fix)
    return scorer


def _run_scorer(scorer: Scorer, case: ScoringInput) -> Verdict:
    try:
        score = scorer.score(case)
    except BadInput:
        raise
    except Exception as error:
        reason = str(error) if isinstance(error, FlywheelError) else f"{type(error).__name__}: {error}"
        log.warning("scorer %s failed on %s: %s", scorer.name, case.trajectory.trajectory_id, reason)
        score = Score(None, reason)
    if not isinstance(score, Score) or not isinstance(score.value, int | float | None):
        what = f"scorer {scorer.name} gave {score!r:.100} for trajectory {case.trajectory.trajectory_id}"
        raise BadInput(what, where=f"routing.scorers: {scorer.name}", fix="return Score(a number or None, why)")
    value, detail = score.value, score.detail
    if value is not None and not 0.0 <= value <= 1.0:
        value, detail = None, f"it gave {value}, which is not in [0, 1]"
    name = f"{scorer.name}:{score.rule}" if score.rule else scorer.name
    return Verdict(value, case.task.threshold, name, scorer.version, detail)
