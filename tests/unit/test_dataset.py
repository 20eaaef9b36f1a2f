"""Samples of the training stores: what is drawn is read, as the rollout saw it, and nothing else."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from lamp_env import LEFT, RIGHT, screen
from lamp_env import settings as lamp_settings

from flywheel.agent.history import HistorySummary
from flywheel.config import SupervisedSettings
from flywheel.policy.encoding import Encoder
from flywheel.store import manifest, partitions
from flywheel.store.images import image_digest, image_rows
from flywheel.store.schema import Step, Trajectory, record_to_row
from flywheel.training import data as dataset
from flywheel.training.data import ExampleRef, MixtureDataset, build_agent_examples, is_trainable
from flywheel.utils.errors import DataError

SHOWN = {"history_n_images": 2, "history_n_text": 1, "summary_max_chars": 80, "max_context_tokens": 900}
SETTINGS = lamp_settings(policy=SHOWN)
SCREENS = {image_digest(png): png for png in (screen(side, n) for side in ("left", "right") for n in range(6))}
NAMES = sorted(SCREENS)
DATA = (("trajectories", "rollout"), ("steps", "rollout"), ("images", "rollout"), ("images", "synthesize"))


def trajectory(k: int, number: int, source: str = "rollout") -> Trajectory:
    author = "human" if source == "recording" else "model"
    return Trajectory(
        f"t{k}{number}", "task", "games", instruction=f"Click lamp {number}.", source=source, author=author
    )


def steps_of(one: Trajectory, count: int = 6) -> Iterator[Step]:
    """Of every kind: with a broken one, a person's slip, what a tool returned, a page that is read and not seen."""
    human = one.author == "human"
    for n in range(count):
        text = (LEFT, RIGHT)[n % 2]
        step = Step(
            one.trajectory_id,
            n,
            one.author,
            thought=f"Thought {n}.",
            action_type="click",
            action=text.partition("Action: ")[2],
            raw_text=text,
            token_ids=None if human else tuple(map(ord, text)),
            logprobs=None if human else (-0.5,) * len(text),
            image_sha256=NAMES[(n + len(one.trajectory_id) + ord(one.trajectory_id[-1])) % len(NAMES)],
            url=f"shop/{n}",
            tool_result="42 files" if n == 1 else None,
            misclick=n == 2 if human else None,
        )
        if n == 2 and not human:
            step = replace(step, parse_error="no action", action=None, action_type=None)
        if n == 4:
            step = replace(step, image_sha256=None, observation="$ ls")
        if n == 5 and not human:
            step = replace(step, memory=json.dumps({"steps": 3, "text": "As it was shown.", "by": "stub"}))
        yield step


PLAYED = {k: [trajectory(k, n, "recording" if n == 3 else "rollout") for n in range(5)] for k in (1, 2)}
EVERY = [step for k in PLAYED for one in PLAYED[k] for step in steps_of(one)]


@pytest.fixture
def stores(ws):
    """Two iterations: of each, 0 and 1 went to SFT, 2 and the recording 3 to CT, 4 into quarantine."""
    manifest.init_first_checkpoint(ws, digest="base")
    for k, played in PLAYED.items():
        partitions.write_partition(
            ws, "trajectories", k, "rollout", [record_to_row("trajectories", one) for one in played]
        )
        rows = [record_to_row("steps", step) for one in played for step in steps_of(one)]
        partitions.write_partition(ws, "steps", k, "rollout", rows)
        partitions.write_partition(ws, "images", k, "rollout", image_rows(SCREENS))
        partitions.write_partition(ws, "images", k, "synthesize", image_rows(SCREENS))
        for store, numbers in (("sft", (0, 1)), ("ct", (2, 3))):
            chosen = [record_to_row("trajectories", played[n]) for n in numbers]
            named = [{name: row[name] for name in ("trajectory_id", "task_id", "domain", "source")} for row in chosen]
            partitions.write_partition(ws, store, k, "route", [row | {"weight": 1.0} for row in named])
        general = [
            {
                "sample_id": f"g{k}{n}",
                "kind": "where",
                "image_sha256": NAMES[n],
                "instruction": "Which side?",
                "response": "left",
            }
            for n in range(3)
        ]
        partitions.write_partition(ws, "grounding_examples", k, "synthesize", general)
        data = (*DATA, ("grounding_examples", "synthesize"))
        read = manifest.write_manifest(ws, k, window=1, data=data)
    return ws, read


