"""A question's proof leads through the real browser to its answer, and only that answer scores."""

from __future__ import annotations

import asyncio

import pytest
from atlas import make_atlas, write_atlas

from flywheel.agent.actions import Finished
from flywheel.config import parse_settings
from flywheel.envs.browser.pages.manifest import load_page_manifest
from flywheel.envs.registry import open_environments
from flywheel.envs.tasks.page_tasks import make_page_task
from flywheel.policy.protocol import Completion
from flywheel.rollout import corrections
from flywheel.rollout.episode import run_episode
from flywheel.rollout.solvers import BrowsingSolver, load_solvers
from flywheel.synthesis.questions.build import find_questions, write_questions
from flywheel.synthesis.questions.crawl import CrawlBudget
from flywheel.synthesis.questions.oracle import play_proof
from flywheel.utils.errors import EnvError


async def test_the_proof_is_played_and_only_its_answer_scores(tmp_path):
    folder = write_atlas(tmp_path / "atlas", make_atlas())
    made = await asyncio.to_thread(find_questions, str(folder), count=12, seed=1, budget=CrawlBudget())
    path = write_questions(made, tmp_path / "out")
    manifest = load_page_manifest(path)
    chosen = sorted(zip(manifest.variants, made.questions, strict=True), key=lambda pair: -len(pair[1].chain))[:2]
    tasks = [make_page_task(manifest, name, 0, "train") for name, _ in chosen]
    sandbox = {"browsers": 1, "pages": 1, "width": 400, "height": 300, "timeout_s": 60}
    settings = parse_settings({"synthesis": {"manifests": [str(path)]}, "sandbox": sandbox}, where="here")
    async with open_environments(settings, tasks) as environments:
        for task, (_, one) in zip(tasks, chosen, strict=True):
            async with environments.env(task) as env:
                await env.reset(task, 0)
                result, actions = await play_proof(env, one.proof["way"], one.answers[0])
                assert result.info["score"] == 1.0
                assert result.terminated
                assert len(actions) <= one.max_steps
                await env.reset(task, 0)
                wrong = await env.step(Finished(f"{one.answers[0]}1"))
                assert wrong.info["score"] == 0.0
                way, (*_, last) = one.proof["way"], actions
                await env.reset(task, 0)
                for action in actions[:-1]:  # a model went the whole way: asked only now, the solver knows where it is
                    await env.step(action)
                assert (await BrowsingSolver(way, one.answers[0]).next_step(env, 9, {}))[1] == last
                await env.reset(task, 0)
                with pytest.raises(EnvError, match="no link leads there"):
                    await play_proof(env, ["index.html", "nowhere.html"], one.answers[0])


class Silent:
    """A policy whose texts hold no action."""

    weight_version = "silent"

    async def complete(self, context, sampling):
        return Completion("no action", (1,), (-0.1,), 9, "silent", True)


async def test_a_failed_question_is_corrected_along_the_way_of_its_proof(tmp_path):
    folder = write_atlas(tmp_path / "atlas", make_atlas())
    made = await asyncio.to_thread(find_questions, str(folder), count=12, seed=1, budget=CrawlBudget())
    path = write_questions(made, tmp_path / "out")
    manifest = load_page_manifest(path)
    name, one = max(zip(manifest.variants, made.questions, strict=True), key=lambda pair: len(pair[1].chain))
    task = make_page_task(manifest, name, 0, "train")
    sandbox = {"browsers": 1, "pages": 1, "width": 400, "height": 300, "timeout_s": 60}
    chosen = {"synthesis": {"manifests": [str(path)]}, "sandbox": sandbox, "rollout": {"corrections_at": "least_sure"}}
    settings = parse_settings(chosen, where="here")
    solvers = load_solvers([task], settings, tmp_path)
    async with open_environments(settings, [task]) as environments:
        async with environments.env(task) as env:
            failed = await run_episode(env, Silent(), task, 0, iteration=1, settings=settings, temperature=0.5)
        assert corrections.choose_failures({task.task_id: task}, [failed], 1, solvers) == [failed]
        made, stats = await corrections.correct_failures(
            {task.task_id: task}, [failed], environments, settings, solvers, iteration=1, seed=3
        )
    (corrected,), pages = made, [page.removesuffix("index.html") for page in one.proof["way"]]
    assert (corrected.trajectory.reward, corrected.trajectory.start_step, stats.without) == (1.0, 0, {})
    seen = [step.url.partition("/")[2].removesuffix("index.html") for step in corrected.steps]
    assert [page for n, page in enumerate(seen) if not n or page != seen[n - 1]] == pages
    assert corrected.steps[-1].thought == f"The answer is {one.answers[0]}."
    clicks = [step.thought for step in corrected.steps if step.action_type == "click"]
    assert len(clicks) == len(pages) - 1
    assert all(thought.startswith("I follow the link ") for thought in clicks)
