"""The outcome reward model: what it reads, what is drawn, what its verdicts are worth, and when it abstains."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from lamp_env import screen, task

from flywheel.agent.prompt import Image
from flywheel.cli.model import _parse_iterations
from flywheel.config import OrmSettings
from flywheel.rewards import outcome
from flywheel.rewards.outcome import (
    Calibration,
    DomainCalibration,
    VerdictInput,
    build_verdict_context,
    find_orm,
    fit_platt,
    logit,
)
from flywheel.rewards.scorer import ScoringInput
from flywheel.rewards.scorers import orm
from flywheel.store.images import image_digest
from flywheel.store.schema import Step, Trajectory
from flywheel.training.outcome_reward.labels import LabelledTrajectory, cut_short, draw_balanced
from flywheel.training.outcome_reward.trainer import VERDICTS, check_labels, sample_advantages
from flywheel.utils.errors import BadInput, DataError

SCREENS = {image_digest(png): png for png in (screen("left", n) for n in range(8))}
NAMES = list(SCREENS)


def steps_of(count: int, name: str = "t") -> tuple[Step, ...]:
    return tuple(
        Step(name, n, "model", thought=f"Thought {n}.", action=f"wait({n})", image_sha256=NAMES[n])
        for n in range(count)
    )


def words(context) -> str:
    return "".join(part for part in context[0].parts if isinstance(part, str))


def seen(context) -> list[bytes]:
    return [part.png for part in context[0].parts if isinstance(part, Image)]


def count(context) -> int:
    """Ten tokens a screen, one a character."""
    return sum(10 if isinstance(part, Image) else len(part) for part in context[0].parts)


def test_the_prompt_has_all_text_and_the_newest_screens_in_order():
    context = build_verdict_context("Do it.", steps_of(7), SCREENS, count, VerdictInput(5, max_tokens=10_000))
    assert seen(context) == [SCREENS[name] for name in NAMES[2:7]]
    assert [words(context).count(f"Thought {n}. wait({n})\n") for n in range(8)] == [1] * 7 + [0]
    assert words(context).startswith("Do it.\n")
    assert words(context).endswith(f"Do it.\n{outcome.QUESTION}")
    assert "left out" not in words(context)


def test_each_screen_stands_before_what_was_done_on_it():
    parts = build_verdict_context("Do it.", steps_of(2), SCREENS, count, VerdictInput(5, max_tokens=999))[0].parts
    assert [part if isinstance(part, str) else None for part in parts] == [
        "Do it.\n",
        None,
        "Thought 0. wait(0)\n",
        None,
        "Thought 1. wait(1)\n",
        f"Do it.\n{outcome.QUESTION}",
    ]


def test_the_screen_after_the_last_action_is_the_last_of_the_five():
    def asked(*reads, final=NAMES[7]):
        return build_verdict_context("Do it.", steps_of(7), SCREENS, count, VerdictInput(*reads), final)

    context = asked(5, True, True, 10_000)
    assert seen(context) == [SCREENS[name] for name in (*NAMES[3:7], NAMES[7])]
    place = context[0].parts.index(Image(SCREENS[NAMES[7]]))
    assert context[0].parts[place - 1].endswith("wait(6)\n")
    assert seen(asked(1, True, True, 10_000)) == seen(asked(5, True, True, 95)) == [SCREENS[NAMES[7]]]
    assert seen(asked(5, False, True, 10_000)) == seen(asked(5, True, True, 10_000, final=None))
    with pytest.raises(DataError, match="trajectory t, after the last step"):
        asked(5, True, True, 10_000, final="f" * 64)


@pytest.mark.parametrize("limit", [220, 180, 150, 100, 92])
def test_what_does_not_fit_goes_from_the_front_and_the_question_stays(limit):
    context = build_verdict_context("Do it.", steps_of(7), SCREENS, count, VerdictInput(5, max_tokens=limit))
    assert count(context) <= limit
    assert words(context).endswith(f"Do it.\n{outcome.QUESTION}")
    kept = [n for n in range(7) if f"Thought {n}." in words(context)]
    assert kept == list(range(7 - len(kept), 7))
    assert kept
    if len(kept) < 7:
        assert f"[{7 - len(kept)} earlier steps left out]" in words(context)
    if len(seen(context)) < 5:
        assert kept == [6]  # text goes first
    assert seen(context) == [SCREENS[name] for name in NAMES[7 - len(seen(context)) : 7]]
    assert seen(context)


def test_an_instruction_that_does_not_fit_is_refused_with_the_number_of_tokens():
    with pytest.raises(BadInput, match=r"take \d{3,} tokens"):
        build_verdict_context("Do it. " * 90, steps_of(3), SCREENS, count, VerdictInput(5, max_tokens=300))


@pytest.mark.parametrize(("instruction", "steps"), [(" ", steps_of(1)), ("Do it.", ())])
def test_nothing_to_judge_is_refused(instruction, steps):
    with pytest.raises(BadInput, match="to judge"):
        build_verdict_context(instruction, steps, SCREENS, count)


def test_a_screen_that_is_not_stored_is_told_with_its_step():
    with pytest.raises(DataError, match=r"trajectory t, step 1"):
        build_verdict_context("Do it.", steps_of(2), {NAMES[0]: SCREENS[NAMES[0]]}, count)


def test_words_and_screens_can_be_hidden():
    blind = build_verdict_context("Do it.", steps_of(3), SCREENS, count, VerdictInput(0))
    silent = build_verdict_context("Do it.", steps_of(3), SCREENS, count, VerdictInput(2, words=False))
    assert (len(seen(blind)), len(seen(silent))) == (0, 2)
    assert "wait(2)" in words(blind)
    assert words(silent) == f"Do it.\nDo it.\n{outcome.QUESTION}"


def test_a_text_without_an_action_is_told_as_such():
    broken = replace(steps_of(1)[0], action=None, parse_error="no action in the text")
    assert "Thought 0. no action: no action in the text\n" in words(
        build_verdict_context("Do it.", [broken], SCREENS, count)
    )


# What is drawn.


def labelled(number: int, truth: bool, domain: str = "games", claims: bool = False) -> LabelledTrajectory:
    last = replace(steps_of(1)[0], action_type="finished" if claims else "click")
    return LabelledTrajectory(f"t{number}", f"k{number}", domain, "w/t", "Do it.", 1, (last,), truth)


def test_each_domain_and_each_truth_is_drawn_as_often_however_rare_it_is():
    pool = [labelled(n, n < 3) for n in range(100)] + [labelled(n, n % 2 == 0, "sites") for n in range(100, 110)]
    drawn = draw_balanced(pool, 400, 1)
    kinds = [(one.domain, one.truth) for one in drawn]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        (domain, truth): 100 for domain in ("games", "sites") for truth in (True, False)
    }
    assert drawn == draw_balanced(pool, 400, 1)
    assert drawn != draw_balanced(pool, 400, 2)
    assert kinds[:100] != sorted(kinds[:100])  # a batch has every kind


def test_which_template_it_is_tells_nothing_of_the_truth():
    rare = [replace(labelled(n, n == 0), template="w/rare") for n in range(40)]
    drawn = draw_balanced([*rare, *(labelled(n, n % 4 > 0) for n in range(100, 140))], 8_000, 5)
    for truth in (True, False):
        mine = [one.template == "w/rare" for one in drawn if one.truth == truth]
        assert sum(mine) / len(mine) == pytest.approx(0.5, abs=0.03)


def test_a_success_cut_short_ends_in_the_screen_that_its_last_action_was_chosen_on():
    whole = labelled(1, True)
    steps = tuple(replace(step, action_type="click", terminated=step.step == 2) for step in steps_of(3))
    (cut,) = cut_short([replace(whole, steps=steps, final_image_sha256=NAMES[7])])
    assert (cut.steps, cut.final_image_sha256, cut.truth) == (steps[:2], NAMES[2], False)
    (cut,) = cut_short([replace(whole, steps=steps)])
    assert cut.final_image_sha256 is None


def test_a_failure_that_claims_success_is_drawn_twice_as_often_as_one_that_does_not():
    pool = [labelled(0, True), *(labelled(n, False, claims=n % 2 == 0) for n in range(1, 41))]
    failed = [one for one in draw_balanced(pool, 12_000, 3) if not one.truth]
    assert sum(one.claims_success for one in failed) / len(failed) == pytest.approx(2 / 3, abs=0.02)


@pytest.mark.parametrize(
    ("truths", "words"),
    [
        ([True] * 60, "one class: all 60 trajectories did their task"),
        ([False] * 60, "one class: all 60 trajectories did not do their task"),
        ([], "one class: all 0"),
        ([True] * 60 + [False] * 19, "too few labels: 60 trajectories did their task, 19 did not"),
    ],
)
def test_labels_that_teach_nothing_are_refused(truths, words):
    with pytest.raises(BadInput, match=words):
        check_labels([labelled(n, truth) for n, truth in enumerate(truths)], "here")
    check_labels([labelled(n, n < 20) for n in range(40)], "here")


# RL on sampled verdicts.


def test_verdicts_that_are_certain_teach_nothing_and_others_teach_the_truth():
    sure, unsure = np.log([[0.999_999_9, 1e-7]]), np.log([[0.3, 0.3]])  # the rest of the probability is other tokens
    assert not sample_advantages(sure, np.array([False]), np.random.default_rng(0)).any()
    many = np.repeat(unsure, 500, axis=0)
    for truth in (True, False):
        yes, no = sample_advantages(many, np.full(500, truth), np.random.default_rng(0)).mean(0)
        assert (yes > 0.1, no < -0.1) == (truth, truth)
        assert yes + no == pytest.approx(0, abs=1e-9)  # leave-one-out: the advantages of a group sum to 0


def test_a_false_yes_costs_twice_a_false_no():
    many, rng = np.repeat(np.log([[0.3, 0.3]]), 4000, axis=0), np.random.default_rng(1)
    gains = [np.abs(sample_advantages(many, np.full(4000, truth), rng)).mean() for truth in (True, False)]
    assert gains[1] / gains[0] == pytest.approx(2, rel=0.05)
    assert VERDICTS > 1


# Calibration and bands.


def test_bands_are_the_order_statistics_of_conformal_prediction():
    nineteen = tuple(n / 100 for n in range(1, 20))
    high = tuple(n / 100 for n in range(81, 100))
    # floor(0.1 x 20) = 2: the second from the top of those not done, and the second from the bottom of those done.
    assert DomainCalibration((0.05, 0.1, *high[2:]), nineteen).bands(0.1, 0.1) == (0.1, 0.18)
    assert DomainCalibration(nineteen, high).bands(0.1, 0.1) == (0.02, 0.98)


def test_where_the_bands_overlap_nothing_is_left_to_review():
    kinds = tuple(n / 100 for n in range(81, 100)), tuple(n / 100 for n in range(1, 20))
    assert DomainCalibration(*kinds).bands(0.1, 0.1) == (pytest.approx(0.5), pytest.approx(0.5))


def test_with_too_few_labels_nothing_is_certain():
    few = tuple(n / 100 for n in range(18))
    assert DomainCalibration(few, few).bands(0.05, 0.05) == (-np.inf, np.inf)
    more = (*few, 0.99)  # 19: the one in twenty that may be wrong is there
    assert DomainCalibration(more, more).bands(0.05, 0.05)[1] == 0.99


@pytest.mark.parametrize("skill", [0.0, 1.0, 3.0])
def test_errors_of_new_trajectories_stay_within_the_bands_however_poor_the_model_is(skill):
    rng = np.random.default_rng(5)
    wrong = []
    for _ in range(300):
        done, not_done = (tuple(sorted(rng.normal(skill * truth, 1, 60).tolist())) for truth in (1, 0))
        low, high = DomainCalibration(done, not_done).bands(0.1, 0.1)
        wrong.append([(rng.normal(0, 1, 200) > high).mean(), (rng.normal(skill, 1, 200) < low).mean()])
    assert (np.mean(wrong, axis=0) < 0.11).all()
    if skill < 3:
        assert (np.mean(wrong, axis=0) > 0.06).all()  # and no more is given away than is asked


def test_platt_finds_the_line_that_made_the_labels():
    rng = np.random.default_rng(2)
    p = rng.random(40_000)
    truth = rng.random(len(p)) < 1 / (1 + np.exp(-(0.5 * logit(p) - 1)))
    assert fit_platt(p, truth) == pytest.approx((0.5, -1), abs=0.05)


def test_a_calibrated_probability_never_falls_where_the_model_is_surer():
    p = np.linspace(0, 1, 50)
    backwards = DomainCalibration(done=(0.1, 0.2, 0.3), not_done=(0.7, 0.8, 0.9))
    assert (np.diff(backwards.probability(p)) >= 0).all()
    perfect = DomainCalibration(done=tuple(np.linspace(0.9, 1, 30)), not_done=tuple(np.linspace(0, 0.1, 30)))
    assert 0 < perfect.probability(0.0) < 0.1 < 0.9 < perfect.probability(1.0) < 1


# On disk.


@pytest.fixture
def written(tmp_path, monkeypatch):
    """An ORM's folder, but for its network; games are calibrated."""
    monkeypatch.setattr(outcome, "checkpoint_digest", lambda folder: "w1")
    folder = tmp_path / "orm@2"
    folder.mkdir()
    spread = tuple(n / 200 for n in range(100))
    known = DomainCalibration(done=tuple(0.5 + one for one in spread), not_done=spread)
    Calibration("orm@2", "w1", VerdictInput(3), {"games": known}).write(folder)
    return folder


