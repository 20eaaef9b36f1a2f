"""Manifests whose tasks stand one by one: what each says of itself, its split, its answer, its checksum."""

from __future__ import annotations

import pytest
import yaml

from flywheel.config import parse_settings
from flywheel.envs.browser.pages.manifest import ANSWER_VERIFIER, load_page_manifest
from flywheel.envs.browser.pages.session import score_page_answer
from flywheel.envs.registry import find_backend
from flywheel.envs.tasks.drawing import make_tasks
from flywheel.envs.tasks.page_tasks import list_page_slots, make_page_task, page_checksum
from flywheel.utils.errors import BadInput

QUESTIONS = {
    "name": "birds",
    "title": "Birds",
    "folder": "site",
    "seeded": False,
    "max_steps": 20,
    "tasks": {
        "q1": {"instruction": "Which bird?", "answer": "The Wren", "split": "train", "proof": {"page": "wren.html"}},
        "q2": {"instruction": "How many?", "answer": ["1000", "a thousand"], "split": "eval", "level": 3},
        "t1": {"instruction": "Open it.", "start": "b.html", "reward": "document.title == 'B'", "success": 1,
               "split": "train", "max_steps": 5},
    },
}  # fmt: skip


def write(folder, **changes):
    for name in ("index.html", "b.html"):
        (folder / "site").mkdir(exist_ok=True)
        (folder / "site" / name).write_text("<title>A</title>")
    path = folder / "birds.yaml"
    path.write_text(yaml.safe_dump({**QUESTIONS, **changes}, sort_keys=False))
    return path


def changed(name, **fields):
    return {"tasks": {**QUESTIONS["tasks"], name: {**QUESTIONS["tasks"][name], **fields}}}


def test_each_task_has_what_it_says_and_else_the_manifests(tmp_path):
    page = load_page_manifest(write(tmp_path))
    first, second, third = (make_page_task(page, name, 3, "train") for name in ("q1", "q2", "t1"))
    assert [one.max_steps for one in (first, second, third)] == [20, 20, 5]
    assert [one.level for one in (first, second, third)] == [1, 3, 1]
    assert first.params == {"variant": "q1", "seed": 3, "answer": ["The Wren"]}
    assert "answer" not in third.params
    assert first.verifier == second.verifier == ANSWER_VERIFIER != third.verifier
    assert page.for_variant("t1").start == "b.html"
    assert page.for_variant("t1").expressions["reward"].startswith("doc")


def test_a_task_is_of_its_own_split_alone(tmp_path):
    page = load_page_manifest(write(tmp_path))
    slots = {split: [name for name, _ in list_page_slots([page], split)[0][1]] for split in ("train", "eval")}
    assert slots == {"train": ["q1", "t1"], "eval": ["q2"]}


def test_a_proof_is_no_part_of_a_checksum_and_an_answer_is(tmp_path):
    def sums():
        page = load_page_manifest(path)
        return {name: page_checksum(page.for_variant(name)) for name in page.variants}

    path = write(tmp_path)
    before = sums()
    assert len(set(before.values())) == 3
    write(tmp_path, **changed("q1", proof={"page": "other.html"}, verification={"gold": "10/10"}))
    assert sums() == before
    write(tmp_path, **changed("q1", answer="A crow"))
    assert {name for name, one in sums().items() if one != before[name]} == {"q1"}


@pytest.mark.parametrize(
    ("said", "score"), [("1,000", 1), ("1000.0", 1), ("A  Thousand.", 1), ("1001", 0), ("", 0), ("1000 or 2000", 0)]
)
def test_an_answer_counts_by_what_it_says(tmp_path, said, score):
    task = make_page_task(load_page_manifest(write(tmp_path)), "q2", 3, "eval")
    verify = find_backend("browser").verifier(task)
    assert verify is score_page_answer
    state = {"reward": 1, "success": 1, "floor": 0} | ({"answer": said} if said else {})
    assert verify(task.params, state) == score
    assert verify(task.params, state | {"reward": 0}) == 0


def test_tasks_are_drawn_once_each_as_they_do_not_depend_on_seeds(tmp_path):
    write(tmp_path)
    chosen = {"domains": {"sites": []}, "manifests": ["birds.yaml"], "train_tasks": 9, "eval_tasks": 9}
    settings = parse_settings({"synthesis": chosen, "merge": {"weights": {"sites": 1.0}}}, where="here")
    drawn = {split: [task.template for task in make_tasks(settings, 1, split, tmp_path)] for split in ("train", "eval")}
    assert drawn["eval"] == ["q2"]
    assert set(drawn["train"]) <= {"q1", "t1"}
    assert len(set(drawn["train"])) == len(drawn["train"])


def test_a_manifest_that_is_served_tells_no_answers(tmp_path):
    path = write(tmp_path)
    (tmp_path / "site" / path.name).write_text(path.read_text().replace("folder: site", "folder: ."))
    with pytest.raises(BadInput, match="its answers can be read"):
        load_page_manifest(tmp_path / "site" / path.name)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"variants": ["a"]}, "tasks stand in place of variants"),
        (changed("q1", answer=None), "tasks.q1.answer"),
        ({"tasks": {"q1": {"instruction": "Say.", "split": "train"}}}, "q1 has no reward or answer"),
        ({"tasks": {"q1": {"answer": "x", "split": "train"}}}, "tasks.q1.instruction"),
        (changed("q1", anser="x"), "tasks.q1.anser"),
        (changed("t1", start="c.html"), "there is no c.html"),
        (changed("q1", split=None), "seeded is false"),
        (changed("t1", reward={"command": ["true"]}), "tasks.t1.reward is read outside of the page"),
        ({"answer": "x"}, "no field answer"),
    ],
)
def test_a_wrong_task_is_told_by_its_name(tmp_path, changes, told):
    with pytest.raises(BadInput, match=r"birds\.yaml") as refused:
        load_page_manifest(write(tmp_path, **changes))
    assert told in str(refused.value)


def test_a_task_that_no_state_can_tell_of_has_no_verifier_and_keeps_its_answer(tmp_path):
    page = load_page_manifest(write(tmp_path, **changed("q1", unverified=True)))
    first, second = (make_page_task(page, name, 3, "train") for name in ("q1", "q2"))
    assert (first.verifier, first.params["answer"]) == ("", ["The Wren"])
    assert second.verifier == ANSWER_VERIFIER
    assert page.for_variant("q1").expressions["reward"] == "0", "while it is played nothing is earned"
    alone = {"tasks": {"say": {"instruction": "Say what you like.", "unverified": True, "split": "train"}}}
    assert make_page_task(load_page_manifest(write(tmp_path, **alone)), "say", 3, "train").verifier == ""
    whole = {name: value for name, value in QUESTIONS.items() if name != "tasks"}
    path = tmp_path / "whole.yaml"
    path.write_text(yaml.safe_dump(whole | {"instruction": "Look around.", "unverified": True, "splits": "train"}))
    assert make_page_task(load_page_manifest(path), "page", 3, "train").verifier == ""
    with pytest.raises(BadInput, match="unverified stands in place of reward and success"):
        load_page_manifest(write(tmp_path, unverified=True, reward="1"))
