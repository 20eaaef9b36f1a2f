"""RL with the processes around it killed: an inference server of its own, and real browsers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from lamp_env import Lamps, settings, small_model, task
from pages import task_of
from policy_servers import serving

from flywheel.envs.browser.fleet import Stepped
from flywheel.envs.browser.pool import open_browser_pool
from flywheel.envs.registry import EnvRouter
from flywheel.rewards.scorers import verifier
from flywheel.training.rl.run import train_rl
from flywheel.utils.errors import PolicyError

RL = {
    "steps": 3,
    "tasks_per_step": 2,
    "group_size": 2,
    "minibatch": 8,
    "value_pretraining_steps": 0,
    "length_buffer": 2,
    "max_logprob_diff_off_policy": 10.0,
    "max_logprob_diff_on_policy": 1.0,
}
POLICY = {"max_new_tokens": 9, "timeout_s": 60}


@pytest.fixture(scope="module")
def model(tmp_path_factory, project):
    return small_model(tmp_path_factory.mktemp("rl") / "model", project)


def used(state) -> list[int]:
    lines = map(json.loads, (state / "pool" / "log.jsonl").read_text().splitlines())
    return [ordinal for line in lines if "batch" in line for ordinal, *_ in line["episodes"]]


def test_a_killed_inference_server(model, tmp_path, monkeypatch):
    monkeypatch.setattr(verifier, "score_final_state", lambda task, state: float(task.params["side"] == "left"))
    seen = []

    def train(server, after=lambda: None):
        remote = {"backend": "openai", "endpoint": server.url, "model": server.model, "retries": 1}
        return train_rl(
            model,
            tmp_path / "out",
            "games",
            [task(number, max_steps=2) for number in range(4)],
            settings=settings(rl=RL | {"temperature": 1.0}, policy=POLICY | remote),
            iteration=1,
            state_folder=tmp_path / "state",
            open_environments=Lamps.open,
            on_metric=lambda metric: (seen.append(metric["step"]), after()),
        ).curve

    # An episode's request fails, or the publication where all episodes of the second step had finished before.
    place = r"rl games, step 2, (episode \d+ of task lamp00\d at its step|its weights)"
    with serving(model) as server, pytest.raises(PolicyError, match=place):
        train(server, server.process.kill)
    assert seen == [1]
    with serving(model) as server:  # on another port, with the first weights
        metrics = train(server)
    assert seen[-1] == 3
    assert [metric["step"] for metric in metrics] == [1, 2, 3]
    ordinals = used(tmp_path / "state")
    assert len(ordinals) == len(set(ordinals)) == 12


KILLED = 3


def test_killed_browsers(model, tmp_path):
    ended, killed = [], []

    async def kill(pool):
        begun: Counter[int] = Counter()
        async for event in pool.events.stream(Stepped):
            if event.step == 0 and not event.ended:  # its player has its first screen
                begun[event.browser] += 1
                if begun[event.browser] == 2 and len(killed) < KILLED:  # a late kill finds no episode: not the only one
                    os.kill(event.browser, signal.SIGKILL)
                    killed.append(event.browser)

    @asynccontextmanager
    async def with_kills(chosen, tasks):
        async with open_browser_pool(chosen) as pool, asyncio.TaskGroup() as group:
            killer = group.create_task(kill(pool))
            yield EnvRouter({"browser": pool})
            killer.cancel()

    # Long enough that a busy machine kills a browser before its episodes are over.
    tasks = [replace(task_of("tiles", "clear"), task_id=f"tiles{n}", max_steps=10) for n in range(3)]
    sandbox = {"browsers": 1, "pages": 3, "timeout_s": 60, "width": 224, "height": 224}
    metrics = train_rl(
        model,
        tmp_path / "out",
        "games",
        tasks,
        iteration=1,
        state_folder=tmp_path / "state",
        settings=settings(rl=RL | {"steps": 2}, policy=POLICY, sandbox=sandbox, rollout={"retries": 5}),
        open_environments=with_kills,
        on_episode=ended.append,
    ).curve
    assert len(set(killed)) == KILLED
    assert [metric["step"] for metric in metrics] == [1, 2]
    assert sum(metric["retries"] for metric in metrics) > 0
    assert all(metric["crashed"] == 0 and metric["episodes"] == 4 for metric in metrics)
    assert len(set(used(tmp_path / "state"))) == 8
    assert {episode.trajectory.status for episode in ended} <= {"truncated", "invalid", "completed"}
