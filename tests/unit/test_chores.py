"""The world chores: what is drawn can be told apart from what is wanted, and no end that differs from it passes."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.config import Settings
from flywheel.envs.suites.chores.verifier import answer_matches, file_matches, score_chore_state
from flywheel.envs.suites.chores.world import CHORES, ERRANDS
from flywheel.envs.tasks.drawing import make_task
from flywheel.recordings.synthetic.demonstrations import make_demonstrations
from flywheel.utils.errors import BadInput

EVERY = [(world, name, level) for world in (CHORES, ERRANDS) for name in world.families for level in world.levels]


def begun(params: dict[str, Any]) -> dict[str, str]:
    """The files at the beginning, as a state tells them."""
    binary = {
        path: base64.b64decode(text).decode("utf-8", "replace") for path, text in params.get("binary", {}).items()
    }
    return {**params["files"], **binary}


def beginning(params: dict[str, Any]) -> dict[str, Any]:
    """The state before anything was done. Of services: as if none answered as is wanted."""
    return {"files": begun(params), "ports": {port: "not yet" for port in params.get("served", {})}}


def ending(params: dict[str, Any]) -> dict[str, Any]:
    """The state as it is wanted."""
    files = {**begun(params), **params.get("wanted", {})}
    state: dict[str, Any] = {"files": {path: text for path, text in files.items() if text is not None}}
    state["answer"] = params.get("answer", "")
    state["ports"], state["packed"] = params.get("served", {}), params.get("packed", {})
    if "received" in params:
        state["received"] = [{"earlier": "form"}, params["received"]]
    return {**state, "printed": params.get("printed")}


def mutated(params: dict[str, Any], rng: random.Random) -> Iterator[dict[str, Any]]:
    """Ends that differ from the wanted one in what matters."""
    right = json.dumps(ending(params))
    watched = [p for p in {**begun(params), **params.get("wanted", {})} if p not in params.get("free", ())]
    while True:
        state = json.loads(right)
        path = rng.choice(watched) if watched else None
        how = rng.randrange(6)
        if how == 0 and path in state["files"]:
            del state["files"][path]
        elif how == 1 and path in state["files"] and not path.endswith("/"):
            state["files"][path] = f"x{state['files'][path]}"
        elif how == 2 and path in state["files"] and len(state["files"][path].split()) > 1:
            state["files"][path] = " ".join(state["files"][path].split()[:-1])
        elif how == 3 and path is not None and params.get("wanted", {}).get(path, "") is None:
            state["files"][path] = begun(params)[path]
        elif how == 4 and "answer" in params:
            state["answer"] = rng.choice(["", f"{params['answer']}1", f"not {params['answer']}", "7 8"])
        elif how == 5 and params.get("served"):
            port = rng.choice(list(params["served"]))
            state["ports"][port] = "something else" if params["served"][port] is None else rng.choice([None, "", "x"])
        elif how == 5 and params.get("packed"):
            files = next(iter(state["packed"].values()))
            files.pop(rng.choice(list(files)))
        elif how == 5 and "received" in params:
            form = params["received"]
            name = rng.choice(list(form))
            state["received"] = rng.choice([[], [form, {}], [{**form, name: f"{form[name]}x"}], [{**form, "more": ""}]])
        elif how == 5 and "printed" in params:
            state["printed"] = rng.choice([None, [], ["[]"], [params["printed"][0][:-1]], [*params["printed"], "1"]])
        else:
            continue
        yield state


def test_files_of_a_folder_must_stay_too():
    data, long = bytes(range(256)), b"x\xff" * 40_000
    files = {"a.bin": data, "b.bin": long, "c.bin": data, ".d": data, "no.json": b"{"}
    encoded = {path: base64.b64encode(one).decode() for path, one in files.items()}
    params = {"files": {}, "binary": encoded, "free": ["c.bin"], "answer": "3"}
    right = {"a.bin": data.decode("utf-8", "replace"), "b.bin": f"sha256:{hashlib.sha256(long).hexdigest()}"}
    right["no.json"] = "{"
    assert score_chore_state(params, {"files": right, "answer": "3"}) == 1.0
    for path in right:
        for files in ({**right, path: "other"}, {one: text for one, text in right.items() if one != path}):
            assert score_chore_state(params, {"files": files, "answer": "3"}) <= 0.5
    assert score_chore_state({**params, "hidden": [".d"]}, {"files": right, "answer": "3"}) <= 0.5
    gone = {**params, "wanted": {"a.bin": None}}
    assert score_chore_state(gone, {"files": {**right, "a.bin": None}, "answer": "3"}) == 1.0


@pytest.mark.parametrize(("world", "name", "level"), EVERY, ids=lambda one: getattr(one, "name", one))
def test_the_wanted_end_passes_and_no_other_does(world, name, level):
    for seed in range(5):
        task = make_task(world, name, level, seed, "train")
        assert score_chore_state(task.params, ending(dict(task.params))) == 1.0
        assert score_chore_state(task.params, beginning(dict(task.params))) <= 0.5
        states = mutated(dict(task.params), random.Random(seed))
        assert max(score_chore_state(task.params, next(states)) for _ in range(20)) <= 0.5


@pytest.mark.parametrize(("world", "name", "level"), EVERY, ids=lambda one: getattr(one, "name", one))
def test_a_draw_is_of_its_seed_and_names_all_it_says(world, name, level):
    tasks = [make_task(world, name, level, seed, "train") for seed in (0, 0, 1, 2, 3)]
    assert tasks[0] == tasks[1]
    assert len({json.dumps(task.params, sort_keys=True) for task in tasks}) == 4
    assert not any("{" in task.instruction for task in tasks)
    assert all(json.loads(json.dumps(task.params)) == task.params for task in tasks)


def test_there_are_families_enough():
    assert len(CHORES.families) + len(ERRANDS.families) >= 25
    assert len(ERRANDS.families) >= 5
    assert CHORES.levels == [1, 2, 3]


# -- how much an end may differ ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("path", "wanted", "found", "equal"),
    [
        ("a.txt", "one\ntwo\n", "one \r\ntwo", True),
        ("a.txt", "one\ntwo\n", "one\n two\n", False),
        ("a.txt", None, None, True),
        ("a.txt", None, "", False),
        ("a.txt", "", None, False),
        ("a.json", '{"a": 1, "b": [1]}', '{"b":[1],\n"a":1}', True),
        ("a.json", '{"a": 1}', '{"a": "1"}', False),
        ("a.json", '{"a": 1}', '{"a": 1', False),
        ("a.json", "[]", "[" * 100_000, False),
        ("a.csv", "a,b\n1,2\n", '"a","b"\r\n1, 2\r\n\r\n', True),
        ("a.csv", "a,b\n1,2\n", "a,b\n2,1\n", False),
    ],
)
def test_files_are_compared_by_what_they_say(path, wanted, found, equal):
    assert file_matches(path, wanted, found) is equal


@pytest.mark.parametrize(
    ("wanted", "said", "right"),
    [("12", " 12.0 ", True), ("1200", "1,200", True), ("12", "12 or 13", False), ("Oslo", "oslo.", True),
     ("Oslo", "It is Oslo", False), ("Oslo", "", False), ("12", "nan", False)],
)  # fmt: skip
def test_answers_are_compared_by_value(wanted, said, right):
    assert answer_matches(wanted, said) is right


@given(st.text(), st.text())
def test_any_answer_is_judged(wanted, said):
    assert answer_matches(wanted, wanted)
    assert isinstance(answer_matches(wanted, said), bool)


def test_where_no_task_may_be_drawn_no_demonstration_is_begun(tmp_path):
    with pytest.raises(BadInput, match="no task to demonstrate"):
        asyncio.run(make_demonstrations(tmp_path, CHORES, 0, Settings()))
    assert not list(tmp_path.iterdir())
