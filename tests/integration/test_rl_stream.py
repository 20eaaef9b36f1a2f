"""RL as a stream: at staleness 0 it is the synchronous loop, bit for bit; above it stays within its bound."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import killed_runs
import pytest
import torch
from lamp_env import LampEnv, Lamps, settings, small_model, task
from night import by_day
from safetensors.torch import load_file

from flywheel import config
from flywheel.evaluation.evaluator import judge_episode
from flywheel.evaluation.reward_audit import ALARM
from flywheel.policy.encoding import Encoder
from flywheel.policy.inference.embedded import EmbeddedPolicy
from flywheel.policy.model import load_model, save_checkpoint
from flywheel.rewards.scorer import Score, ScorerSet, ScoringInput
from flywheel.rewards.scorers import orm, verifier
from flywheel.rollout.async_pool import EpisodeOutcome
from flywheel.rollout.episode import derive_seed, run_episode
from flywheel.training.rl import run
from flywheel.training.rl import run as rl
from flywheel.training.rl.curriculum import Curriculum
from flywheel.training.rl.trainer import Learner, build_experiences, estimate_step_samples, train_step
from flywheel.utils.errors import BadInput, TrainingError

RL = {
    "steps": 3,
    "tasks_per_step": 3,
    "group_size": 2,
    "minibatch": 8,
    "actor_lr": 1e-3,
    "value_pretraining_steps": 0,
    "deterministic": True,
    "max_staleness": 0,
    "length_buffer": 2,
}
POLICY = {"max_new_tokens": 9, "timeout_s": 60}
TASKS = [task(number, max_steps=2) for number in range(5)]


@pytest.fixture(scope="module")
def model(tmp_path_factory, project):
    return small_model(tmp_path_factory.mktemp("rl") / "model", project)


@pytest.fixture(autouse=True)
def half_are_solved(monkeypatch):
    monkeypatch.setattr(verifier, "score_final_state", lambda task, state: float(task.params["side"] == "left"))


def train(model, folder, block, tasks=TASKS, **more):
    chosen = settings(rl=RL | block, policy=POLICY)
    arguments = {"open_environments": Lamps.open, "settings": chosen, "iteration": 1, "state_folder": folder / "state"}
    return rl.train_rl(model, folder / "out", "games", tasks, **arguments | more).curve


async def synchronous(model, folder, chosen: config.Settings) -> dict:
    """The loop as plainly as it can be written: one episode after another, no pool, nothing on disk but weights."""
    seed = lambda *names: derive_seed(chosen.seed, 1, "games", *names)  # noqa: E731
    encoder, made = Encoder.from_folder(model), Learner(load_model(model), chosen.rl, seed("value"))
    curriculum, tasks = Curriculum(TASKS, chosen.rl, seed("curriculum")), {t.task_id: t for t in TASKS}
    alone = chosen.policy.model_copy(update={"max_num_seqs": 1, "cache_mb": 0})
    drawn: Counter[str] = Counter()
    for step in range(chosen.rl.steps):
        policy, episodes, groups = EmbeddedPolicy(save_checkpoint(made.policy, encoder, folder / "w"), alone), [], []
        for _ in range(chosen.rl.tasks_per_step):
            chosen_task, results = curriculum.next(), []
            for _ in range(chosen.rl.group_size):
                ordinal, number = drawn.total(), drawn[chosen_task.task_id]
                episode = await run_episode(
                    LampEnv(),
                    policy,
                    chosen_task,
                    number,
                    iteration=1,
                    settings=chosen,
                    temperature=chosen.rl.temperature,
                    seed=derive_seed(seed("train"), "episode", ordinal),
                )
                episodes.append(episode)
                results.append(judge_episode(chosen_task, episode, ScorerSet(chosen)).result)
                drawn[chosen_task.task_id] += 1
            groups.append((chosen_task.task_id, [r.score for r in results], [r.v for r in results]))
        await policy.close()
        for group in groups:
            curriculum.record(*group)
        outcomes = [
            EpisodeOutcome(step, score, v) for _, scores, vs in groups for score, v in zip(scores, vs, strict=True)
        ]
        found = build_experiences(episodes, outcomes, tasks, encoder, chosen)
        train_step(made, estimate_step_samples(found, made, chosen.rl)[0], chosen.rl, seed("minibatches", step))
    return made.policy.state_dict()


def both_ways(model, folder, algorithm) -> tuple[bool, bool]:
    """Whether the two loops give the same weights, and others than at the start."""
    torch.set_num_threads(1)  # how sums are split changes their last bits, and a run shares the threads out
    verifier.score_final_state = lambda task, state: float(task.params["side"] == "left")
    wanted = asyncio.run(synchronous(model, folder, settings(rl=RL | {"algorithm": algorithm}, policy=POLICY)))
    train(model, folder, {"algorithm": algorithm})
    got, before = (load_file(path / "model.safetensors") for path in (folder / "out", model))
    same = [all(torch.equal(got[name], other[name]) for name in got) for other in (wanted, before)]
    return same[0], not same[1]


@pytest.fixture(scope="module")
def fresh():
    """A process of its own, as a run is: what others load (speech recognition) changes the last bits of sums."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield pool


