"""Define the interface of scorers, which judge finished trajectories, and open those that `routing.scorers` names.

The verifier is the first scorer; a judge that reads the text, or a reward model that looks at the screens, is another.
"""

from __future__ import annotations

import importlib
import json
import logging
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol, get_args

from flywheel.config import Panel, Settings
from flywheel.envs.base import Task, Verdict
from flywheel.rewards import scorers
from flywheel.store.schema import Step, Trajectory
from flywheel.utils.errors import BadInput, DataError, FlywheelError, did_you_mean

log = logging.getLogger(__name__)

Need = Literal["final_state", "steps", "screens"]
VERIFIER = "verifier"  # the scorer that reads the final state by the task's own verifier
PERSON = "person"  # the scorer that leaves it to people, whose labels become its verdicts


@dataclass(frozen=True)
class ScoringInput:
    """Hold a finished trajectory, as its scorers see it.

    task: of the trajectory. steps: in order, as the table `steps` has them (`store/schema.py`): `thought`, like most
    fields, is None where there is none. screens: PNG by sha256; a step names the one that it was chosen on, the
    trajectory the one after the last action. What no scorer needs is not read: there are then no steps, no screens, no
    final state. lacking: what is not stored any more; a scorer that needs it is not asked.
    """

    task: Task
    trajectory: Trajectory
    steps: tuple[Step, ...] = ()
    screens: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    lacking: frozenset[Need] = frozenset()

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
    cannot tell, and then `detail` says why. detail: explanation in words. rule: name of the scorer's rule that gave it.
    abstained: whether a None is by design (such trajectories are not for this scorer, or it is not certain), not a
    failure.
    """

    value: float | None
    detail: str = ""
    rule: str = ""
    abstained: bool = False


class Scorer(Protocol):
    """Judge finished trajectories.

    name: as in `routing.scorers`. version: changes when the same trajectory may get another score, so it names all that
    a score depends on besides the trajectory: rules, a prompt, a model, and the values of its parameters, as in
    `f"2-{settings.brief.most_steps}"`. What a version has said of a trajectory is kept, and not asked again. needs:
    what it reads of a `ScoringInput`. slow (may be left out): whether it mostly waits, as for a server, so that eight
    trajectories are scored at once; left out, it is slow where it reads steps or screens.

    Its module may have `SETTINGS`, a tuple of the names of the blocks of params.yaml that it reads, such as
    `("judge", "language_model")`: `flywheel score` takes their present values, of other blocks the iteration's own.
    """

    name: str
    version: str
    needs: frozenset[Need]

    def score(self, case: ScoringInput) -> Score:
        """Score the finished trajectory `case`. It may be slow, and is called from several threads.

        Where the scorer itself fails it returns no value or raises, but never scores 0; the reason is stored with the
        trajectory. Where the scorer is not the one to tell, the score has no value and `abstained`. Only BadInput, for
        settings that must be corrected, stops the stage.
        """


def list_scorers() -> list[str]:
    """List the names of all scorers, which are the modules of `flywheel.rewards.scorers`."""
    return sorted(module.name for module in pkgutil.iter_modules(scorers.__path__))


def reward_settings(settings: Settings) -> Settings:
    """Return settings whose `routing.scorers` are those that reward RL's episodes: `rl.reward` alone, if it is set.

    Without it they are `settings` itself; with it they are a copy, in which the outcome reward model does not abstain.
    """
    if not settings.rl.reward:
        return settings
    routing = settings.routing.model_copy(update={"scorers": {"default": [settings.rl.reward]}})
    return settings.model_copy(update={"routing": routing, "orm": settings.orm.model_copy(update={"abstains": False})})


def list_panel(panel: Panel) -> list[str]:
    """List the names of the scorers of a `panel`, in order. panel: names, or {"cascade": names}."""
    return list(panel["cascade"] if isinstance(panel, Mapping) else panel)


class ScorerSet:
    """Hold the scorers of every domain; all are opened when one is first asked for.

    settings: names them in `routing.scorers`, and has their own blocks. Raises BadInput for a name that no scorer has.
    Each method that opens the scorers (`check_tasks` for a task without a verifier alone) also raises BadInput where
    one refuses its settings or is not as `Scorer` asks, and what else its module or `open_scorer` raises.
    """

    def __init__(self, settings: Settings) -> None:
        self._of_domain = settings.routing.scorers
        there = list_scorers()
        self._names = {domain: list_panel(panel) for domain, panel in self._of_domain.items()}
        for name in {name for chosen in self._names.values() for name in chosen}:
            if name not in there:
                where = "rl.reward" if name == settings.rl.reward else "routing.scorers"
                raise BadInput(f"no scorer is called {name!r}", where=where, fix=did_you_mean(name, there))
        self._settings = settings

    @cached_property
    def _scorers(self) -> dict[str, Scorer]:
        chosen = {name for of_domain in self._names.values() for name in of_domain}
        return {name: _open_scorer(name, self._settings) for name in sorted(chosen)}

    def for_domain(self, domain: str) -> tuple[Scorer, ...]:
        """Return the scorers of `domain`, in the settings' order; the default ones where it has none of its own."""
        return tuple(self._scorers[name] for name in self._names.get(domain, self._names["default"]))

    def needs(self, domain: str = "") -> frozenset[Need]:
        """Return what the scorers of `domain` read of a trajectory; "": of all domains."""
        judges = self.for_domain(domain) if domain else self._scorers.values()
        return frozenset(need for scorer in judges for need in scorer.needs)

    def is_slow(self, domain: str) -> bool:
        """Tell whether a scorer of `domain` takes long: by its attribute `slow`, else if it reads steps or screens."""
        return any(getattr(one, "slow", not one.needs <= {"final_state"}) for one in self.for_domain(domain))

    @property
    def versions(self) -> dict[str, list[list[str]]]:
        """Return, by domain, [name, version] of its scorers: what a verdict depends on besides the trajectory.

        Those of a cascade come after ["cascade", ""].
        """
        return {
            domain: [["cascade", ""]] * isinstance(panel, Mapping)
            + [[scorer.name, scorer.version] for scorer in self.for_domain(domain)]
            for domain, panel in sorted(self._of_domain.items())
        }

    def check_tasks(self, tasks: Iterable[Task]) -> None:
        """Check that somebody can judge each of `tasks`. Raises BadInput naming a task without a verifier in a domain
        that has no other scorer."""
        for task in tasks:
            if not task.verifier and {one.name for one in self.for_domain(task.domain)} <= {VERIFIER}:
                raise BadInput(
                    f"the tasks of {task.world}/{task.template} have no verifier, and nobody else judges {task.domain}",
                    where="routing.scorers",
                    fix=f"name others, such as {{default: [verifier], {task.domain}: {{cascade: [verifier, judge, "
                    f"{PERSON}]}}}}",
                )

    def score_trajectory(self, case: ScoringInput, known: Mapping[str, Verdict] | None = None) -> tuple[Verdict, ...]:
        """Run the scorers of the task's domain on the finished trajectory `case`, and return their verdicts in order.

        `decide_verdict` says which of them counts. Each scorer of a cascade is asked only where all before it abstain.
        known: verdicts of these scorers' present versions, by the scorer's name: those are not asked again. Raises
        BadInput where a scorer does, or returns no `Score` of a number or None. A scorer that raises anything else,
        gives a score out of [0, 1], or needs what is not stored any more (`case.lacking`) yields a verdict without a
        score, with the reason.
        """
        return tuple(self._verdicts(case, known or {}))

    def _verdicts(self, case: ScoringInput, known: Mapping[str, Verdict]) -> Iterator[Verdict]:
        cascade = isinstance(self._of_domain.get(case.task.domain, self._of_domain["default"]), Mapping)
        for scorer in self.for_domain(case.task.domain):
            there = known.get(scorer.name)
            verdict = replace(there, threshold=case.task.threshold) if there else _run_scorer(scorer, case)
            yield verdict
            if cascade and not verdict.abstained:
                return


