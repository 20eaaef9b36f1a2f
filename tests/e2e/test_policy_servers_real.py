"""Several servers of `flywheel model serve`: RL publishes to all of them, and one is killed in a rollout."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from lamp_env import Lamps, score_lamp, settings, small_model, task
from policy_servers import serving
from processes import PATIENCE_S
from progress_lines import told

from flywheel.policy import open_policy
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.rewards.scorers import verifier
from flywheel.rollout.episode import run_rollout
from flywheel.training.rl.run import train_rl


@pytest.fixture(scope="module")
def folders(tmp_path_factory, project):
    root = tmp_path_factory.mktemp("models")
    return [small_model(root / f"m{seed}", project, seed) for seed in range(2)]


def weights_of(server) -> str:
    models = httpx.get(f"{server.url}/models", headers=server.headers, timeout=PATIENCE_S).json()
    return models["data"][0]["weight_version"]


@pytest.fixture(scope="module")
def two(folders):
    """Two servers. The last test ends them."""
    with serving(folders[0]) as one, serving(folders[0]) as other:
        yield one, other


def test_rl_publishes_each_version_to_all_its_servers(folders, two, tmp_path, monkeypatch):
    monkeypatch.setattr(verifier, "score_final_state", score_lamp)
    after, (one, other) = [], two
    chosen = settings(
        policy={"max_new_tokens": 9, "timeout_s": 60, "backend": "openai", "endpoint": [one.url, other.url]},
        rl={
            "steps": 3,
            "tasks_per_step": 2,
            "group_size": 2,
            "minibatch": 8,
            "value_pretraining_steps": 0,
            "length_buffer": 2,
            "temperature": 1.0,
            "max_staleness": 0,
            "max_logprob_diff_off_policy": 10.0,
            "max_logprob_diff_on_policy": 1.0,
        },
    )
    curve = train_rl(
        folders[0],
        tmp_path / "out",
        "games",
        [task(number, max_steps=2) for number in range(4)],
        settings=chosen,
        iteration=1,
        state_folder=tmp_path / "state",
        open_environments=Lamps.open,
        on_metric=lambda metric: after.append((weights_of(one), weights_of(other))),
    ).curve
    assert [metric["step"] for metric in curve] == [1, 2, 3]
    assert all(left == right for left, right in after)
    versions = [left for left, _ in after]  # the weights of the last step answer nobody
    assert len({checkpoint_digest(folders[0]), *versions}) == 3
    assert versions[1] == versions[2]


async def test_a_server_killed_in_the_middle_of_a_rollout_loses_nothing_and_comes_back(folders, two):
    chosen, tasks = settings(policy={"max_new_tokens": 12, "timeout_s": 60}), [task(n) for n in range(4)]
    arguments = {"iteration": 1, "settings": chosen, "temperature": 1.0}
    own = open_policy(folders[0], chosen.policy)
    expected = await run_rollout(tasks, 2, own, Lamps(), **arguments)
    await own.close()
    one, other = two
    with told() as heard:
        port = one.url.split(":")[2].split("/")[0]
        policy = several_of(folders[0], chosen, one, other)
        await policy.load(folders[0])  # whatever they were published before

        got = await run_rollout(tasks, 2, Killing(policy, one.process), Lamps(), **arguments)
        assert one.process.poll() is not None
        assert "connect" in await heard.line(one.url, "is left out")
        await policy.load(folders[1])
        with serving(folders[0], "--port", port) as again:  # another key, and the weights it was started on
            assert again.url == one.url
            assert checkpoint_digest(folders[1]) in await heard.line(one.url, "answers again")
            assert await asyncio.to_thread(weights_of, again) == checkpoint_digest(folders[1])
            assert other.end() == 0
            late = await run_rollout(tasks, 2, policy, Lamps(), **arguments)
            await policy.close()
    assert [episode.id for episode in got] == [episode.id for episode in expected]
    for episode, alike in zip(got, expected, strict=True):
        assert [step.token_ids for step in episode.steps] == [step.token_ids for step in alike.steps]
    assert {step.weight_version for episode in late for step in episode.steps} == {checkpoint_digest(folders[1])}
    assert {episode.trajectory.status for episode in late} <= {"completed", "truncated", "invalid"}


class Killing:
    """A policy that kills a server with its fifth answer of 24, while other requests are under way."""

    def __init__(self, policy, process):
        self._policy, self._process, self._left = policy, process, 5

    def __getattr__(self, name):
        return getattr(self._policy, name)

    async def complete(self, context, sampling):
        completion = await self._policy.complete(context, sampling)
        self._left -= 1
        if not self._left:
            self._process.kill()
        return completion


def several_of(folder, chosen, *servers):
    changes = {"backend": "openai", "endpoint": [server.url for server in servers]}
    return open_policy(folder, chosen.policy.model_copy(update=changes))