@pytest.fixture(scope="module")
def encoder(project) -> Encoder:
    return Encoder.from_folder(project / "models" / "base")


def test_a_pool_is_the_steps_to_learn_from_by_source(stores):
    ws, read = stores
    ct = dataset.load_weighted_steps(ws, read, "ct", {"rollout": 0.02})
    assert ct.names == ["t12", "t13", "t22", "t23"]
    assert ct.steps.tolist() == [5] * 4  # without the broken step, without the slip
    assert ct.weights.tolist() == [0.02, 1, 0.02, 1]
    people = dataset.load_weighted_steps(ws, read, "ct", {"recording": 1.0}, other=0.0)
    assert people.names == ["t13", "t23"]
    assert dataset.load_weighted_steps(ws, read, "sft", {}).names == ["t20", "t21"]  # of the window alone
    assert dataset.load_general_examples(ws, read).names == ["g20", "g21", "g22"]


def test_a_step_counts_where_it_is_imitated(ws):
    """The columns are judged as the steps are, whatever is null in them."""
    one = trajectory(1, 0)
    kinds = [(error, slip) for error in (None, "", "no action") for slip in (None, False, True)]
    steps = [
        replace(step, parse_error=error, misclick=slip)
        for step, (error, slip) in zip(steps_of(one, 9), kinds, strict=True)
    ]
    manifest.init_first_checkpoint(ws, digest="base")
    partitions.write_partition(ws, "steps", 1, "rollout", [record_to_row("steps", step) for step in steps])
    row = record_to_row("trajectories", one)
    stored = {name: row[name] for name in ("trajectory_id", "task_id", "domain", "source")} | {"weight": 1.0}
    for store, rows in (("ct", [stored]), ("sft", [])):
        partitions.write_partition(ws, store, 1, "route", rows)
    read = manifest.write_manifest(ws, 1, window=1, data=[("steps", "rollout")])
    assert dataset.load_weighted_steps(ws, read, "ct", {}).steps.tolist() == [sum(map(is_trainable, steps))] == [4]


def test_before_anything_was_collected_there_is_nothing(ws):
    manifest.init_first_checkpoint(ws, digest="base")
    read = manifest.read_manifest(ws, 0)
    assert dataset.load_weighted_steps(ws, read, "ct", {}).total == dataset.load_general_examples(ws, read).total == 0
    assert dataset.load_examples(ws, read, [], None, SETTINGS, ws.root) == []


def test_each_sample_is_what_reading_the_whole_trajectory_makes_of_it(stores, encoder, tmp_path):
    """Token for token and pixel for pixel, here and in a process that it is handed to."""
    ws, read = stores
    every = [one for played in PLAYED.values() for one in played]
    whole = build_agent_examples(every, EVERY, SCREENS, encoder, SETTINGS.policy)
    numbers = {one.trajectory_id: 0 for one in every}
    drawn, expected = [], []
    for sample in whole:
        drawn.append(ExampleRef(sample.trajectory_id, numbers[sample.trajectory_id], False))
        numbers[sample.trajectory_id] += 1
        expected.append(sample)
    made = dataset.load_examples(ws, read, drawn, encoder, SETTINGS, tmp_path / "run")
    handed = pickle.loads(pickle.dumps(made))
    for one, other, want in zip(made, handed, expected, strict=True):
        assert (one.trajectory_id, one.step, one.domain) == (want.trajectory_id, want.step, want.domain)
        assert one.response == other.response == want.response
        for context in (one.context, other.context):
            assert np.array_equal(context.input_ids, want.context.input_ids)
            assert np.array_equal(context.pixel_values, want.context.pixel_values)


