"""What is held when a file is written: never more than the contract itself finds, and it is believed only of bytes
that are as they were written."""

from __future__ import annotations

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.errors import DataError
from flywheel.store import contracts, partitions, parts
from flywheel.store.kept import kept
from flywheel.workspace import Workspace

NAME = "logprobs_match"
(FAULT,) = [one.fault for one in contracts.STEP if one.name == NAME]
TOKENS = st.none() | st.lists(st.none() | st.integers(-1, 5), max_size=3)
LOGPROBS = st.none() | st.lists(
    st.none() | st.sampled_from([-1.0, 0.0, 0.0005, 0.1, -1e30]) | st.floats(width=32), max_size=3
)


def steps(*told: tuple) -> list[dict]:
    return [
        {"trajectory_id": "t", "step": k, "author": author, "token_ids": tokens, "logprobs": logprobs}
        for k, (author, tokens, logprobs) in enumerate(told)
    ]


@given(st.lists(st.tuples(st.sampled_from(["model", "human"]), TOKENS, LOGPROBS), max_size=4))
def test_what_is_said_to_be_kept_no_row_breaks(told):
    data = partitions.from_rows("steps", steps(*told))
    with duckdb.connect() as connection:
        connection.register("steps", data)
        (broken,) = connection.execute(f"SELECT count(*) FROM steps WHERE {FAULT}").fetchone()
    assert not (broken and kept("steps", data))


@pytest.mark.parametrize("logprobs", [[-0.5, 0.0], [-3e38, 0.0009]])
def test_sound_steps_and_peoples_are_said_to_keep_it(logprobs):
    data = partitions.from_rows("steps", steps(("model", [1, 2], logprobs), ("human", None, None), ("model", [], [])))
    assert kept("steps", data) == (NAME,)
    assert kept("scores", partitions.from_rows("scores", [])) == ()


def test_one_file_in_doubt_is_enough_and_an_adopted_one_is_as_it_was(tmp_path):
    ws, other = Workspace(tmp_path / "ws"), Workspace(tmp_path / "other")
    partitions.write(ws, "steps", 1, "rollout", steps(("model", [1], [-0.5])))
    assert partitions.kept(ws, "steps", 1, "rollout") == {NAME}
    partitions.adopt(other, ws, "steps", 1, "rollout")
    assert partitions.kept(other, "steps", 1, "rollout") == {NAME}
    partitions.write(other, "steps", 1, "ingest", steps(("model", [1], [0.5])))
    with partitions.writing(ws, "steps", 1, "rollout") as writer:
        for stage in ("rollout", "ingest"):
            partitions.take(other, writer, "steps", 1, stage)
    assert partitions.kept(ws, "steps", 1, "rollout") == set()
    assert partitions.kept(ws, "steps", 9, "rollout") == set()


def test_other_bytes_are_refused_before_it_is_believed(tmp_path):
    ws = Workspace(tmp_path)
    partitions.write(ws, "steps", 1, "rollout", steps(("model", [1], [-0.5])))
    (path,) = partitions.files(ws, "steps", 1, "rollout")
    (listed,) = parts.read(path.parent)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert listed.kept == (NAME,)
    with pytest.raises(DataError, match="changed since it was written"):
        partitions.verify(ws, "steps", 1, "rollout")
