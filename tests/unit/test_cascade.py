"""A cascade: who abstains passes on, the first that can tell decides; who fails does not; a person comes last."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
import synthetic
import synthetic_rows
from routed_rows import route
from test_scoring import played

from flywheel import config
from flywheel.config import Settings
from flywheel.envs.base import Task, Verdict, decide_verdict, verdicts_from_rows
from flywheel.envs.suites import catalogue
from flywheel.envs.tasks.drawing import make_task
from flywheel.evaluation.evaluator import judge_episode
from flywheel.pipeline.stage import StageContext, run_stage
from flywheel.pipeline.stages import rl, score
from flywheel.rewards import scorers
from flywheel.rewards.scorer import Score, ScorerSet, ScoringInput, reward_settings
from flywheel.rollout.episode import Episode
from flywheel.store import partitions
from flywheel.store.schema import Trajectory
from flywheel.utils.errors import BadInput, DataError

SAYS = {
    "yes": Score(1.0),
    "no": Score(0.0),
    "pass": Score(None, "not sure", abstained=True),
    "fail": Score(None, "broke"),
}


@pytest.fixture
def first(tmp_path, monkeypatch):
    """Scorers `first` and `second`, which say what the task's instruction has for them: `yes pass`."""
    for place, name in enumerate(("first", "second")):
        (tmp_path / f"{name}.py").write_text(
            f"import test_cascade\nclass One:\n    name, version, needs, asked = {name!r}, '{place}', frozenset(), []\n"
            "    def score(self, case):\n        self.asked.append(case.trajectory.trajectory_id)\n"
            f"        return test_cascade.SAYS[case.task.instruction.split()[{place}]]\n"
            "def open_scorer(settings):\n    return One()\n"
        )
        monkeypatch.delitem(sys.modules, f"{scorers.__name__}.{name}", raising=False)
    monkeypatch.setattr(scorers, "__path__", [*scorers.__path__, str(tmp_path)])
    yield
    for name in ("first", "second"):
        sys.modules.pop(f"{scorers.__name__}.{name}", None)


def panel(*names: str, cascade: bool = True) -> ScorerSet:
    chosen = {"cascade": list(names)} if cascade else list(names)
    return ScorerSet(Settings.model_validate({"routing": {"scorers": {"default": ["verifier"], "sites": chosen}}}))


def case(says: str, verifier: str = "", state: dict | None = None) -> ScoringInput:
    task = Task("k1", "sites", "tiles", "clear", 1, 1, says, {}, 9, "train", verifier, 1.0, "")
    return ScoringInput(task, Trajectory("t1", "k1", "sites", status="completed", final_state=json.dumps(state or {})))


@pytest.mark.parametrize(
    ("says", "asked", "v", "by", "destination"),
    [
        ("yes no", ["first"], True, "first", "sft"),
        ("no yes", ["first"], False, "first", "ct"),
        ("pass yes", ["first", "second"], True, "second", "sft"),
        ("pass no", ["first", "second"], False, "second", "ct"),
        ("fail yes", ["first"], None, "first", "quarantine"),
        ("pass fail", ["first", "second"], None, "second", "quarantine"),
        ("pass pass", ["first", "second", "person"], None, "person", "quarantine"),
    ],
)
def test_the_first_that_can_tell_decides(first, says, asked, v, by, destination):
    found = panel("first", "second", "person").score_trajectory(case(says))
    assert [one.scorer for one in found] == asked
    decided = decide_verdict(found)
    assert (decided.v, decided.scorer) == (v, by)
    rows = [one.row("t1") for one in found]
    assert verdicts_from_rows(rows)["t1"] == decided
    task = synthetic_rows.task("k1", "sites", "tiles")
    (routed,) = route([synthetic_rows.trajectory("t1", task)], rows)
    assert (routed["destination"], routed["success"], routed["decided_by"]) == (destination, v, by)
    assert routed["decided_version"] == {"first": "0", "second": "1", "person": "1"}[by]
    if by == "person":
        assert routed["reason"] == "no score by person (waits for a person)"