def test_a_calibration_is_read_as_it_was_written(written):
    found = Calibration.read(written)
    assert (found.name, found.weights, found.reads) == ("orm@2", "w1", VerdictInput(3))
    assert found.domains["games"].bands(0.05, 0.05) == (pytest.approx(0.4975), pytest.approx(0.4975))


def test_the_newest_version_counts_and_a_version_can_be_named(written):
    (written.parent / "orm@10").mkdir()
    (written.parent / "orm@x").mkdir()
    (written.parent / "storm@11").mkdir()
    assert find_orm(written.parent / "orm").name == "orm@10"
    assert find_orm(written) == written
    with pytest.raises(BadInput, match="no such checkpoint"):
        find_orm(written.parent / "form")


def test_a_foreign_checkpoint_or_calibration_is_refused_by_name(written, monkeypatch):
    with pytest.raises(BadInput, match="no such checkpoint"):
        Calibration.read(written.parent / "none")
    (written.parent / "base").mkdir()
    with pytest.raises(BadInput, match=r"lacks calibration\.json"):
        Calibration.read(written.parent / "base")
    monkeypatch.setattr(outcome, "checkpoint_digest", lambda folder: "w2")
    with pytest.raises(BadInput, match="belongs to weights w1, not to w2"):
        Calibration.read(written)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "domains": {"games": 3}}'])