def test_samples_come_in_the_order_drawn_and_as_often(stores, encoder, tmp_path):
    ws, read = stores
    drawn = [
        ExampleRef("t23", 4, False),
        ExampleRef("g21", 0, True),
        ExampleRef("t12", 0, False),
        ExampleRef("t23", 4, False),
    ]
    made = dataset.load_examples(ws, read, drawn, encoder, SETTINGS, tmp_path)
    assert [(one.trajectory_id, one.step) for one in made] == [("t23", 5), ("g21", 0), ("t12", 0), ("t23", 5)]
    assert made[1].response == tuple(encoder.encode_text("left"))
    assert len(made[1].context) > 0


def test_a_persons_step_whose_task_no_prompt_holds_is_left_out_and_counted(stores, encoder, tmp_path, monkeypatch):
    ws, read = stores
    monkeypatch.setattr(Encoder, "count", lambda self, context: 10_000)
    drawn = [ExampleRef("t23", 4, False), ExampleRef("t12", 0, False)]
    monkeypatch.setattr(dataset, "draw_mixture", lambda *_: drawn)
    made = MixtureDataset.draw(
        ws, read, "ct", encoder, SETTINGS, SETTINGS.ct, tmp_path, mix_seed=0, order_seed=0
    )  # fmt: skip
    assert [one.name for one in made.drawn] == ["t12"]
    assert (len(made.examples), made.left_out) == (1, 1)


def test_only_the_screens_of_what_is_drawn_are_needed(stores, encoder, tmp_path):
    ws, read = stores
    steps = list(steps_of(PLAYED[1][2]))
    shown = {steps[0].image_sha256, steps[1].image_sha256}  # with two working steps, those of step 1's prompt
    for k in PLAYED:
        partitions.write_partition(ws, "images", k, "rollout", image_rows({name: SCREENS[name] for name in shown}))
        partitions.write_partition(ws, "images", k, "synthesize", [])
        read = manifest.write_manifest(ws, k, window=1, data=(*DATA, ("grounding_examples", "synthesize")))
    (one,) = dataset.load_examples(ws, read, [ExampleRef("t12", 1, False)], encoder, SETTINGS, tmp_path)
    assert one.step == 1
    assert sum(path.stat().st_size for path in tmp_path.glob("screens")) == sum(len(SCREENS[name]) for name in shown)
    with pytest.raises(DataError, match="screens are missing"):
        dataset.load_examples(ws, read, [ExampleRef("t12", 2, False)], encoder, SETTINGS, tmp_path)


def test_a_digest_that_nobody_stored_is_asked_for_once_and_not_where_it_is_encoded(
    stores, encoder, tmp_path, monkeypatch
):
    """A person's steps have none; a language model's answers differ from process to process."""
    ws, read = stores
    asked = []

    class Told:
        name, every = "stub", 1

        def digest(self, before, aged):
            asked.append(len(aged))
            steps = before.steps + len(aged)
            return HistorySummary(steps, f"Digest of {steps}.", self.name, before.counts.with_steps(aged))

    monkeypatch.setattr(dataset, "open_summarizer", lambda settings: Told())
    (one,) = dataset.load_examples(ws, read, [ExampleRef("t13", 4, False)], encoder, SETTINGS, tmp_path)
    assert asked == [1, 1, 1]
    monkeypatch.undo()
    assert "Digest of 3." in encoder.tokenizer.decode(one.context.input_ids.tolist())
    assert asked == [1, 1, 1]


def test_what_is_lost_is_named(stores, encoder, tmp_path):
    ws, read = stores
    with pytest.raises(DataError, match="1 trajectories of the stores are missing, the first is t99"):
        dataset.load_examples(ws, read, [ExampleRef("t99", 0, False)], encoder, SETTINGS, tmp_path)
    rows = [record_to_row("steps", step) for one in PLAYED[2] for step in steps_of(one)]
    rows[0] |= {"token_ids": None, "raw_text": None}
    partitions.write_partition(ws, "steps", 2, "rollout", rows)
    read = manifest.write_manifest(ws, 2, window=1, data=(*DATA, ("grounding_examples", "synthesize")))
    with pytest.raises(DataError, match=r"neither tokens nor a text.*trajectory t20, step 0"):
        dataset.load_examples(ws, read, [ExampleRef("t20", 0, False)], encoder, SETTINGS, tmp_path)