@pytest.mark.exhaustive
@pytest.mark.parametrize("algorithm", by_day(["grpo", "ppo"]))
def test_at_staleness_0_the_weights_are_those_of_the_synchronous_loop(fresh, model, tmp_path, algorithm):
    assert fresh.submit(both_ways, model, tmp_path, algorithm).result(300) == (True, True)


def test_restored_starts_and_fresh_contents_train_together_on_own_steps_alone(model, tmp_path):
    """Restored episodes have one step of their own of two; what they achieve counts apart."""
    drawn, episodes = [], {}
    block = {"restored_start_fraction": 0.5, "true_start_tail": 0.0, "fresh_tasks": True, "algorithm": "grpo"}
    result = rl.train_rl(
        model,
        tmp_path / "out",
        "games",
        killed_runs.TASKS,
        open_environments=Lamps.open,
        settings=settings(rl=RL | block, policy=POLICY),
        iteration=1,
        state_folder=tmp_path / "state",
        successes=killed_runs.successes(),
        draw_fresh=lambda task, number: replace(task, task_id=f"{task.task_id}-{number}"),
        on_task=drawn.append,
        on_episode=lambda one: episodes.update({one.id: one}),
    )
    known = {one.trajectory_id: one for one in killed_runs.successes()}
    restored = {name for name in result.trajectories if episodes[name].trajectory.start_step}
    assert 0 < len(restored) < len(result.trajectories)
    fresh = {task.task_id for task in drawn}
    for name, samples in result.trajectories.items():
        trajectory = episodes[name].trajectory
        assert samples == trajectory.steps - (trajectory.start_step or 0)
        if name in restored:
            assert known[trajectory.parent_id].task.task_id == trajectory.task_id
        else:
            assert trajectory.task_id in fresh or trajectory.task_id in {task.task_id for task in killed_runs.TASKS}
    for metric in result.curve:
        assert 0 <= metric["restored_fraction"] <= 1
        assert ("success_restored" in metric) == (metric["restored_fraction"] > 0)
        assert ("success" in metric) == (metric["restored_fraction"] < 1)
        assert ("live_restored_starts" in metric) == (metric["restored_fraction"] > 0)
    assert any(metric["restored_fraction"] for metric in result.curve)
    counted = sum(row["groups"] for row in result.curriculum)
    assert counted == len((tmp_path / "state" / "pool" / "log.jsonl").read_text().split('"group"')) - 1
    assert result.dropped_starts == {}


class Contrary:
    """Pays what the verifier does not."""

    name, version, needs = "orm", "1", frozenset({"steps", "screens"})

    def score(self, case: ScoringInput) -> Score:
        assert case.trajectory.final_image_sha256 in case.screens
        return Score(float(case.task.params["side"] != "left"))


@pytest.fixture
def contrary(monkeypatch):
    monkeypatch.setattr(orm, "open_scorer", lambda settings: Contrary())


def test_who_is_named_for_the_reward_rewards_the_episodes_and_nobody_else(model, tmp_path, contrary):
    judged = []
    (step,) = train(model, tmp_path, {"reward": "orm", "steps": 1}, on_judged=judged.append)
    assert {verdict.scorer for one in judged for verdict in one.verdicts} == {"orm"}
    paid = [one.task.params["side"] != "left" for one in judged]
    assert len(paid) == step["episodes"] == 6
    assert step["success"] == step["score"] == sum(paid) / 6
    assert step["audit_episodes"] == 6
    assert step["audit_gap"] == pytest.approx(2 * sum(paid) / 6 - 1)
    assert {step["audit_false_pay"], step["audit_false_pay_tiles"], step["audit_missed"]} == {1.0}


def test_a_reward_that_pays_what_failed_is_warned_of_once_and_by_name(model, tmp_path, contrary, caplog):
    curve = train(model, tmp_path, {"reward": "orm", "steps": 4})
    first = next(step["step"] for step in curve if step["audit_evidence"] >= ALARM)
    told = [record.message for record in caplog.records if "reward hacking" in record.message]
    assert len(told) == 1
    assert f"rl games, step {first}: reward hacking: orm paid " in told[0]
    assert "above all of tiles/lamp" in told[0]