def test_a_damaged_calibration_is_told(written, text):
    (written / outcome.CALIBRATION_FILE).write_text(text)
    with pytest.raises(BadInput, match="damaged"):
        Calibration.read(written)


class Reader:
    """A network that says one number."""

    def __init__(self, said: float) -> None:
        self.said = said
        self.encoder = type("Encoder", (), {"count": staticmethod(count)})

    def probabilities(self, contexts) -> np.ndarray:
        return np.full(len(contexts), self.said)


def scorer(written, monkeypatch, said: float, **settings) -> orm.OutcomeScorer:
    monkeypatch.setattr(orm, "VerdictReader", lambda *arguments: Reader(said))
    return orm.OutcomeScorer(OrmSettings(checkpoint=str(written), **settings))


CASE = ScoringInput(task(1), Trajectory("t", "lamp001", "games"), steps_of(2), SCREENS)


@pytest.mark.parametrize(
    ("said", "value", "detail"),
    [(0.9, 1.0, "certain: probability"), (0.1, 0.0, "certain not: probability"), (0.4975, None, "to review")],
)
def test_a_score_is_given_where_it_is_certain(written, monkeypatch, said, value, detail):
    found = scorer(written, monkeypatch, said).score(CASE)
    assert (found.value, found.abstained) == (value, value is None)
    assert found.detail.startswith(detail)


