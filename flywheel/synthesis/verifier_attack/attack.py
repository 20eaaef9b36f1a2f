"""Attack a template's verifier: mutate the end states of known solutions, and count what it accepts and refuses.

The gold gate comes first: a known solution must pass in every run, and the start must fail. Only then do mutations
say anything.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from flywheel.envs.base import Task
from flywheel.synthesis.verifier_attack.answers import spoil_answer
from flywheel.synthesis.verifier_attack.contracts import Contract
from flywheel.synthesis.verifier_attack.mutations import State, Variation, mutate_state, take_turns

MUTATIONS, WAYS = 40, 12  # of one solution, at most
FEWEST = 24  # mutations of a template, where its solutions give as many
_BEFORE = 6  # states on the way to the end that are tried, the last ones


@dataclass(frozen=True)
class Solution:
    """Hold one run of a known solution: the states at its start, after each step, and at its end."""

    task: Task
    states: Sequence[State]

    @property
    def start(self) -> State:
        """Return the state at the start."""
        return self.states[0]

    @property
    def end(self) -> State:
        """Return the state at the end."""
        return self.states[-1]


@dataclass
class Attack:
    """Hold the results of attacking a template's verifier. runs, gold: known solutions, and those that it accepts.
    start: start states that it accepts. mutations, killed: mutated ends, and those that it refuses. ways, accepted:
    other legal ends, and those that it accepts. survivors, refused: in words, the mutations that it accepts and the
    legal ends that it refuses."""

    world: str
    template: str
    runs: int = 0
    gold: int = 0
    start: int = 0
    mutations: int = 0
    killed: int = 0
    ways: int = 0
    accepted: int = 0
    survivors: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    @property
    def kill_rate(self) -> float | None:
        """Return the share of mutations that the verifier refuses; None where none was tried."""
        return self.killed / self.mutations if self.mutations else None

    @property
    def false_alarms(self) -> int:
        """Return how many legal ends, known solutions and other ways, the verifier refuses."""
        return self.runs - self.gold + self.ways - self.accepted


def attack_template(
    solutions: Sequence[Solution],
    contract_of: Callable[[Task], Contract],
    solved: Callable[[Task, State], bool],
    donors: Sequence[State] = (),
    more_answers: Sequence[str] = (),
    halves: Sequence[State] = (),
) -> Attack:
    """Attack the verifier of one template.

    solutions: runs of known solutions, of other seeds or the same; one at least. contract_of: returns a task's
    contract. solved: the verifier, whether a state solves a task. donors: ends of other tasks of the suite, whose
    entries are put into the solutions'. more_answers: right answers to other tasks. halves: ends of the first solution
    without its last steps. All solutions and their starts are tried unchanged; as many are mutated as give FEWEST
    mutations, two at least.
    """
    task = solutions[0].task
    found = Attack(task.world, task.template)
    contracts = [contract_of(one.task) for one in solutions]
    answers = [*(str(one.end.get("answer", "")) for one in solutions), *more_answers]
    for one in solutions:
        found.runs += 1
        if solved(one.task, one.end):
            found.gold += 1
        else:
            found.refused.append(f"{one.task.template} {one.task.seed}: the known solution")
        found.start += solved(one.task, one.start)
    for half in halves:
        _count_mutation(found, task, Variation("half done", "", half), solved)
    for number, (one, contract) in enumerate(zip(solutions, contracts, strict=True)):
        if number >= 2 and found.mutations >= FEWEST:
            break
        name = f"{one.task.template} {one.task.seed}"
        rng = random.Random(f"attack {one.task.world} {name}")
        for variation in list_mutations(one, contract, answers, donors, rng):
            _count_mutation(found, one.task, variation, solved)
        for way in list_ways(one, contract, rng):
            found.ways += 1
            if solved(one.task, way.state):
                found.accepted += 1
            else:
                found.refused.append(f"{name}: {way.kind} {way.what}")
    return found


def _count_mutation(found: Attack, task: Task, variation: Variation, solved: Callable[[Task, State], bool]) -> None:
    found.mutations += 1
    if solved(task, variation.state):
        found.survivors.append(f"{task.template} {task.seed}: {variation.kind} {variation.what}")
    else:
        found.killed += 1


def list_mutations(
    one: Solution, contract: Contract, answers: Sequence[str], donors: Sequence[State], rng: random.Random
) -> list[Variation]:
    """List mutations of a solution's end that by the contract do not solve the task, MUTATIONS at most, none twice.

    answers: of the template's solutions. donors: as for `attack_template`.
    """
    gold = contract.counted(one.end)
    kept: list[Variation] = []
    seen = [gold]
    for variation in take_turns([*_wrong_states(one, contract, answers, donors, rng)]):
        if len(kept) >= MUTATIONS:
            break
        counts = contract.counted(variation.state)
        if counts not in seen:
            seen.append(counts)
            kept.append(variation)
    return kept


def list_ways(one: Solution, contract: Contract, rng: random.Random, most: int = WAYS) -> list[Variation]:
    """List other end states that by the contract solve the task as `one` does, `most` at most."""
    gold = contract.counted(one.end)
    ways = contract.ways(one.start, one.end, rng)
    return list(itertools.islice((way for way in ways if contract.counted(way.state) == gold), most))


def _wrong_states(
    one: Solution, contract: Contract, answers: Sequence[str], donors: Sequence[State], rng: random.Random
) -> Iterator[Iterator[Variation]]:
    yield mutate_state(one.start, one.end, contract.parts, donors, rng)
    yield (Variation("before the end", str(n), state) for n, state in enumerate(one.states[-2 : -2 - _BEFORE : -1], 1))
    if contract.answer is not None:
        said = str(one.end.get("answer", ""))
        texts = spoil_answer(contract.answer, said, answers, rng)
        yield (Variation("answer", text, {**one.end, "answer": text}) for text in texts)
        yield iter([Variation("said on the first page", said, {**one.start, "answer": said})])
    yield contract.tampered(one.states)
