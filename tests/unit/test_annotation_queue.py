"""Leases of tasks that wait for annotators: where the model is weak, to one person at a time."""

from __future__ import annotations

import json

import pytest
import synthetic

from flywheel.envs.tasks import drawing
from flywheel.envs.tasks.drawing import EVEN, task_content, training_filter
from flywheel.ui.annotate.task_queue import TaskQueue, newest_promotion
from flywheel.utils.errors import BadInput
from flywheel.utils.files import write_json

BLOCKS = {
    "synthesis": {"train_tasks": 8, "eval_tasks": 4, "domains": {"games": ["tiles"], "sites": ["settings"]}},
    "merge": {"weights": {"games": 0.5, "sites": 0.5}},
    "annotation": {"lease_s": 100.0},
}


@pytest.fixture
def made(tmp_path):
    return synthetic.workspace(tmp_path, **BLOCKS)


def queue_of(made, clock, **more):
    return TaskQueue(*made, 0, now=lambda: clock[0], **more)


def test_no_two_hold_the_same_task_until_the_lease_ends(made):
    clock = [1000.0]
    ours, theirs = queue_of(made, clock), queue_of(made, clock)  # two servers on one workspace
    first, _ = ours.lease("ada", "s1")
    assert theirs.lease("ben", "s2")[0].task_id != first.task_id
    assert theirs.renew(first.task_id, "ben", "s3") == "ada"
    clock[0] += 60
    assert ours.renew(first.task_id, "ada", "s1") == ""
    clock[0] += 60
    assert theirs.renew(first.task_id, "ben", "s3") == "ada"
    clock[0] += 60  # ada has left
    assert theirs.lease("cy", "s4")[0].task_id == first.task_id
    assert ours.renew(first.task_id, "ada", "s1") == "cy"


def test_who_comes_back_in_time_goes_on(made):
    clock = [0.0]
    queue = queue_of(made, clock)
    task, _ = queue.lease("ada", "s1")
    clock[0] += 500  # the lease ended, and nobody took it
    assert queue.renew(task.task_id, "ada", "s1") == ""


def test_what_one_left_is_not_offered_to_them_anew_and_can_be_gone_on_with(made):
    clock = [0.0]
    queue = queue_of(made, clock)
    task, _ = queue.lease("ada", "s1")
    queue.release(task.task_id, "ada", "s1")
    assert queue.lease("ada", "s2", {task.task_id})[0].task_id != task.task_id
    assert queue.lease("ada", "s3")[0].task_id == task.task_id  # by another server, say
    assert queue.renew(task.task_id, "ada", "s1") == ""
    queue.release(task.task_id, "ada", "s1", done=True)
    assert queue.renew(task.task_id, "ada", "s3") == ""
    queue.release(task.task_id, "ada", "s3")
    assert queue.lease("ben", "s4")[0].task_id != task.task_id  # what is done stays done


def test_done_and_skipped_tasks_are_not_offered_again(made):
    clock = [0.0]
    queue = queue_of(made, clock)
    done, skipped = queue.lease("ada", "s1")[0], queue.lease("ada", "s2")[0]
    queue.release(done.task_id, "ada", "s1", done=True)
    queue.release(skipped.task_id, "ada", "s2", skip=True)
    clock[0] += 1e9
    others = {queue.lease("ada", f"n{n}")[0].task_id for n in range(4)}
    assert not others & {done.task_id, skipped.task_id}
    assert queue.lease("ben", "b")[0].task_id == skipped.task_id


def test_each_content_is_its_own_and_none_is_evaluated(made):
    ws, settings = made
    queue, fit = queue_of(made, [0.0]), training_filter(settings, ws.root)
    tasks = [queue.lease("ada", str(n))[0] for n in range(12)]
    assert len({task.task_id for task in tasks}) == 12
    assert all(map(fit, tasks))
    rolled_out = {task_content(task) for task, _ in drawing.draw_training_tasks(settings, 1, ws.root)}
    assert not rolled_out & {task_content(task) for task in tasks}


def test_weak_kinds_come_first(made):
    ws, _ = made
    evens = [task for task, _ in queue_of(made, [0.0]).pool]
    weak = (evens[-1].world, evens[-1].template, evens[-1].level)
    kinds = {(task.world, task.template, task.level) for task in evens}
    ended = {"/".join(map(str, kind)): "0/4" if kind == weak else "4/4" for kind in kinds}
    write_json(ws.levels(0), {"open": {}, "outcomes": {"0": ended}})
    task, reason = queue_of(made, [0.0]).lease("ada", "s1")
    assert (task.world, task.template, task.level) == weak
    assert reason == "weak" != EVEN


def test_a_domain_alone(made):
    assert {task.domain for task, _ in queue_of(made, [0.0], domain="sites").pool} == {"sites"}
    with pytest.raises(BadInput, match="no task of the domain films"):
        queue_of(made, [0.0], domain="films")


def test_the_newest_promotion_is_the_last_that_was_decided(made):
    ws, _ = made
    assert newest_promotion(ws)[0] == 0
    write_json(ws.promotion(3), {"model": "models/iteration=003/merged", "digest": "d3"})
    ws.iteration(4).mkdir()  # at work
    assert newest_promotion(ws) == (3, json.loads(ws.promotion(3).read_text()))


def test_a_damaged_file_of_leases_holds_nothing(made):
    queue = queue_of(made, [0.0])
    first, _ = queue.lease("ada", "s1")
    queue._path.write_text("{")
    assert queue.lease("ben", "s2")[0].task_id == first.task_id


def test_where_all_is_leased_it_says_so(made):
    queue = queue_of(made, [0.0])
    queue._drawer.draw = lambda like, number: like  # worlds with one content of each kind
    for n in range(len(queue.pool)):
        queue.lease("ada", str(n))
    with pytest.raises(BadInput, match="no task is left for ada"):
        queue.lease("ada", "one more")
