"""Pairs of the stores: those of the view, on the prompts of the rollout, and only of what training may use."""

from __future__ import annotations

import preference_stores
import pytest
from lamp_env import LEFT, settings
from preference_stores import DATA, OTHER, one

from flywheel.policy.encoding import Encoder
from flywheel.store import manifest, partitions
from flywheel.store.catalog import database
from flywheel.store.schema import record_to_row
from flywheel.training.data import ExampleRef, load_examples, load_preference_pairs

S = settings(policy={"history_n_images": 2})


@pytest.fixture
def stores(ws):
    return ws, preference_stores.write(ws)


@pytest.fixture(scope="module")
def encoder(project) -> Encoder:
    return Encoder.from_folder(project / "models" / "base")


def pairs_of(stores, encoder, folder, window=1):
    chosen = S.model_copy(update={"sft": S.sft.model_copy(update={"window": window})})
    return load_preference_pairs(*stores, encoder, chosen, folder)


def test_what_was_kept_stands_beside_what_was_not(stores, encoder, tmp_path):
    made = pairs_of(stores, encoder, tmp_path)
    told = [
        (pair.chosen.trajectory_id, pair.chosen.step, encoder.decode(pair.chosen.response), pair.rejected)
        for pair in made
    ]
    assert told == [
        ("mended2", 1, LEFT, (5, 6, 1)),
        ("session2", 0, LEFT, (7, 8, 9)),
        ("session2", 0, LEFT, tuple(encoder.encode_text(OTHER))),
    ]


def test_they_are_the_pairs_of_the_view(stores, encoder, tmp_path):
    """But for those of an annotated episode that does not solve its task."""
    ws, _ = stores
    rows = database.query_catalog(
        ws, "FROM preference_pairs WHERE iteration = 2 AND trajectory_id NOT LIKE 'lost%'"
    ).to_pylist()
    made = pairs_of(stores, encoder, tmp_path)
    key = [(row["trajectory_id"], row["step"], row["chosen_raw_text"]) for row in rows]
    assert key == [(pair.chosen.trajectory_id, pair.chosen.step, encoder.decode(pair.chosen.response)) for pair in made]
    rejected = [tuple(row["rejected_token_ids"] or encoder.encode_text(row["rejected_raw_text"])) for row in rows]
    assert rejected == [pair.rejected for pair in made]
    assert [row["chosen_by"] for row in rows] == ["solver", "human", "human"]


def test_the_prompt_is_that_of_the_step(stores, encoder, tmp_path):
    """With the steps before it, as SFT and the rollout show it."""
    ws, read = stores
    (pair, *_) = pairs_of(stores, encoder, tmp_path)
    (tmp_path / "again").mkdir()
    (same,) = load_examples(ws, read, [ExampleRef("mended2", 0, False)], encoder, S, tmp_path / "again")
    assert pair.chosen.context.input_ids.tolist() == same.context.input_ids.tolist()
    assert len(pair.chosen.context.image_grid_thw) == 2
    assert (pair.chosen.context.pixel_values == same.context.pixel_values).all()


def test_the_window_decides_how_old_a_pair_may_be(stores, encoder, tmp_path):
    ws, _ = stores
    assert {pair.chosen.trajectory_id for pair in pairs_of(stores, encoder, tmp_path)} == {"mended2", "session2"}
    wider = manifest.write_manifest(ws, 2, window=2, data=DATA)
    named = {pair.chosen.trajectory_id for pair in pairs_of((ws, wider), encoder, tmp_path, window=2)}
    assert named == {"mended1", "mended2", "session1", "session2"}


def test_without_candidates_and_corrections_there_are_none(ws, encoder, tmp_path):
    manifest.init_first_checkpoint(ws, digest="base")
    row = record_to_row("trajectories", one("t"))
    partitions.write_partition(ws, "trajectories", 1, "ingest", [row])
    partitions.write_partition(ws, "sft", 1, "route", [{"trajectory_id": "t", "task_id": "task", "domain": "games"}])
    read = manifest.write_manifest(ws, 1, window=1, data=DATA)
    assert pairs_of((ws, read), encoder, tmp_path) == []
    assert database.query_catalog(ws, "FROM preference_pairs").num_rows == 0  # as of a workspace of an earlier version