@pytest.mark.parametrize(
    ("says", "v", "by"),
    [
        ("yes pass", True, "first"),
        ("pass no", False, "second"),
        ("pass pass", None, "first"),
        ("fail pass", None, "first"),
    ],
)
def test_of_scorers_that_must_all_be_satisfied_one_that_abstains_does_not_count(first, says, v, by):
    found = panel("first", "second", cascade=False).score_trajectory(case(says))
    assert len(found) == 2
    assert (decide_verdict(found).v, decide_verdict(found).scorer) == (v, by)


def test_a_verifier_abstains_where_the_task_has_none_and_passes_on(first):
    found = panel("verifier", "second").score_trajectory(case("no yes"))
    assert [(one.scorer, one.v, one.abstained) for one in found] == [("verifier", None, True), ("second", True, False)]
    found = panel("verifier", "second").score_trajectory(case("no yes", "state:score", {"won": False, "score": 0.2}))
    assert [(one.scorer, one.score) for one in found] == [("verifier:state:score", 0.2)]
    found = panel("verifier", "second").score_trajectory(case("no yes", "state:score"))
    assert [(one.v, one.abstained) for one in found] == [(None, False)], "a state that it cannot read is a failure"


def test_tasks_without_a_verifier_need_another_scorer_and_are_refused_by_name(first):
    task = case("yes yes").task
    panel("verifier", "first").check_tasks([task])
    panel("first", cascade=False).check_tasks([task])
    panel("verifier").check_tasks([replace(task, verifier="state:score")])
    for alone in (panel("verifier"), panel("verifier", cascade=False)):
        with pytest.raises(BadInput, match=r"the tasks of tiles/clear have no verifier, and nobody else judges sites"):
            alone.check_tasks([task])


def test_a_run_is_refused_before_it_begins_where_nobody_could_judge(tmp_path, monkeypatch):
    from flywheel.envs.tasks import drawing

    def make_tasks(settings, iteration, split, root, real=drawing.make_tasks):
        return [
            replace(one, verifier="") if one.world == "tiles" else one for one in real(settings, iteration, split, root)
        ]

    monkeypatch.setattr(drawing, "make_tasks", make_tasks)
    with pytest.raises(BadInput, match=r"the tasks of tiles/\w+ have no verifier"):
        drawing.check_task_settings(Settings(), 1, tmp_path, ScorerSet(Settings()).check_tasks)
    chosen = {"routing": {"scorers": {"default": ["verifier"], "games": {"cascade": ["verifier", "judge", "person"]}}}}
    drawing.check_task_settings(Settings(), 1, tmp_path, ScorerSet(Settings.model_validate(chosen)).check_tasks)


def test_the_scorer_that_rewards_rl_is_one_for_all_domains_and_decides_every_episode():
    routing = {"scorers": {"default": ["verifier"], "sites": {"cascade": ["verifier", "person"]}}}
    own = reward_settings(Settings.model_validate({"routing": routing}))
    assert own == Settings.model_validate({"routing": routing})
    chosen = reward_settings(Settings.model_validate({"routing": routing, "rl": {"reward": "orm"}}))
    assert chosen.routing.scorers == {"default": ["orm"]}
    assert (chosen.orm.abstains, own.orm.abstains) == (False, True)
    by_verifier = reward_settings(Settings.model_validate({"routing": routing, "rl": {"reward": "verifier"}}))
    assert [one.name for one in ScorerSet(by_verifier).for_domain("sites")] == ["verifier"]


def test_an_episode_of_a_task_without_a_verifier_is_played_to_its_end():
    from flywheel.envs.suites import verifiers

    task = replace(make_task(catalogue.get_world("snake"), "exit", 1, 5, "train"), verifier="")
    assert verifiers.score_state(task, {"won": True, "score": 1.0}) == 0.0