def test_row_groups_without_what_is_drawn_are_not_read(stores, encoder, tmp_path, monkeypatch):
    """Iteration 2's ids all come after those of iteration 1."""
    ws, read = stores
    opened = []
    real = partitions._read_row_group
    monkeypatch.setattr(
        partitions,
        "_read_row_group",
        lambda file, path, group, columns: opened.append(path) or real(file, path, group, columns),
    )
    dataset.load_examples(ws, read, [ExampleRef("t12", 0, False)], encoder, SETTINGS, tmp_path)
    assert {path.parts[-3] for path in opened if path.parts[-4] == "steps"} == {"iteration=001"}


STORES = {
    "ct": ("ct", {"weights": {"rollout": 0.02}}),
    "sft": ("sft", {}),
    "sft with demonstrations": ("sft", {"demonstrations": 0.5}),
}

EARLIER = {
    "ct": [
        "1b88f9e98c06",
        "f8ff1c5db2af",
        "3c15b7e84abc",
        "5c2e6e8e9831",
        "e581c9e84802",
        "9ab7f199bfce",
        "0a389fbfaf49",
        "d7c747e4c77b",
    ],
    "sft with demonstrations": [
        "bd63c87fe7f5",
        "91a9e99fc878",
        "811c4f8d2410",
        "30c60c6b003e",
        "11bd2df3931b",
        "1980b99fab8b",
        "9a51606499f9",
        "453aa8340828",
    ],
    "sft": [
        "717f41a0438e",
        "1570fcf8bacc",
        "56168ca02648",
        "caed77117d56",
        "ab9e814eb29e",
        "333bdb983cea",
        "c7e3daa61b69",
        "638a64a021d4",
    ],
}


def digest(batch, *, contexts: bool = False) -> str:
    sha = hashlib.sha256()
    for one in batch:
        sha.update(f"{one.trajectory_id}|{one.step}|{one.domain}|{one.response}|{one.logprobs}".encode())
        if contexts:
            sha.update(one.context.input_ids.tobytes() + one.context.pixel_values.tobytes())
    return sha.hexdigest()[:12]


def drawn_dataset(stores, encoder, folder, name, **more):
    ws, read = stores
    store, choice = STORES[name]
    block = SupervisedSettings(num_examples=30, batch=4, agent_fraction=0.6)
    seeds = {"mix_seed": 17, "order_seed": 23} | more
    return MixtureDataset.draw(ws, read, store, encoder, SETTINGS, block, folder, **seeds, **choice)


@pytest.mark.parametrize("name", STORES)
def test_a_batch_is_the_same_in_every_process_and_each_time(stores, encoder, tmp_path, name):
    made = drawn_dataset(stores, encoder, tmp_path, name)
    digests = [digest(made.get_batch(i), contexts=True) for i in range(len(made))]
    handed = pickle.loads(pickle.dumps(made))
    assert [digest(handed.get_batch(i), contexts=True) for i in range(len(made))] == digests
    again = drawn_dataset(stores, encoder, tmp_path / "again", name)
    assert [digest(again.get_batch(i), contexts=True) for i in range(len(again))] == digests
    assert made.fingerprint == handed.fingerprint == again.fingerprint
    assert made.fingerprint != drawn_dataset(stores, encoder, tmp_path / "other", name, order_seed=24).fingerprint


@pytest.mark.parametrize("name", STORES)
def test_the_batches_are_those_of_earlier_versions(stores, encoder, tmp_path, name):
    """Which samples a seed draws, and in which order: what an iteration trained on can be made again."""
    made = drawn_dataset(stores, encoder, tmp_path, name)
    assert [len(made.get_batch(i)) for i in range(len(made))] == [4, 4, 4, 4, 4, 4, 4, 2]
    assert [digest(made.get_batch(i)) for i in range(len(made))] == EARLIER[name]


def test_a_mixture_says_what_was_drawn(stores, encoder, tmp_path):
    made = drawn_dataset(stores, encoder, tmp_path, "sft")
    taken = [one.trajectory_id for one in made.examples if one.domain == "games"]
    assert made.trajectory_samples == {name: taken.count(name) for name in ("t20", "t21")}
    assert made.n_agent == len(taken) == 18
