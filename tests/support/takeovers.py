"""A node whose sessions can be taken over as data, with a session that a model has begun to play."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import managers
from text_env import STORE

from flywheel.agent.actions import Action
from flywheel.agent.parsing.parser import parse_response
from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.envs.base import Observation
from flywheel.envs.registry import open_environments
from flywheel.envs.tasks.drawing import make_task
from flywheel.policy.protocol import Completion
from flywheel.rollout.episode import describe_model_step, observation_grammar
from flywheel.ui.annotate.takeover import open_takeover_node

TASK = make_task(STORE, "on", 2, 3, "train")
SAID = "Thought: I put it down.\nAction: type(content='set cup 3')"
_GRAMMAR = observation_grammar(Settings().policy, Observation(None))


def make_move() -> Action:
    """The action of `SAID`."""
    return parse_response(SAID, _GRAMMAR).action


@asynccontextmanager
async def taken_node(tmp_path, task=TASK, kind="shelves", sandbox=None) -> AsyncIterator[tuple]:
    """The node's workspace, settings, itself, and an environment of it in which a model has said two texts: one without
    an action, and `SAID`."""
    ws, settings = Workspace(tmp_path / "ws"), managers.chosen(**(sandbox or {}))
    ws.root.mkdir()
    async with (
        managers.manager(tmp_path) as it,
        managers.node(it.address, opening=open_takeover_node("one", managers.SECRET, settings, (kind,), ws)) as one,
        open_environments(managers.chosen(it.address, **(sandbox or {})), [task]) as environments,
        environments.env(task) as env,
    ):
        await env.reset(task, task.seed)
        completion = Completion(SAID, (1, 2), (-0.5, -0.25), 7, "weights", True)
        chosen = describe_model_step(completion, parse_response(SAID, _GRAMMAR), _GRAMMAR)
        env.announce({**chosen, "raw_text": "nothing", "action": None, "parse_error": "no action"})
        env.announce(chosen)
        await env.step(make_move())
        yield ws, settings, one, env