def test_what_an_evaluation_cannot_judge_counts_alike_for_both_models_and_a_failure_stops_it(first):
    def judged(says: str):
        return judge_episode(
            case(says).task, Episode(case(says).trajectory, (), {}), panel("first", "second", "person")
        )

    assert (judged("pass yes").result.score, judged("pass yes").result.v) == (1.0, True)
    unknown = judged("pass pass")
    assert (unknown.result.score, unknown.result.v, decide_verdict(unknown.verdicts).v) == (0.0, False, None)
    with pytest.raises(DataError, match="no verdict by second: broke"):
        judged("pass fail")


def test_what_is_known_of_a_version_is_not_asked_again(first):
    known = {"first": Verdict(None, 0.4, "first", "0", "not sure", abstained=True)}
    panels = panel("first", "second")
    found = panels.score_trajectory(case("yes yes"), known)
    assert [(one.scorer, one.v, one.threshold) for one in found] == [("first", None, 1.0), ("second", True, 1.0)]
    assert panels.for_domain("sites")[0].asked == []


def test_a_scorer_is_not_asked_for_what_is_not_stored_any_more(first):
    class Looking:
        name, version, needs = "looking", "1", frozenset({"screens", "final_state"})

    panels = panel("first")
    panels.__dict__["_scorers"] = {"first": Looking(), "verifier": Looking()}
    (found,) = panels.score_trajectory(replace(case("yes yes"), lacking=frozenset({"steps", "screens"})))
    assert (found.score, found.abstained, found.detail) == (None, False, "it needs screens, not stored any more")


def test_the_stage_asks_a_person_where_nobody_else_can_tell(tmp_path):
    ws, chosen = synthetic.workspace(
        tmp_path / "ws", routing={"scorers": {"default": ["verifier"], "sites": {"cascade": ["judge", "person"]}}}
    )
    played(ws, {"t1": ("sites", 1.0, "Buy it"), "t2": ("games", 1.0, "Win")})
    outcome = run_stage(score.STAGE, StageContext(ws, chosen, 1, "score"))
    rows = partitions.read_partition(ws, "scores", 1, "score").to_pylist()
    assert [(row["trajectory_id"], row["scorer"], row["score"], row["abstained"]) for row in rows] == [
        ("t1", "judge", None, True),
        ("t1", "person", None, False),
        ("t2", "verifier:state:score", 1.0, False),
    ]
    assert all(row["current"] for row in rows)
    assert outcome.summary["without a verdict"] == 1


def test_a_domain_on_which_nobody_can_tell_has_no_rl(tmp_path):
    panels = {"default": ["verifier"], "sites": {"cascade": ["judge", "person"]}}
    ws, chosen = synthetic.workspace(tmp_path / "ws", routing={"scorers": panels})
    played(ws, {"t1": ("sites", 1.0, "Buy it"), "t2": ("games", 1.0, "Win")})
    run_stage(score.STAGE, StageContext(ws, chosen, 1, "score"))
    told = {}
    for domain in ("sites", "games"):
        ctx = StageContext(ws, chosen, 1, f"rl-{domain}")
        tasks = ctx.read_tasks("synthesize")
        told[domain] = rl.explain_skip(ctx, tasks, rl.count_past_outcomes(ctx, tasks))
    assert told == {
        "sites": "no scorer can tell how a rollout ended: the specialist is the SFT checkpoint",
        "games": "",
    }


@pytest.mark.parametrize(
    ("chosen", "what"),
    [
        ({"default": {"cascade": []}}, "default must name scorers"),
        ({"default": {"cascade": ["verifier", "verifier"]}}, "each once"),
        ({"default": {"ladder": ["verifier"]}}, "routing.scorers"),
        ({"default": {}}, "default must name scorers"),
    ],
)
def test_wrong_cascades_are_refused(chosen, what):
    with pytest.raises(BadInput, match=what):
        config.parse_settings({"routing": {"scorers": chosen}}, where="params.yaml")
    with pytest.raises(BadInput, match="no scorer is called 'oralce'"):
        panel("verifier", "oralce")
