"""A grammar from the settings to the rows: what the model is told, how it is read, what the tables hold."""

from __future__ import annotations

import pytest
from lamp_env import LampEnv, Scripted, settings, task

from flywheel.agent.actions import Click, Point
from flywheel.agent.grammar import Grammar
from flywheel.agent.parsing.parser import parse_response
from flywheel.agent.prompt import Message
from flywheel.recordings.curate import find_unexecutable_steps
from flywheel.rollout.episode import run_episode

LONG = {"max_context_tokens": 8000, "max_new_tokens": 64, "history_n_images": 2}
# 64 x 64 is shown to the model as 280 x 280.
PIXELS = {"coordinate_format": "pixels", "actions": "computer", **LONG}
CALL = '{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [70, 140]}}'
CASES = {
    "ui_tars_1_5": (PIXELS, "Thought: I see it.\nAction: click(start_box='(70,140)')", Point(0.25, 0.5)),
    "ui_tars_1_0": (
        {"coordinate_format": "norm1000", **LONG},
        "Thought: I see it.\nAction: click(start_box='<|box_start|>(250,500)<|box_end|>')",
        Point(0.25, 0.5),
    ),
    "tool_call": (PIXELS, f"Thought: I see it.\n<tool_call>\n{CALL}\n</tool_call>", Point(0.25, 0.5)),
    "point": (
        {"coordinates": 1000, **LONG},
        "Thought: I see it.\nAction: click(point='<point>250 500</point>')",
        Point(0.2505, 0.5005),
    ),
}


@pytest.mark.parametrize("template", CASES)
async def test_an_episode_in_another_grammar(template):
    policy, text, point = CASES[template]
    chosen = settings(policy={"template": template, **policy})
    env, scripted = LampEnv(), Scripted(lambda context, sampling: text)
    # The lamp is on the other side, so that a second step is asked for, with the first in its history.
    got = await run_episode(env, scripted, task(2), 0, iteration=1, settings=chosen, temperature=1.0)
    assert env.actions[0] == Click(point)
    first = got.steps[0]
    assert (first.thought, first.action_type, first.x, first.y) == ("I see it.", "click", point.x, point.y)
    assert text.endswith(first.action)
    assert parse_response(first.action, Grammar.of_settings(chosen)).action == Click(point)
    assert (
        find_unexecutable_steps(got.steps, [row.image_sha256 for row in got.steps], Grammar.of_settings(chosen)) == []
    )
    told, *_, remembered, _ = scripted.asked[1][0]
    assert told.parts[0].endswith("Click the lamp.")
    said = text
    if template == "ui_tars_1_5":  # servers leave the box tokens out; the model's own text has them
        said = said.replace("'(70,140)'", "'<|box_start|>(70,140)<|box_end|>'")
    assert remembered == Message("assistant", (said,))
