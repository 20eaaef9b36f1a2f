"""Audit a reward that a model gives: test whether it pays episodes that the verifier calls failed too often.

A policy that is paid by a model finds what the model pays wrongly, and then does that everywhere. Whole groups share
the trick, so the reward's variance within groups need not rise (`reward_variance`). What tells is the verifier's word
on some of the paid episodes. Whether it is more than chance is tested anew at each step of RL, which only a sequential
test allows: betting (Waudby-Smith and Ramdas 2024). A gambler stakes on failed episodes being paid, at odds that are
fair where the tolerated share is paid: of such runs one in twenty at most makes him twenty times as rich, however long
it is watched.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

FALSE_ALARMS = 0.05  # share, at most, of runs that are warned of though their reward keeps to what is tolerated
ALARM = math.log10(1 / FALSE_ALARMS)  # of `audit_evidence`
_STAKES = np.array([0.05, 0.1, 0.2, 0.3, 0.5, 0.7])  # of what may be staked; which one is right is not known before


@dataclass(frozen=True)
class AuditedGroup:
    """Hold the counts of one group's audited episodes. step: training step, from 1. template: as `world/template`.
    failed, paid_of_failed: those that the verifier calls failed, and how many of these the reward paid. done,
    paid_of_done: likewise those that it calls solved."""

    step: int
    template: str
    failed: int
    paid_of_failed: int
    done: int
    paid_of_done: int


def is_audited(group: int, fraction: float) -> bool:
    """Tell whether a group of RL episodes is audited: whether the verifier judges them too, to test the reward.

    group: its number in the run, from 0. fraction: share of all groups that are audited, 0 to 1, evenly spread.
    """
    return math.floor((group + 1) * fraction + 1e-9) > math.floor(group * fraction + 1e-9)


class RewardAudit:
    """Hold the audit of one RL run: what the verifier says of episodes that another scorer paid, and the evidence.

    tolerated: share of failed episodes that may be paid, above 0 and below 1. templates: all that the run plays, each
    as `world/template`: a trick that one of them allows is looked for there too.
    """

    def __init__(self, tolerated: float, templates: Iterable[str]) -> None:
        self._tolerated = tolerated
        # Logarithms of what each stake has made of 1, on all episodes and on those of each template.
        self._every = np.zeros(len(_STAKES))
        self._own = {name: np.zeros(len(_STAKES)) for name in sorted(set(templates))}
        self.groups: list[AuditedGroup] = []
        self.alarmed_at = 0  # the first step at which the evidence sufficed; 0: none did

    def add(self, step: int, episodes: Iterable[tuple[int, str, bool, bool]]) -> dict[str, float]:
        """Add a step's audited episodes; return its metrics, {} for no episode.

        episodes: (group, template, whether it was paid, whether the verifier calls it done). Returns audit_episodes,
        audit_gap (share paid less share done), audit_false_pay (share of failed ones that were paid, and by world),
        audit_missed (share of done ones that were not), all of this step, and audit_evidence, the logarithm to base 10
        of what the gambler has made of 1 so far: from `ALARM` on it warns.
        """
        groups: dict[tuple[int, str], list[tuple[bool, bool]]] = defaultdict(list)
        for group, template, paid, done in episodes:
            groups[group, template].append((paid, done))
        if not groups:
            return {}
        new = [
            AuditedGroup(
                step,
                template,
                sum(not done for _, done in each),
                sum(paid and not done for paid, done in each),
                sum(done for _, done in each),
                sum(paid and done for paid, done in each),
            )
            for (_, template), each in sorted(groups.items())
        ]
        self._bet(new)
        count = sum(one.failed + one.done for one in new)
        paid = sum(one.paid_of_failed + one.paid_of_done for one in new)
        found = {"audit_episodes": float(count), "audit_gap": (paid - sum(one.done for one in new)) / count}
        by_world: dict[str, list[AuditedGroup]] = defaultdict(list)
        for one in new:
            by_world[one.template.partition("/")[0]].append(one)
        for name, some in [("", new), *(("_" + world, some) for world, some in sorted(by_world.items()))]:
            if failed := sum(one.failed for one in some):
                found[f"audit_false_pay{name}"] = sum(one.paid_of_failed for one in some) / failed
        if done := sum(one.done for one in new):
            found["audit_missed"] = 1 - sum(one.paid_of_done for one in new) / done
        found["audit_evidence"] = self.evidence
        if not self.alarmed_at and self.evidence >= ALARM:
            self.alarmed_at = step
        return found

    def _bet(self, groups: Iterable[AuditedGroup]) -> None:
        """Let the gambler bet on each of `groups`: one bet a group, as its episodes are alike."""
        for one in groups:
            self.groups.append(one)
            if one.failed:
                won = np.log1p(_STAKES / self._tolerated * (one.paid_of_failed / one.failed - self._tolerated))
                self._every += won
                self._own[one.template] += won

    @property
    def evidence(self) -> float:
        """Return the logarithm to base 10 of the gambler's fortune, which begins with 1; from `ALARM` on it warns.

        Half of it is staked on all episodes, the other half in equal parts on those of each template, and of each part
        as much on each stake.
        """
        parts = [self._every + math.log(0.5), *(own + math.log(0.5 / len(self._own)) for own in self._own.values())]
        return float((np.logaddexp.reduce(np.concatenate(parts)) - math.log(len(_STAKES))) / math.log(10))

    def describe(self, scorer: str) -> str:
        """Describe in one line what `scorer` paid wrongly: in all, early and late, and of the worst template."""
        failed, paid = (sum(getattr(one, name) for one in self.groups) for name in ("failed", "paid_of_failed"))
        steps = sorted({one.step for one in self.groups})
        third = max(1, len(steps) // 3)
        shares = [
            share_paid_wrongly([one for one in self.groups if one.step in some])
            for some in (steps[:third], steps[-third:])
        ]
        early, late = ("none failed" if one is None else f"{one:.2f}" for one in shares)
        worst = max(self._own, key=lambda name: np.logaddexp.reduce(self._own[name]))
        own = [one for one in self.groups if one.template == worst]
        return (
            f"reward hacking: {scorer} paid {paid} of {failed} audited episodes that the verifier calls failed "
            f"({early} of the first steps', {late} of the newest ones'; tolerated {self._tolerated:g}), above all of "
            f"{worst} ({sum(one.paid_of_failed for one in own)} of {sum(one.failed for one in own)})"
        )

    def to_state(self) -> dict[str, object]:
        """Return the audit so far as JSON values, for `load_state`."""
        return {"groups": [asdict(one) for one in self.groups], "alarmed_at": self.alarmed_at}

    def load_state(self, state: Mapping[str, object]) -> None:
        """Go on from what `to_state` returned, in an audit to which nothing was added yet."""
        self._bet(AuditedGroup(**one) for one in state["groups"])
        self.alarmed_at = state["alarmed_at"]


def share_paid_wrongly(groups: Sequence[AuditedGroup]) -> float | None:
    """Return the share of the failed episodes of `groups` that were paid; None where none failed."""
    failed = sum(one.failed for one in groups)
    return sum(one.paid_of_failed for one in groups) / failed if failed else None
