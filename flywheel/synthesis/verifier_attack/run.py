"""Attack the verifiers of whole suites, and of the tasks of a page's manifest, in real environments."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from flywheel.agent.actions import Action, Wait
from flywheel.config import Settings
from flywheel.envs.base import Task, TaskSuite
from flywheel.envs.browser.pages.manifest import PageManifest, parse_manifest_file
from flywheel.envs.registry import find_backend, open_environments
from flywheel.envs.tasks.drawing import make_task
from flywheel.envs.tasks.page_tasks import list_proof_steps, make_page_task
from flywheel.envs.tasks.verification import COUNTS, format_verification
from flywheel.rewards.scorers.verifier import score_final_state
from flywheel.synthesis.verifier_attack.attack import Attack, Solution, attack_template
from flywheel.synthesis.verifier_attack.contracts import find_contract, make_page_contract
from flywheel.synthesis.verifier_attack.mutations import State
from flywheel.synthesis.verifier_attack.solutions import SolutionPlayer, has_known_solutions, play_actions
from flywheel.utils.errors import BadInput, DataError
from flywheel.utils.files import write_text

_DONORS = 6  # templates whose ends lend entries to others
# A command attacks one suite at a time: few machines at once, so that their deadlines hold on a small computer.
_SANDBOX = {"width": 320, "height": 320, "browsers": 1, "pages": 3, "timeout_s": 120.0}
_PLACES = {"terminal": 2, "computer": 1}


def attack_settings(settings: Settings) -> Settings:
    """Return a copy of `settings` for attacks on verifiers: few environments at once, deadlines of 120 seconds.

    These are one browser of three pages of 320x320 pixels, two terminals, or one computer, whose commands get 10
    seconds.
    """
    kinds = {name: {"places": n, "timeout_s": 120.0, "run_s": 10.0} for name, n in _PLACES.items()}
    sandbox = settings.sandbox.model_copy(update={**_SANDBOX, "kinds": {**settings.sandbox.kinds, **kinds}})
    return settings.model_copy(update={"sandbox": sandbox})


def is_solved(task: Task, state: State) -> bool:
    """Tell whether the task's verifier accepts a state as solved; a state that it cannot read is not."""
    try:
        return score_final_state(task, state) >= task.threshold
    except DataError:
        return False


async def attack_suite(settings: Settings, suite: TaskSuite, runs: int, templates: Sequence[str] = ()) -> list[Attack]:
    """Attack the verifiers of a suite with mutated end states of known solutions; return a result a template, in order.

    settings: as `attack_settings` makes them. runs: known solutions of each template, one a seed from 0 on, its levels
    in turn; 1 or more. templates: names; () for all. Opens the suite's environments meanwhile. Raises BadInput for a
    suite without an expert, and where something that its environments need is missing, EnvError and EnvTimeout where
    one fails or is late, DataError for a state that a verifier cannot read, KeyError for a suite that no contract is
    written for, or that lacks one of `templates`.
    """
    if not has_known_solutions(suite):
        what = (
            f"the suite {suite.name}, of the kind {suite.environment}, has no expert whose solutions could be changed"
        )
        raise BadInput(what, where="--world", fix="see docs/verifiers.md: try its verifier in tests of your own")
    chosen = list(templates or suite.templates)
    found: list[Attack] = []
    rng = random.Random(f"donors {suite.name}")
    first = draw_tasks(suite, chosen[0], 1)
    # A phone's applications are played in a browser.
    opened = [replace(one, environment="browser") if one.environment == "phone" else one for one in first]
    async with open_environments(settings, opened) as environments:
        player = SolutionPlayer(environments, find_backend(opened[0].environment).limits(settings).places)
        lent = [draw_tasks(suite, name, 1)[0] for name in rng.sample(chosen, min(_DONORS, len(chosen)))]
        donors = [one.end for one in await player.play(lent)]
        for template in chosen:
            solutions = await player.play(draw_tasks(suite, template, runs))
            found.append(await asyncio.to_thread(attack_template, solutions, find_contract, is_solved, donors))
    return found


def draw_tasks(suite: TaskSuite, template: str, runs: int) -> list[Task]:
    """Draw `runs` tasks of a template, with seeds from 0 on, its levels in turn."""
    levels = sorted(suite.templates[template].max_steps)
    return [make_task(suite, template, levels[seed % len(levels)], seed, "train") for seed in range(runs)]


async def attack_manifest(settings: Settings, manifest: PageManifest, runs: int) -> dict[str, Attack]:
    """Attack the verifiers of a page manifest's tasks with mutated end states of solutions; return results by variant.

    A variant whose task neither asks for an answer nor holds the `actions` of a solution in its proof is left out.
    settings: as `attack_settings` makes them. runs: of each solution, 1 or more. Raises BadInput where something that
    the pages need is missing, or a proof has a text that is no action, EnvError and EnvTimeout where one fails or is
    late, DataError for a state that a verifier cannot read.
    """
    chosen = settings.synthesis.model_copy(update={"manifests": [str(manifest.path)]})
    found: dict[str, Attack] = {}
    tasks = {name: make_page_task(manifest, name, 0, manifest.splits_of(name)[0]) for name in manifest.variants}
    answers = [str(answer) for task in tasks.values() for answer in task.params.get("answer", ())[:1]]
    settings = settings.model_copy(update={"synthesis": chosen})
    async with open_environments(settings, list(tasks.values())[:1]) as environments:
        for name, task in tasks.items():
            proof = manifest.tasks[name].proof if name in manifest.tasks else {}
            if not (actions := [action for _, action in list_proof_steps(task, proof)]):
                continue

            async def play(actions: Sequence[Action], task: Task = task) -> list[State]:
                async with environments.env(task) as env:
                    return await play_actions(env, task, actions)

            solutions = [Solution(task, await play(actions))]
            # An answer alone is judged by the verifier each time, but needs no page more than once.
            solutions += [
                Solution(task, await play(actions)) if len(actions) > 1 else solutions[0] for _ in range(runs - 1)
            ]
            # A part of the proof, ended as if all were done: its end tells what the reward takes for enough.
            last = max((n for n, one in enumerate(actions[:-1]) if not isinstance(one, Wait)), default=0)
            halves = [(await play([*actions[:n], actions[-1]]))[-1] for n in range(1, last + 1)]
            found[name] = attack_template(solutions, make_page_contract, is_solved, (), answers, halves)
    return found


def count_attack(found: Attack) -> dict[str, int]:
    """Return the counts of an attack, by the names in `envs.tasks.verification.COUNTS`: the fields of `Attack`."""
    return {name: getattr(found, name) for name in COUNTS}


def write_page_verification(manifest: PageManifest, attacks: dict[str, Attack]) -> None:
    """Write the results of attacks into a page manifest's file, as the entry `verification` of each task.

    The file is replaced; comments of a YAML file are lost. attacks: as `attack_manifest` returns them, by variant; one
    that is none of the manifest's `tasks` is left out. Raises BadInput where the file cannot be read, or as
    `make_page_task`, DiskFull.
    """
    raw = parse_manifest_file(manifest.path)
    for name, found in attacks.items():
        if name in manifest.tasks:
            checksum = make_page_task(manifest, name, 0, manifest.splits_of(name)[0]).checksum
            raw["tasks"][name]["verification"] = format_verification(count_attack(found), checksum)
    text = json.dumps(raw, ensure_ascii=False, indent=1) + "\n"
    if manifest.path.suffix != ".json":
        text = yaml.safe_dump(raw, sort_keys=False, allow_unicode=True, width=1000)
    write_text(Path(manifest.path), text)