def test_between_the_bands_is_to_review(written, monkeypatch):
    raw = json.loads((written / outcome.CALIBRATION_FILE).read_text())
    raw["domains"]["games"]["done"] = raw["domains"]["games"]["not_done"]
    (written / outcome.CALIBRATION_FILE).write_text(json.dumps(raw))
    values = [scorer(written, monkeypatch, said).score(CASE).value for said in (0.01, 0.25, 0.49)]
    assert values == [0.0, None, 1.0]


def test_where_it_may_not_abstain_a_calibrated_half_decides(written, monkeypatch):
    def said(p: float, **settings) -> float | None:
        return scorer(written, monkeypatch, p, **settings).score(CASE).value

    said_of_half = {p: said(p, abstains=False) for p in (1e-5, 0.49, 0.4975, 0.9)}
    half = Calibration.read(written).domains["games"]
    assert said_of_half == {p: float(half.probability(p) >= 0.5) for p in said_of_half}
    assert said(0.4975) is None
    versions = {scorer(written, monkeypatch, 0.1, abstains=abstains).version for abstains in (True, False)}
    assert len(versions) == 2


def test_it_abstains_in_a_domain_that_it_was_not_calibrated_for(written, monkeypatch):
    foreign = replace(CASE, task=replace(CASE.task, domain="phone"))
    found = scorer(written, monkeypatch, 0.9).score(foreign)
    assert (found.value, found.detail) == (None, "orm@2 is not calibrated for the domain phone")
    assert found.abstained


def test_a_trajectory_that_cannot_be_shown_gets_no_score_and_stops_nothing(written, monkeypatch):
    found = scorer(written, monkeypatch, 0.9).score(replace(CASE, steps=()))
    assert (found.value, found.abstained) == (None, False)
    assert "to judge" in found.detail


def test_the_version_names_all_that_a_score_depends_on(written, monkeypatch):
    versions = [scorer(written, monkeypatch, 0.9).version, scorer(written, monkeypatch, 0.9, false_yes=0.1).version]
    raw = json.loads((written / outcome.CALIBRATION_FILE).read_text())
    raw["domains"]["games"]["done"].pop()
    (written / outcome.CALIBRATION_FILE).write_text(json.dumps(raw))
    versions.append(scorer(written, monkeypatch, 0.9).version)
    assert len(set(versions)) == 3
    assert all(version.startswith("orm@2 w1 ") for version in versions)


@pytest.mark.parametrize("text", ["x", "3-1", "-2", "1-2-3", "1.5"])
def test_what_are_no_iterations_is_refused(text):
    with pytest.raises(BadInput, match="not iterations"):
        _parse_iterations(text)
    assert (_parse_iterations("3"), _parse_iterations("1-5")) == ((3, 3), (1, 5))