def list_scorer_blocks(name: str) -> tuple[str, ...]:
    """Return the names of the blocks of the settings that the scorer called `name` reads, its module's `SETTINGS`.

    () where the module has none. Raises BadInput where it is no tuple of names, or names an unknown block; and what the
    import of the module raises.
    """
    module = importlib.import_module(f"{scorers.__name__}.{name}")
    blocks = getattr(module, "SETTINGS", ())
    if not isinstance(blocks, tuple) or not all(isinstance(one, str) for one in blocks):
        fix = f"a tuple of one item ends in a comma; it is {blocks!r:.100}"
        raise BadInput(f"scorer {name}: SETTINGS is no tuple of names", where=module.__file__, fix=fix)
    for one in blocks:
        if one not in (known := Settings.model_fields):
            what = f"scorer {name} names an unknown block of settings: {one}"
            raise BadInput(what, where=module.__file__, fix=did_you_mean(one, known))
    return blocks


def _open_scorer(name: str, settings: Settings) -> Scorer:
    module = importlib.import_module(f"{scorers.__name__}.{name}")
    list_scorer_blocks(name)  # refuses wrong ones
    if not hasattr(module, "open_scorer"):
        raise BadInput("it has no function open_scorer", where=module.__file__, fix="let it return the scorer")
    scorer = module.open_scorer(settings)
    asked = {"name": str, "version": str, "needs": Set, "score": Callable}
    wrong = [field for field, kind in asked.items() if not isinstance(getattr(scorer, field, None), kind)]
    if wrong or scorer.name != name:
        what = f"scorer {name} lacks {', '.join(wrong)}" if wrong else f"scorer {name} is named {scorer.name!r}"
        raise BadInput(what, where=module.__file__, fix="it needs what flywheel.rewards.scorer.Scorer says")
    if unknown := sorted(set(scorer.needs) - set(get_args(Need))):
        fix = f"it may need {', '.join(get_args(Need))}"
        raise BadInput(f"scorer {name} needs what there is not: {', '.join(unknown)}", where=module.__file__, fix=fix)
    return scorer


def _run_scorer(scorer: Scorer, case: ScoringInput) -> Verdict:
    lacking = sorted(scorer.needs & case.lacking)
    try:
        score = Score(None, f"it needs {' and '.join(lacking)}, not stored any more") if lacking else scorer.score(case)
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
    abstained = score.abstained and score.value is None
    return Verdict(value, case.task.threshold, name, scorer.version, detail, abstained)