def test_such_a_run_stops_where_that_is_set_and_does_not_go_on_when_it_is_started_again(model, tmp_path, contrary):
    block, seen = {"reward": "orm", "steps": 6, "audit_stops": True}, []
    for _ in range(2):
        with pytest.raises(TrainingError, match=r"reward hacking: orm paid (\d+) of \1 audited.*audit_stops"):
            train(model, tmp_path, block, on_metric=lambda metric: seen.append(metric["step"]))
    assert seen == sorted(set(seen))
    assert len(seen) < 5
    assert not (tmp_path / "out").exists()


def test_a_state_that_the_verifier_cannot_read_does_not_stop_a_run_that_it_does_not_pay(
    model, tmp_path, contrary, monkeypatch
):
    def unreadable(task, state):
        raise ValueError("no such field")

    monkeypatch.setattr(verifier, "score_final_state", unreadable)
    (step,) = train(model, tmp_path, {"reward": "orm", "steps": 1})
    assert step["audit_unread"] == 6
    assert "audit_evidence" not in step


@pytest.mark.parametrize("block", [{}, {"reward": "orm", "audit_fraction": 0.0}])
def test_nothing_is_audited_where_the_verifier_pays_or_nobody_asks(model, tmp_path, contrary, block):
    (step,) = train(model, tmp_path, {"steps": 1} | block)
    assert not [name for name in step if name.startswith("audit")]


def test_staleness_stays_within_its_bound(model, tmp_path):
    block = {
        "max_staleness": 2,
        "steps": 5,
        "tasks_per_step": 2,
        "deterministic": False,
        "max_logprob_diff_off_policy": 10.0,
    }
    metrics = train(model, tmp_path, block)
    late = [metric["staleness_max"] for metric in metrics]
    assert late[0] == 0
    assert max(late) in (1, 2)  # three batches begin with the first weights, so the second one is late
    assert all(0 <= metric["staleness_mean"] <= metric["staleness_max"] for metric in metrics)
    assert [metric["episodes"] for metric in metrics] == [4] * 5
    assert all(0 <= metric["utilisation"] <= 1 for metric in metrics)
    assert metrics[-1]["running"] == 0  # nothing was begun in vain


def test_stop_ends_the_run_as_if_it_were_over(model, tmp_path):
    seen = []
    metrics = train(
        model,
        tmp_path,
        {"max_staleness": 1, "deterministic": False, "max_logprob_diff_off_policy": 10.0},
        stop=lambda: True,
        on_metric=lambda metric: seen.append(metric["step"]),
    )
    assert seen == [metric["step"] for metric in metrics] == [1]
    assert load_model(tmp_path / "out")


def test_a_failed_run_goes_on_once_its_cause_is_mended(model, tmp_path):
    """Every environment crashes after the first step; with sound ones the next start takes the second."""

    class Mortal(LampEnv):
        async def reset(self, task, seed):
            if dead:
                self.crash_at = 0
                await self.step(None)
            return await super().reset(task, seed)

        async def step(self, action):
            if not hasattr(self, "task"):
                self.task = TASKS[0]
            return await super().step(action)

    dead = False

    def after(metric):
        nonlocal dead
        seen.append(metric["step"])
        dead = len(seen) == 1

    seen: list[int] = []
    more = {"on_metric": after, "open_environments": lambda settings, tasks: Lamps.of(lambda lease: Mortal())}
    with pytest.raises(TrainingError, match=r"every environment crashed: 8 episodes in a row.*rl games, step 2"):
        train(model, tmp_path, {}, **more)
    dead = False
    metrics = train(model, tmp_path, {}, **more)
    assert seen == [1, 2, 3] == [metric["step"] for metric in metrics]


def test_a_server_at_another_temperature_takes_no_stream(model, tmp_path):
    chosen = settings(
        policy=POLICY | {"backend": "openai", "endpoint": "http://there", "model": "m"},
        rl={"max_staleness": 1, "length_buffer": 2},
    )
    with pytest.raises(BadInput, match=r"log-probabilities at temperature 1 alone.*set rl.temperature to 1"):
        train(model, tmp_path, {}, settings=chosen)


def test_the_trainer_leaves_cores_to_a_policy_beside_it():
    here, server = (
        settings(policy={"device": "cpu"}),
        settings(policy={"backend": "openai", "endpoint": "http://there", "model": "m"}),
    )
    assert [run.count_trainer_threads(here, every) for every in (1, 2, 8)] == [1, 1, 4]
    assert run.count_trainer_threads(server, 8) == 8
    assert run.count_trainer_threads(settings(rl={"threads": 3}), 8) == 3
