"""RL runs that are killed with SIGKILL, each in a fork of a process that has imported all and computed nothing.

`python killed_runs.py FOLDER MODEL SEED KILLS JSON`: JSON is the settings' block rl. First a run that nobody kills, in
FOLDER/whole; then one in FOLDER/killed that is killed KILLS times, each time begun again, and at last left to end.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import traceback
from dataclasses import replace
from pathlib import Path

from lamp_env import LEFT, RIGHT, LampEnv, Lamps, Scripted, settings, task

from flywheel.rewards.scorers import verifier
from flywheel.rollout.async_pool import RolloutLog
from flywheel.rollout.episode import derive_seed, run_rollout
from flywheel.rollout.starts import KnownSuccess
from flywheel.training.rl import run as rl

TASKS = [task(number, max_steps=2) for number in range(4)]
POLICY = {"max_new_tokens": 9, "timeout_s": 60}


class Moments:
    """Counts what a kill may come between: writes, renames and deletions of the run's files, and environment steps."""

    def __init__(self, folder: Path, kill_at: int) -> None:
        self.folder, self.kill_at, self.count = str(folder), kill_at, 0
        sys.addaudithook(self.audit)

    def audit(self, event: str, arguments: tuple) -> None:
        changes = event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir")
        if event == "open":
            changes = isinstance(arguments[1], str) and not arguments[1].startswith("r")
        if changes and str(arguments[0]).startswith(self.folder):
            self.one()

    def one(self) -> None:
        self.count += 1
        if self.count == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def successes() -> list[KnownSuccess]:
    """An episode of each task that misses the lamp and then hits it."""
    found = []
    for one in TASKS:
        said = iter([LEFT, RIGHT] if one.params["side"] == "right" else [RIGHT, LEFT])
        policy = Scripted(lambda context, sampling, said=said: next(said))
        playing = {"iteration": 1, "settings": settings(), "temperature": 1.0}
        (played,) = asyncio.run(run_rollout([one], 1, policy, Lamps(), **playing))
        found.append(KnownSuccess(played.id, "rollouts", one, played.steps))
    return found


def train(folder: Path, model: Path, block: dict, kill_at: int) -> None:
    moments = Moments(folder / "state", kill_at)
    trace = (folder / "trace.jsonl").open("a", buffering=1)

    class Counted(LampEnv):
        async def step(self, action):
            moments.one()
            return await super().step(action)

    class Traced(RolloutLog):
        def accept(self, request, episode, score, success):
            super().accept(request, episode, score, success)
            trace.write(json.dumps({"accepted": request.ordinal, "id": episode.id}) + "\n")

    def update(run, batch, real=rl._RLRun._update):
        used = [[request.ordinal, episode.id] for request, episode in batch.episodes]
        trace.write(json.dumps({"step": batch.step, "used": used}) + "\n")
        figures = real(run, batch)
        moments.one()
        return figures

    rl.RolloutLog, rl._RLRun._update = Traced, update
    # Half of the tasks are solved, so that there is something to learn.
    verifier.score_final_state = lambda task, state: float(task.params["side"] == "left")
    if block.get("replay_fraction"):  # seldom solved, by nothing that a model could learn

        def grade(run, task, episode):
            success = derive_seed(episode.id) % 3 == 0
            return float(success), success

        rl._RLRun._grade = grade
    result = rl.train_rl(
        model,
        folder / "out",
        "games",
        TASKS,
        iteration=1,
        state_folder=folder / "state",
        settings=settings(rl=block, policy=POLICY),
        open_environments=lambda settings, tasks: Lamps.of(lambda lease: Counted()),
        successes=successes() if block.get("restored_start_fraction") else (),
        draw_fresh=lambda task, number: replace(task, task_id=f"{task.task_id}-{number}"),
    )
    steps = [metric["step"] for metric in result.curve]
    replayed = [metric.get("replayed_turns", 0.0) for metric in result.curve]
    end = {"moments": moments.count, "steps": steps, "trajectories": result.trajectories, "replayed": replayed}
    (folder / "end.json").write_text(json.dumps(end))


def forked(folder: Path, model: Path, block: dict, kill_at: int) -> bool:
    """Whether the run came to its end."""
    folder.mkdir(exist_ok=True)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            train(folder, model, block, kill_at)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    if not killed and status:
        sys.exit("the run failed")
    return not killed


def main(folder: Path, model: Path, seed: int, kills: int, block: dict) -> None:
    forked(folder / "whole", model, block, 0)
    moments = json.loads((folder / "whole" / "end.json").read_text())["moments"]
    chance, done = random.Random(seed), 0
    while done < kills:
        # Most of a run is still ahead of the next start, so that ten kills find it at work.
        if forked(folder / "killed", model, block, chance.randint(1, max(2, moments // 4))):
            break
        done += 1
    else:
        forked(folder / "killed", model, block, 0)
    print(json.dumps({"kills": done, "moments": moments}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), json.loads(sys.argv[5]))
