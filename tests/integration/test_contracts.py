"""Each contract sets aside or refuses the offence it names, and a sound iteration passes them all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import synthetic
import synthetic_rows
from night import by_day
from synthetic import routed

from flywheel.config.workspace import Workspace
from flywheel.pipeline.stages.route import INCOMING
from flywheel.store import lineage, partitions
from flywheel.store.catalog import database
from flywheel.store.routing import contracts
from flywheel.utils.errors import ContractBroken, DataError


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Workspace, object, object]:
    ws, settings = synthetic.workspace(tmp_path_factory.mktemp("ws"))
    synthetic.incoming(ws, settings, 1, tasks=3, samples=3)
    return ws, settings, routed(ws, settings, 1)


def copy(ws: Workspace, to: Path) -> Workspace:
    return Workspace(Path(shutil.copytree(ws.root, to / "ws")))


def rows(ws: Workspace, table: str, stage: str) -> list[dict]:
    return partitions.read_partition(ws, table, 1, stage).to_pylist()


def aside(ws: Workspace) -> dict[str, str]:
    """Reasons of what is set aside, by the id of its trajectory."""
    return {row["trajectory_id"]: row["reason"] for row in rows(ws, "quarantine", "route")}


def conserved(ws: Workspace) -> bool:
    (iteration,) = database.query_catalog(ws, "SELECT conserved FROM iterations WHERE iteration = 1").to_pylist()
    return iteration["conserved"]


def test_what_comes_in_is_what_is_stored(built):
    ws, _, outcome = built
    assert outcome.summary["to quarantine"] == 3
    assert sum(outcome.summary[f"to {store}"] for store in ("sft", "ct", "quarantine")) == 9 + 3
    reasons = aside(ws)
    assert reasons["r12"] == "status invalid: audio.wav is cut off"
    assert reasons["t10001"] == "status crashed: EnvTimeout: the page did not answer in 10 s"
    assert reasons["t10002"].startswith("contract: logprobs_match: ")
    assert {m.table: m.rows for m in outcome.manifests}["routes"] == 12
    assert conserved(ws)


def test_data_docs_have_each_contract_and_what_it_found(built):
    ws, *_ = built
    index = (ws.report / "docs" / "index.html").read_text()
    assert "What came into iteration 001" in index
    held = (*contracts.TRAJECTORY_CONTRACTS, *contracts.SCORE_CONTRACTS)
    assert all(f"<code>{one.name}</code>" in index for one in held)


def edited(table, stage, edit):
    """A damage: `edit` changes the rows of a partition, of which it is also given those of the trajectory `name`."""

    def write(ws, name="t10000"):
        found = rows(ws, table, stage)
        edit([row for row in found if row.get("trajectory_id") == name], found)
        partitions.write_partition(ws, table, 1, stage, found)

    return write


def steps(edit):
    return edited("steps", "rollout", edit)


def trajectories(**changes):
    return edited("trajectories", "rollout", lambda mine, found: mine[0].update(changes))


def scores(**changes):
    return edited("scores", "score", lambda mine, found: mine[0].update(changes))


def images(**changes):
    def edit(ws):
        (step, *_) = [row for row in rows(ws, "steps", "rollout") if row["trajectory_id"] == "t10000"]
        for stage in ("rollout", "ingest"):
            found = rows(ws, "images", stage)
            for row in found:
                if row["sha256"] == step["image_sha256"]:
                    row.update(changes)
            partitions.write_partition(ws, "images", 1, stage, found)

    return edit


NAN = float("nan")
# contract -> what breaks it for one trajectory
OFFENCES = [
    ("steps_counted", steps(lambda mine, found: found.remove(mine[-1]))),
    ("steps_numbered", steps(lambda mine, found: mine[-1].update(step=9))),
    ("steps_numbered", steps(lambda mine, found: mine[-1].update(step=0))),
    ("logprobs_match", steps(lambda mine, found: mine[0].update(logprobs=[-0.1, 0.4, -0.2]))),
    ("logprobs_match", steps(lambda mine, found: mine[0].update(logprobs=[-0.1, NAN, -0.2]))),
    ("logprobs_match", steps(lambda mine, found: mine[0].update(logprobs=[-0.1, float("-inf"), -0.2]))),
    ("logprobs_match", steps(lambda mine, found: mine[0].update(logprobs=[-0.1, None, -0.2]))),
    ("logprobs_match", steps(lambda mine, found: mine[0].update(logprobs=None))),
    ("logprobs_match", steps(lambda mine, found: mine[0].update(token_ids=[5, -5, 5]))),
    ("image_there", steps(lambda mine, found: mine[0].update(image_sha256="0" * 64))),
    ("image_there", steps(lambda mine, found: mine[0].update(image_sha256=None))),
    ("points_on_screen", steps(lambda mine, found: mine[0].update(x=1.7))),
    ("points_on_screen", steps(lambda mine, found: mine[0].update(x=NAN))),
    ("points_on_screen", steps(lambda mine, found: mine[0].update(y2=NAN))),
    ("points_on_screen", steps(lambda mine, found: mine[0].update(y=-0.01))),
    ("steps_in_order", steps(lambda mine, found: mine[0].update(ended_at=synthetic_rows.START))),
    ("step_author_known", steps(lambda mine, found: mine[0].update(author=None))),
    ("status_known", trajectories(status="tired")),
    ("status_known", trajectories(status=None)),
    ("source_known", trajectories(source="rumour")),
    ("source_known", trajectories(source=None)),
    ("author_known", trajectories(author="somebody")),
    ("domain_set", trajectories(domain="")),
    ("steps_not_negative", trajectories(steps=-1)),
    ("reward_in_range", trajectories(reward=7.0)),
    ("reward_in_range", trajectories(reward=NAN)),
    ("trajectory_in_order", trajectories(ended_at=synthetic_rows.START.replace(year=2020))),
    ("task_known", trajectories(task_id="nobody made this")),
    ("task_not_held_out", trajectories(task_id="held00")),
    ("scorer_named", scores(scorer=None)),
    ("score_in_range", scores(score=1.5)),
    ("score_in_range", scores(score=NAN)),
    ("threshold_in_range", scores(threshold=NAN)),
    ("v_follows", scores(score=1.0, threshold=1.0, success=False)),
]


def rounds() -> list[dict]:
    """Offences that one routing may meet, by contract: one of each at most, since what one does to a file (its least
    and greatest value, a null) could give away another in the same column."""
    found = []
    for name, damage in OFFENCES:
        free = next((one for one in found if name not in one), None)
        if free is None:
            found.append(free := {})
        free[name] = damage
    return found


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> tuple[Workspace, object, list[str]]:
    """With more trajectories than there are contracts, routed; and which of them are sound."""
    ws, settings = synthetic.workspace(tmp_path_factory.mktemp("many"))
    synthetic.incoming(ws, settings, 1, tasks=6, samples=4)
    routed(ws, settings, 1)
    return ws, settings, sorted({row["trajectory_id"] for row in rows(ws, "scores", "score")} - aside(ws).keys())


@pytest.mark.parametrize("offences", by_day(rounds()))
def test_what_breaks_a_row_contract_is_set_aside_and_the_rest_goes_on(many, tmp_path, offences):
    source, settings, sound = many
    ws = copy(source, tmp_path)
    others = {name: reason.partition(": ")[0] for name, reason in aside(ws).items()}
    broken = dict(zip(sound, offences, strict=False))
    assert len(broken) == len(offences)
    for name, contract in broken.items():
        offences[contract](ws, name)
    routed(ws, settings, 1, routing=settings.routing.model_copy(update={"max_invalid_fraction": 1.0}))
    reasons = aside(ws)
    assert {name: reasons.get(name, "").split(": ")[:2] for name in broken} == {
        name: ["contract", contract] for name, contract in broken.items()
    }
    assert {name: reason.partition(": ")[0] for name, reason in reasons.items() if name not in broken} == others
    assert conserved(ws)
    stored = {row["trajectory_id"] for store in ("sft", "ct") for row in rows(ws, store, "route")}
    assert stored == set(sound) - broken.keys() | {"r10", "r11"}


@pytest.mark.parametrize("content", by_day([None, b"no picture"]))
def test_a_screen_that_is_not_what_its_name_says_is_no_screen(built, tmp_path, content):
    source, settings, _ = built
    ws = copy(source, tmp_path)
    others = aside(ws)
    images(bytes=content)(ws)
    routed(ws, settings, 1, routing=settings.routing.model_copy(update={"max_invalid_fraction": 1.0}))
    reasons = aside(ws)
    assert reasons["t10000"].startswith("contract: image_there: ")
    assert others.keys() <= reasons.keys()
    assert conserved(ws)


@pytest.mark.exhaustive
def test_a_screen_or_task_without_a_name_switches_no_contract_off(built, tmp_path):
    """In SQL nothing is outside of a list that holds a null."""
    source, settings, _ = built
    ws = copy(source, tmp_path)
    for table, stage in (("images", "rollout"), ("tasks", "synthesize")):
        path = partitions.partition_files(ws, table, 1, stage)[0]
        data = partitions.read_partition(ws, table, 1, stage)
        assert not data.schema.field("sha256" if table == "images" else "task_id").nullable, path
    edited("steps", "rollout", lambda mine, found: mine[0].update(image_sha256="0" * 64))(ws)
    routed(ws, settings, 1)
    assert aside(ws)["t10000"].startswith("contract: image_there: ")


@pytest.mark.exhaustive
def test_a_doubled_trajectory_is_set_aside_twice(built, tmp_path):
    source, settings, _ = built
    ws = copy(source, tmp_path)
    edited("trajectories", "rollout", lambda mine, found: found.append(dict(mine[0])))(ws)
    routed(ws, settings, 1)
    own = [row for row in rows(ws, "quarantine", "route") if row["trajectory_id"] == "t10000"]
    assert [row["reason"] for row in own] == ["contract: id_unique: a trajectory_id is there once (2 rows)"] * 2
    assert all(json.loads(row["record"])["task_id"] for row in own)
    assert conserved(ws)


@pytest.mark.exhaustive
def test_a_trajectory_of_an_earlier_iteration_does_not_come_in_again(built, tmp_path):
    source, settings, _ = built
    ws = copy(source, tmp_path)
    synthetic.outgoing(ws, 1)
    synthetic.incoming(ws, settings, 2, tasks=3, samples=3)
    (old,) = [row for row in rows(ws, "trajectories", "rollout") if row["trajectory_id"] == "t10000"]
    found = partitions.read_partition(ws, "trajectories", 2, "rollout").to_pylist()
    partitions.write_partition(ws, "trajectories", 2, "rollout", [*found, old])
    routed(ws, settings, 2)
    reasons = partitions.read_partition(ws, "quarantine", 2, "route").to_pylist()
    assert any(row["reason"].startswith("contract: id_new: ") for row in reasons if row["trajectory_id"] == "t10000")


@pytest.mark.parametrize(
    ("table", "stage"), by_day([("steps", "rollout"), ("scores", "score"), ("utterances", "ingest")])
)
def test_rows_of_no_trajectory_are_set_aside_and_counted_apart(built, tmp_path, table, stage):
    source, settings, before = built
    ws = copy(source, tmp_path)
    found = rows(ws, table, stage)
    nobodys = [found[0] | {"trajectory_id": "nobody"}] * 2
    partitions.write_partition(ws, table, 1, stage, found + nobodys)
    outcome = routed(ws, settings, 1)
    (orphan,) = [row for row in rows(ws, "quarantine", "route") if row["source_table"] != "trajectories"]
    assert (orphan["source_table"], orphan["trajectory_id"], orphan["detail"]) == (table, "nobody", "2 rows")
    results = json.loads((ws.state / "contracts.json").read_text())["1"]
    assert results[f"no_orphan_{table[:-1]}"][1] == 2  # rows, like those judged
    assert outcome.summary == before.summary | {"rows of no trajectory": 1}
    assert conserved(ws)


@pytest.mark.exhaustive
def test_too_many_offences_stop_the_iteration_before_anything_is_stored(built, tmp_path):
    source, settings, _ = built
    ws = copy(source, tmp_path)
    before = rows(ws, "routes", "route")
    edited("trajectories", "rollout", lambda mine, found: [row.update(reward=7.0) for row in found])(ws)
    strict = settings.routing.model_copy(update={"max_invalid_fraction": 0.6})
    with pytest.raises(ContractBroken, match=r"9 of 12 trajectories break a contract, 9 of them reward_in_range"):
        routed(ws, settings, 1, routing=strict)
    assert rows(ws, "routes", "route") == before
    routed(ws, settings, 1, routing=settings.routing.model_copy(update={"max_invalid_fraction": 1.0}))
    assert conserved(ws)


@pytest.mark.exhaustive
def test_an_iteration_of_nothing_is_refused(built, tmp_path):
    source, settings, _ = built
    ws = copy(source, tmp_path)
    for stage in ("rollout", "ingest"):
        for table in ("trajectories", "steps"):
            partitions.write_partition(ws, table, 1, stage, [])
    with pytest.raises(DataError, match="nothing came in"):
        routed(ws, settings, 1)


def test_damaged_input_is_named_before_anything_is_routed(built, tmp_path):
    source, settings, _ = built
    ws = copy(source, tmp_path)
    path = partitions.partition_files(ws, "steps", 1, "rollout")[0]
    path.write_bytes(path.read_bytes()[:-100] + bytes(100))
    with pytest.raises(DataError, match="not a whole Parquet file") as raised:
        routed(ws, settings, 1)
    assert raised.value.where == ws.relative(path)


def twice(table, stage):
    def write(ws):
        found = rows(ws, table, stage)
        partitions.write_partition(ws, table, 1, stage, [*found, found[0]])

    return write


def without_one(table, stage):
    def write(ws):
        partitions.write_partition(ws, table, 1, stage, rows(ws, table, stage)[1:])

    return write


def in_both(ws):
    partitions.write_partition(ws, "ct", 1, "route", rows(ws, "ct", "route") + rows(ws, "sft", "route")[:1])


def held_out(ws):
    found = rows(ws, "tasks", "synthesize")
    trained = rows(ws, "ct", "route")[0]["task_id"]
    for row in (*found, *(recorded := rows(ws, "tasks", "ingest"))):
        if row["task_id"] == trained:
            row["split"] = "eval"
    partitions.write_partition(ws, "tasks", 1, "synthesize", found)
    partitions.write_partition(ws, "tasks", 1, "ingest", recorded)


TABLE_OFFENCES = {
    "one_route": twice("routes", "route"),
    "scored_once": twice("scores", "score"),
    "stores_follow_routes": without_one("ct", "route"),
    "no_evaluation_task": held_out,
}


@pytest.mark.parametrize("name", by_day(TABLE_OFFENCES))
def test_a_table_contract_stops_with_its_name(built, tmp_path, name):
    ws = copy(built[0], tmp_path)
    contracts.check_table_contracts(ws, 1, INCOMING)
    TABLE_OFFENCES[name](ws)
    with pytest.raises(ContractBroken, match=f"contract {name} is broken") as raised:
        contracts.check_table_contracts(ws, 1, INCOMING)
    table = next(contract.table for contract in contracts.TABLE_CONTRACTS if contract.name == name)
    assert raised.value.where == f"data/{table}/iteration=001"


def test_rl_does_not_train_on_an_evaluation_task(built, tmp_path):
    ws = copy(built[0], tmp_path)
    held_out = rows(ws, "tasks", "synthesize")[0] | {"task_id": "held out", "split": "eval"}
    partitions.write_partition(ws, "tasks", 1, "synthesize", [*rows(ws, "tasks", "synthesize"), held_out])
    played = rows(ws, "trajectories", "rollout")[0] | {"trajectory_id": "of RL", "task_id": "held out", "steps": 0}
    partitions.write_partition(ws, "trajectories", 1, "rl-games", [played])
    contracts.check_table_contracts(ws, 1, INCOMING)
    trained = lineage.checkpoint_links("models/iteration=001/rl-games", "its digest", trajectories={"of RL": 2})
    partitions.write_partition(ws, "lineage", 1, "rl-games", trained)
    with pytest.raises(ContractBroken, match=r"no_evaluation_task .* store models/iteration=001/rl-games"):
        contracts.check_table_contracts(ws, 1, INCOMING)


@pytest.mark.parametrize("name", by_day(["ct_sft_disjoint", "conservation"]))
def test_later_contracts_see_the_offence_too(built, tmp_path, name, monkeypatch):
    ws = copy(built[0], tmp_path)
    in_both(ws)
    monkeypatch.setattr(contracts, "TABLE_CONTRACTS", tuple(c for c in contracts.TABLE_CONTRACTS if c.name == name))
    with pytest.raises(ContractBroken, match=f"contract {name} is broken"):
        contracts.check_table_contracts(ws, 1, INCOMING)
