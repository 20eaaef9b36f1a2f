"""`flywheel score`: what a scorer's new version changes is shown before it is written, and both versions stay."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections import Counter
from pathlib import Path

import made_workspaces
import pytest
from made_workspaces import flywheel
from minimal_iterations import record_stages

from flywheel.config import dump_settings, load_settings
from flywheel.config.workspace import Workspace
from flywheel.rewards import scorers
from flywheel.rewards.scorer import Score, ScoringInput
from flywheel.rewards.scorers.verifier import VerifierScorer
from flywheel.store import labels, manifest, partitions, routing_decisions
from flywheel.store.catalog import database
from flywheel.store.versioning import dvc_files, stage_records
from flywheel.utils.files import write_text

VERIFIER = VerifierScorer.version

LENGTH = """
from flywheel.rewards.scorer import Score
class Length:
    name, version, needs = "length", {version!r}, frozenset({{"steps"}})
    def score(self, case):
        n = len(case.steps)
        if n == 1:
            raise RuntimeError("one step is too few to tell")
        return Score(None, "not sure", abstained=True) if n == {unsure} else Score(float(n >= {least}))
def open_scorer(settings):
    return Length()
"""


@pytest.fixture(scope="module")
def verified(three_iterations, tmp_path_factory) -> Path:
    """What the verifier said is of its present version; not to be changed."""
    ws = Workspace(shutil.copytree(three_iterations, tmp_path_factory.mktemp("verified") / "ws", symlinks=True))
    for k in (1, 2, 3):
        rows = partitions.read_partition(ws, "scores", k, "score").to_pylist()
        partitions.write_partition(ws, "scores", k, "score", [row | {"version": VERIFIER} for row in rows])
        record_stages(ws, ("score", "route", "rl-games", "rl-sites", "rl-control"), k)
    return ws.root


@pytest.fixture
def ws(verified, tmp_path) -> Workspace:
    return Workspace(shutil.copytree(verified, tmp_path / "ws", symlinks=True))


@pytest.fixture
def length(tmp_path, monkeypatch):
    """Returns a function that puts a version of the scorer `length` in place. The verifier of the synthetic tasks knows
    no such page, so it is asked in vain of what it has not said yet: `put.asked`."""
    folder = tmp_path / "scorers"
    folder.mkdir()
    monkeypatch.setattr(scorers, "__path__", [*scorers.__path__, str(folder)])

    def ask_verifier(self: object, case: ScoringInput) -> Score:
        put.asked.append(case.trajectory.trajectory_id)
        return Score(None, "it knows no such page")

    monkeypatch.setattr(VerifierScorer, "score", ask_verifier)

    def put(version: str, least: int, unsure: int = 0) -> None:
        sys.modules.pop(f"{scorers.__name__}.length", None)
        shutil.rmtree(folder / "__pycache__", ignore_errors=True)
        (folder / "length.py").write_text(LENGTH.format(version=version, least=least, unsure=unsure))

    put.asked = []
    yield put
    sys.modules.pop(f"{scorers.__name__}.length", None)


def judged_by(ws: Workspace, panel: object) -> None:
    chosen = load_settings(ws.params)
    routing = chosen.routing.model_copy(update={"scorers": {"default": panel}})
    write_text(ws.params, dump_settings(chosen.model_copy(update={"routing": routing})))


def ask(ws: Workspace, sql: str) -> list[dict]:
    return database.query_catalog(ws, sql).to_pylist()


def v_of(ws: Workspace) -> dict[str, bool | None]:
    return {row["trajectory_id"]: row["success"] for row in ask(ws, "FROM routes WHERE iteration = 1")}


def test_a_new_version_is_shown_then_written_and_both_stay(ws, length):
    before, first = made_workspaces.content(ws), v_of(ws)
    length("1", 4)
    judged_by(ws, ["verifier", "length"])
    params = ws.relative(ws.params)
    code, told = flywheel(ws, "score", "--scorer", "length", "--iteration", "1-2", "--json")
    assert code == 0, told
    shown = json.loads(told)
    now = made_workspaces.content(ws)
    assert {path for path in before.keys() | now.keys() if before.get(path) != now.get(path)} <= {params}
    assert not (ws.state / "again").exists()

    assert flywheel(ws, "score", "--scorer", "length@1", "--iteration", "1-2", "--write")[0] == 0
    after = v_of(ws)
    steps = {row["trajectory_id"]: row["steps"] for row in ask(ws, "FROM trajectories WHERE iteration = 1")}
    known = {name: v for name, v in first.items() if v is not None}
    expected = {name: v and (None if steps[name] == 1 else steps[name] >= 4) for name, v in known.items()}
    assert {name: after[name] for name in known} == expected != known
    changed = {"to_1": (False, True), "to_0": (True, False), "to_none": (True, None)}
    counts = Counter((first[name], v) for name, v in after.items())
    assert {name: sum(row[name] for row in shown[0]["changed"]) for name in changed} == {
        name: counts[pair] for name, pair in changed.items()
    }
    moved = sum(row["moved"] for row in shown[0]["changed"])
    assert 0 < moved == shown[0]["moved_in_all"] if "moved_in_all" in shown[0] else moved > 0
    assert stage_records.changed_stages(ws) == {}
    manifest.verify_manifest(ws, 3)

    judged = {row["trajectory_id"] for row in ask(ws, "FROM score_history WHERE scorer LIKE 'verifier:%'")}
    assert not judged & set(length.asked), "what it said is stored"

    length("2", 3)  # the same panel, by the scorer's next version
    assert flywheel(ws, "score", "--scorer", "length", "--iteration", "1", "--write")[0] == 0
    found = {
        (row["scorer"].partition(":")[0], row["version"]): (row["current"], row["n"])
        for row in ask(
            ws,
            "SELECT scorer, version, current, count(*) AS n FROM score_history "
            "WHERE iteration = 1 AND stage = 'score' GROUP BY ALL ORDER BY current",
        )
    }
    assert (found["length", "1"][0], found["length", "2"][0], found["verifier", VERIFIER][0]) == (False, True, True)
    assert found["length", "1"][1] == found["length", "2"][1], "each judged all of them"
    version = routing_decisions.store_version(ws, 1)
    assert flywheel(ws, "score", "--scorer", "length", "--iteration", "1", "--write")[0] == 0
    assert routing_decisions.store_version(ws, 1) == version, "nothing changed: there is nothing to decide"
    current = ask(ws, "SELECT DISTINCT version FROM scores WHERE scorer = 'length' AND iteration = 1")
    assert current == [{"version": "2"}]
    accuracy = ask(ws, "FROM scorer_accuracy WHERE scorer = 'length' AND domain = 'all' AND truth = 'verifier'")
    assert {row["version"] for row in accuracy} == {"1", "2"}
    again = v_of(ws)
    assert {name for name, v in again.items() if v} == {name for name, v in first.items() if v and steps[name] >= 3}
    assert {row["decided_by"] for row in ask(ws, "FROM routes WHERE iteration = 1 AND success")} <= {
        "length",
        *(row["scorer"] for row in ask(ws, "FROM scores WHERE scorer LIKE 'verifier%'")),
    }

    assert flywheel(ws, "data", "reroute", "1", "--write")[0] == 0  # back to the iteration's own panel
    assert v_of(ws) == first
    versions = ask(ws, "SELECT DISTINCT scorer, version FROM score_history WHERE iteration = 1 AND scorer = 'length'")
    assert len(versions) == 2
    assert stage_records.changed_stages(ws) == {}


def test_a_table_says_by_iteration_and_domain_what_changes(ws, length):
    length("1", 4)
    judged_by(ws, ["verifier", "length"])
    code, told = flywheel(ws, "score", "--scorer", "length", "--iteration", "1,3")
    assert code == 0
    head = " ".join(told.splitlines()[0].split())
    assert head == "iteration domain 0 -> 1 1 -> 0 none -> 1 none -> 0 -> none routes moved held by contract"
    assert {line.split()[0] for line in told.splitlines()[1:] if line.split()[0].isdigit()} == {"1", "3"}
    assert "  length 1: " in told
    assert told.endswith("nothing was written: add --write\n")
    (asked, kept) = (re.search(rf"  {name} .*", told)[0] for name in ("length", "verifier"))
    assert "known from before" not in asked
    assert re.search(r": (\d+) have a score, 0 abstained, .*; \1 known from before: a version is not asked twice", kept)


def test_a_rule_that_changes_without_its_version_is_told_as_known(ws, length):
    for least in (4, 1):
        length("1", least)
        judged_by(ws, ["length"])
        code, told = flywheel(ws, "score", "--scorer", "length", "--iteration", "1", "--write")
        assert code == 0, told
    assert "iteration 001: 0 trajectories go elsewhere, 0 scores change" in told
    assert re.search(r"  length 1: (\d+) have a score, .*; \1 known from before", told)


def test_an_iteration_that_is_not_routed_is_named_by_the_option(ws):
    shutil.rmtree(ws.partition("routes", 3, "route"))
    code, told = flywheel(ws, "score", "--scorer", "verifier", "--iteration", "2-3")
    assert code == 2
    assert "iteration 003 is not routed yet (--iteration); its stage `route` comes first: `flywheel run`" in told


def test_settings_that_lack_their_comma_are_refused(ws, length):
    length("1", 4)
    path = Path(scorers.__path__[-1]) / "length.py"
    path.write_text(path.read_text() + "SETTINGS = ('judge')\n")
    code, told = flywheel(ws, "score", "--scorer", "length", "--iteration", "1")
    assert code == 2
    assert "scorer length: SETTINGS is no tuple of names" in told


@pytest.mark.exhaustive
def test_a_scorer_that_no_panel_names_judges_alone_as_reroute_lets_it(ws, length):
    length("1", 4)
    (alone,) = json.loads(flywheel(ws, "score", "--scorer", "length", "--iteration", "1", "--json")[1])
    (rerouted,) = json.loads(flywheel(ws, "data", "reroute", "1", "--scorer", "length", "--json")[1])
    assert alone["panels"] == {"default": ["length"]}
    assert {name: alone[name] for name in rerouted if name in alone and name != "written"} == {
        name: rerouted[name] for name in rerouted if name in alone and name != "written"
    }


@pytest.mark.exhaustive
def test_what_a_scorer_failed_on_is_asked_again_and_the_rest_is_not(ws, length, monkeypatch):
    length("1", 0)
    judged_by(ws, ["verifier", "length"])
    module = sys.modules
    assert flywheel(ws, "score", "--scorer", "length", "--iteration", "1", "--write")[0] == 0
    failed = ask(ws, "FROM scores WHERE iteration = 1 AND scorer = 'length' AND score IS NULL AND NOT abstained")
    monkeypatch.setattr(
        module[f"{scorers.__name__}.length"].Length,
        "score",
        lambda self, case: (
            asked.append(case.trajectory.trajectory_id) or module[f"{scorers.__name__}.length"].Score(1.0)
        ),
    )
    asked: list[str] = []
    assert flywheel(ws, "score", "--scorer", "length", "--iteration", "1", "--write")[0] == 0
    assert sorted(asked) == sorted(row["trajectory_id"] for row in failed)


def test_what_waits_for_a_person_gets_a_verdict_by_labels(ws, length):
    """A cascade in which one scorer is not sure of short ones: those wait, are labelled, and then count."""
    length("1", 4, unsure=3)
    judged_by(ws, {"cascade": ["length", "person"]})
    assert flywheel(ws, "score", "--scorer", "length", "--iteration", "3", "--write")[0] == 0
    waiting = ask(ws, "FROM routes WHERE iteration = 3 AND decided_by = 'person' ORDER BY trajectory_id")
    assert waiting
    rollouts = [row for row in waiting if row["reason"] == "no score by person (waits for a person)"]
    assert {row["destination"] for row in rollouts} == {"quarantine"}
    yes, no = (row["trajectory_id"] for row in rollouts[:2])
    for name, said in ((yes, "solved"), (no, "not solved")):
        code, told = flywheel(ws, "review", "routes", name, said, "--reviewer", "Ada")
        assert code == 0, told
    code, told = flywheel(ws, "review", "routes")
    assert f"{len(waiting)} wait for a person's verdict" in told
    (shown,) = json.loads(flywheel(ws, "score", "--scorer", "person", "--iteration", "3", "--json")[1])
    assert sum(row["none_to_1"] for row in shown["changed"]) == sum(row["none_to_0"] for row in shown["changed"]) == 1
    assert flywheel(ws, "score", "--scorer", "person", "--iteration", "3", "--write")[0] == 0
    routed = {row["trajectory_id"]: row for row in ask(ws, "FROM routes WHERE iteration = 3")}
    assert [(routed[one]["destination"], routed[one]["success"]) for one in (yes, no)] == [("sft", True), ("ct", False)]
    assert {routed[one]["decided_by"] for one in (yes, no)} == {"person"}
    (row,) = ask(ws, f"FROM scores WHERE trajectory_id = '{yes}' AND scorer = 'person'")
    assert (row["score"], row["success"], row["detail"]) == (1.0, True, "as ada says")
    assert not ask(ws, "FROM scorer_accuracy WHERE scorer = 'person'"), "people are not held against themselves"
    assert stage_records.changed_stages(ws) == {}
    assert routing_decisions.human_verdicts(routing_decisions.read_decisions(ws, 3)) == {
        yes: (True, "ada"),
        no: (False, "ada"),
    }
    length("2", 4, unsure=3)  # what a person said stands, whichever version leaves it to people
    assert flywheel(ws, "score", "--scorer", "length", "--iteration", "3", "--write")[0] == 0
    assert v_of(ws) is not None
    after = {row["trajectory_id"]: row["success"] for row in ask(ws, "FROM routes WHERE iteration = 3")}
    assert (after[yes], after[no]) == (True, False)
    assert labels.reviewers_of(ws, yes) == ["ada"]


def test_what_was_pruned_is_said_in_the_row(ws, length):
    length("1", 4)
    judged_by(ws, ["verifier", "length"])
    path = ws.partition("steps", 1, "rollout")
    dvc_files.add_pruned(ws, 1, [ws.relative(path)])
    shutil.rmtree(path)
    (shown,) = json.loads(flywheel(ws, "score", "--scorer", "length", "--iteration", "1", "--json")[1])
    (said,) = [one for one in shown["scorers"] if one["scorer"] == "length"]
    assert said["scored"] == said["abstained"] == 0
    assert said["failed"] > 0
    assert said["reason"] == "it needs steps, not stored any more"


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--scorer", "oracle", "--iteration", "1"], "no scorer is called 'oracle'"),
        (["--scorer", "verifier@9", "--iteration", "1"], f"the scorer verifier has version {VERIFIER}, not 9"),
        (["--scorer", "verifier", "--iteration", "2-9"], "iteration 4 has not been begun"),
        (["--scorer", "verifier", "--iteration", "3-2"], "not iterations: '3-2'"),
        (["--scorer", "verifier", "--iteration", "one"], "not iterations: 'one'"),
        (["--scorer", "verifier", "--iteration", "1-999999999"], "there is no iteration 999999999"),
        (["--scorer", "verifier"], "--iteration"),
    ],
)
def test_what_cannot_be_followed_is_one_line(three_iterations, arguments, what):
    ws = Workspace(Path(three_iterations))
    code, told = flywheel(ws, "score", *arguments)
    assert code == 2
    assert what in told


@pytest.mark.exhaustive
def test_every_row_of_a_trajectory_is_another_version(ws, length):
    """However often it is scored, no two rows are of one trajectory, scorer and version, and one version counts."""
    length("1", 4)
    judged_by(ws, ["verifier", "length"])
    for version, least in (("1", 4), ("2", 3), ("1", 4), ("3", 2)):
        length(version, least)
        assert flywheel(ws, "score", "--scorer", "length", "--iteration", "1", "--write")[0] == 0
    rows = partitions.read_partition(ws, "scores", 1, "score").to_pylist()
    keys = Counter((row["trajectory_id"], row["scorer"].partition(":")[0], row["version"]) for row in rows)
    assert set(keys.values()) == {1}
    counting = Counter((row["trajectory_id"], row["scorer"]) for row in rows if row["current"])
    assert set(counting.values()) == {1}
