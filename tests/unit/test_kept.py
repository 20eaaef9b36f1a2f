"""What is held when a file is written: never more than the contract itself finds, and it is believed only of bytes
that are as they were written."""

from __future__ import annotations

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.config.workspace import Workspace
from flywheel.store import partitions
from flywheel.store.partitions import check_contracts_at_write
from flywheel.store.routing import contracts
from flywheel.utils.errors import DataError

NAME = "logprobs_match"
(FAULT,) = [one.fault for one in contracts.STEP_CONTRACTS if one.name == NAME]
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
    data = partitions.table_from_rows("steps", steps(*told))
    with duckdb.connect() as connection:
        connection.register("steps", data)
        (broken,) = connection.execute(f"SELECT count(*) FROM steps WHERE {FAULT}").fetchone()
    assert not (broken and check_contracts_at_write("steps", data))


@pytest.mark.parametrize("logprobs", [[-0.5, 0.0], [-3e38, 0.0009]])
def test_sound_steps_and_peoples_are_said_to_keep_it(logprobs):
    data = partitions.table_from_rows(
        "steps", steps(("model", [1, 2], logprobs), ("human", None, None), ("model", [], []))
    )
    assert check_contracts_at_write("steps", data) == (NAME,)
    assert check_contracts_at_write("scores", partitions.table_from_rows("scores", [])) == ()


def test_one_file_in_doubt_is_enough_and_an_adopted_one_is_as_it_was(tmp_path):
    ws, other = Workspace(tmp_path / "ws"), Workspace(tmp_path / "other")
    partitions.write_partition(ws, "steps", 1, "rollout", steps(("model", [1], [-0.5])))
    assert partitions.contracts_checked_at_write(ws, "steps", 1, "rollout") == {NAME}
    partitions.adopt_partition(other, ws, "steps", 1, "rollout")
    assert partitions.contracts_checked_at_write(other, "steps", 1, "rollout") == {NAME}
    partitions.write_partition(other, "steps", 1, "ingest", steps(("model", [1], [0.5])))
    with partitions.open_partition_writer(ws, "steps", 1, "rollout") as writer:
        for stage in ("rollout", "ingest"):
            partitions.link_partition_files(other, writer, "steps", 1, stage)
    assert partitions.contracts_checked_at_write(ws, "steps", 1, "rollout") == set()
    assert partitions.contracts_checked_at_write(ws, "steps", 9, "rollout") == set()


def test_other_bytes_are_refused_before_it_is_believed(tmp_path):
    ws = Workspace(tmp_path)
    partitions.write_partition(ws, "steps", 1, "rollout", steps(("model", [1], [-0.5])))
    (path,) = partitions.partition_files(ws, "steps", 1, "rollout")
    (listed,) = partitions.read_part_list(path.parent)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert listed.kept == (NAME,)
    with pytest.raises(DataError, match="changed since it was written"):
        partitions.verify_partition(ws, "steps", 1, "rollout")
