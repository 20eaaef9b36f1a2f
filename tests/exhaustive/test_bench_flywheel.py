"""`flywheel bench flywheel` without its runs: what models are measured on, arms, and figures of known outcomes."""

from __future__ import annotations

import importlib
import json
import sys

import pytest

from flywheel import config
from flywheel.cli import bench
from flywheel.envs.tasks.drawing import make_tasks, task_content
from flywheel.utils.errors import BadInput

TASKS = 12


@pytest.fixture(scope="module", autouse=True)
def beside():
    sys.path.insert(0, str(bench.BENCHMARKS_FOLDER))
    yield
    sys.path.remove(str(bench.BENCHMARKS_FOLDER))


@pytest.fixture
def runs(beside):
    return importlib.import_module("flywheel_run")


@pytest.fixture
def figures(beside):
    return importlib.import_module("flywheel_")


def model(name: str, right: int, no_action: float = 0.0) -> dict:
    """The first `right` of the tasks are solved."""
    return {"name": name, "outcomes": "1" * right + "0" * (TASKS - right), "no_action": {"games": no_action}}


def result(arm: str, seed: int, counts: dict[str, int], no_action: float = 0.0) -> dict:
    models = [model(name, right, no_action) for name, right in counts.items()]
    return {"arm": arm, "seed": seed, "minutes": 6.0, "models": models}


WHOLE = {"base": 3, "1: ct": 6, "1: sft": 5, "1: merged": 6, "2: ct": 7, "2: sft": 8, "2: merged": 9}


def cases(figures, results) -> dict[str, bench.BenchCase]:
    return {case.case: case for case in figures.cases(results)}


def test_its_name_hides_no_package():
    assert "flywheel" in bench.list_benchmarks()
    assert "flywheel_" not in bench.list_benchmarks()
    with pytest.raises(BadInput, match="no benchmark 'flywheel_'"):
        bench.run_benchmark("flywheel_", [])


def test_no_run_trains_on_what_models_are_measured_on(runs):
    measured = {task_content(task) for task in runs.measured_tasks(60)}
    assert len(measured) == 60
    for seed in (7, 101):
        chosen = config.Settings(seed=seed)
        assert not measured & {task_content(task) for n in (1, 2) for task in make_tasks(chosen, n, "train")}


@pytest.mark.parametrize("profile", [{}, {"iterations": 3, "ct": {"num_examples": 90}}])
def test_arms_are_settings_and_one_round_has_the_data_of_all(runs, profile):
    chosen = config.parse_settings(profile, where="test")
    for arm in runs.ARMS:
        raw = chosen.model_dump()
        for name, value in runs.overrides(arm, chosen).items():
            block, _, leaf = name.rpartition(".")
            (raw[block] if block else raw)[leaf] = value
        changed = config.parse_settings(raw, where=arm)
        assert (changed != chosen) == (arm != "whole")
        if arm == "one-round":
            assert changed.iterations == 1
            assert changed.ct.num_examples == chosen.ct.num_examples * chosen.iterations
            assert (
                changed.recording.sessions_per_iteration == chosen.recording.sessions_per_iteration * chosen.iterations
            )


def test_rises_are_means_over_seeds(figures):
    other = {**WHOLE, "1: merged": 4, "2: merged": 8}
    found = cases(figures, [result("whole", 1, WHOLE), result("whole", 2, other)])
    assert found["main_job_rise_1"].ours == pytest.approx((3 + 1) / 2 / TASKS)
    assert found["main_job_rise_2"].ours == pytest.approx((3 + 4) / 2 / TASKS)
    assert found["main_job_rise"].ours == pytest.approx((6 + 5) / 2 / TASKS)
    assert found["main_job_rise"].peer == pytest.approx(3 / TASKS)
    assert found["main_job_rise"].extra["by_seed"] == {1: 6 / TASKS, 2: pytest.approx(5 / TASKS)}
    assert all(found[name].met for name in ("main_job_rise_1", "main_job_rise_2", "main_job_rise"))


def test_the_stage_that_loses_most_is_told(figures):
    (kept,) = [case for case in figures.cases([result("whole", 1, WHOLE)]) if case.case == "stages_keep"]
    assert (kept.ours, kept.extra["stage"], kept.met) == (pytest.approx(-1 / TASKS), "1: sft", False)
    assert kept.extra["means"]["2: ct"] == pytest.approx(1 / TASKS)  # beside the merged model before it
    assert kept.extra["means"]["1: merged"] == pytest.approx(1 / TASKS)


def test_steps_without_an_action_have_a_limit(figures):
    for share, met in ((0.02, True), (0.021, False)):
        assert cases(figures, [result("whole", 1, WHOLE, share)])["no_action"].met == met


@pytest.mark.parametrize(("reached", "ratio", "met"), [(6, 2.0, True), (8, 6 / 5, False), (3, None, True)])
def test_the_gain_is_held_against_one_round_of_the_same_seed(figures, reached, ratio, met):
    one_round = {"base": 3, "1: ct": 4, "1: sft": 4, "1: merged": reached}
    results = [
        result("whole", 1, WHOLE),
        result("whole", 2, {**WHOLE, "2: merged": 3}),
        result("one-round", 1, one_round),
    ]
    case = cases(figures, results)["flywheel_vs_one_round"]
    assert (case.ratio, case.met) == (pytest.approx(ratio), met)
    assert case.extra["seeds"] == [1]


def test_specialists_count_in_their_own_domains(figures, runs):
    places = runs.groups(runs.measured_tasks(TASKS))
    run = result("whole", 1, {"base": 0, "1: ct": 0, "1: sft": 0, "1: merged": 0})
    for domain, share in (("games", "1"), ("sites", "0"), ("control", "0")):
        own = "".join(share if place in places[domain] else "-" for place in range(TASKS))
        run["models"].append({"name": f"1: rl-{domain}", "outcomes": own, "no_action": {}})
    case = cases(figures, [run])["gain_no_merge"]
    assert case.ours == pytest.approx(len(places["games"]) / TASKS)
    assert case.peer == 0
    assert case.extra["less"] == -case.ours


def test_a_wheel_that_gains_nothing_is_no_better_than_one_round_that_gains_nothing(figures):
    still = {name: 3 for name in WHOLE}
    results = [result("whole", 1, still), result("one-round", 1, {"base": 3, "1: merged": 3})]
    assert not cases(figures, results)["flywheel_vs_one_round"].met


@pytest.fixture
def long_run(figures, monkeypatch):
    """Four of twelve places are of games, four of unseen templates."""
    places = {"all": [*range(12)], "games": [*range(4)], "sites": [*range(4, 12)], "unseen templates": [*range(8, 12)]}
    monkeypatch.setattr(figures, "groups_of", lambda run: places)

    def made(*counts: int, rises: str = "+++", first: str = "") -> dict:
        """counts: tasks that the base and each iteration's model solve, the first ones."""
        names = ["base", *(f"{number}: merged" for number in range(1, len(counts)))]
        steps = [{"rise": 0.1 if sign == "+" else -0.1} for sign in rises]
        whole = {"slots": 20, "before": 0.2, "after": 0.6, "rise": 0.4, "low": 0.3, "high": 0.5}
        run = result("whole", 7, dict(zip(names, counts, strict=True)))
        for model, count in zip(run["models"], counts, strict=True):
            model["games"] = {"tiles": count / TASKS}
        run["models"][0]["outcomes"] = first or run["models"][0]["outcomes"]
        return run | {"profile": "overnight", "p_v1_rise": steps, "p_v1_in_all": [whole]}

    return made


def test_one_round_beside_a_long_run_is_no_long_run(figures, long_run):
    one_round = {**result("one-round", 7, {"base": 0, "1: merged": 6}), "profile": "overnight"}
    found = list(figures.cases([long_run(0, 2, 4, 6, 12), one_round]))
    assert sum(case.case == "held_out_rise" for case in found) == 1
    (beside,) = [case for case in found if case.case == "flywheel_vs_one_round"]
    assert (beside.ratio, beside.extra["profile"]) == (pytest.approx(2.0), "overnight")


def test_the_long_run_rises_on_templates_that_are_trained_on(figures, long_run):
    found = cases(figures, [long_run(0, 2, 4, 6, 12)])
    assert found["held_out_rise_3"].ours == pytest.approx(6 / 8)  # of eight on seen templates
    assert found["held_out_rise"].ours == pytest.approx(1.0)
    assert found["held_out_rise"].extra["by_group"]["unseen templates"] == 1.0
    assert found["games_normalised"].ours == 1.0
    assert found["held_out_rise"].met
    assert found["p_v1_rise"].met


def test_a_domain_that_falls_is_no_rise(figures, long_run):
    fell = long_run(4, 4, 4, 4, 4, first="1111" + "0" * 8)
    fell["models"][-1]["outcomes"] = "0000" + "1" * 8
    case = cases(figures, [fell])["held_out_rise"]
    assert case.ours == pytest.approx(0.0)
    assert case.extra["by_group"]["games"] == -1.0
    assert not case.met


@pytest.mark.parametrize(("rises", "met"), [("++++-", True), ("+++--", False)])
def test_four_of_five_steps_must_rise(figures, long_run, rises, met):
    assert cases(figures, [long_run(0, 1, 2, 3, rises=rises)])["p_v1_rise"].met == met


def test_results_are_read_and_shown(figures, tmp_path, capsys):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "whole-1.json").write_text(json.dumps(result("whole", 1, WHOLE)))
    figures.main(["--out", str(tmp_path), "--table"])
    said = capsys.readouterr()
    assert "| whole 1 | 2: merged | 0.750 |" in said.err
    assert {json.loads(line)["case"] for line in said.out.splitlines()} >= {"main_job_rise", "stages_keep"}
    assert figures.main(["--out", str(tmp_path / "none"), "--table"]) == 1


def test_the_picture_is_of_the_profile_that_is_asked_for(figures, tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "whole-1.json").write_text(json.dumps(result("whole", 1, WHOLE)))
    picture = tmp_path / "curve.png"
    figures.main(["--out", str(tmp_path), "--table", "--picture", str(picture)])
    assert picture.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(BadInput, match="no whole run of the profile overnight"):
        figures.main(["--out", str(tmp_path), "--table", "--picture", str(picture), "--profile", "overnight"])


def test_rl_alone_is_held_against_the_run_that_it_goes_on_from(figures):
    on = {"base": 3, "1: merged": 6, "2: merged": 9, "RL alone: merged": 11}
    case = cases(figures, [result("whole", 1, WHOLE), result("rl-alone", 1, on)])["gain_rl_alone"]
    assert (case.ours, case.peer) == (pytest.approx(8 / TASKS), pytest.approx(6 / TASKS))
    assert case.extra["less"] == pytest.approx(-2 / TASKS)


def test_rl_alone_trains_on_its_own_tasks_from_the_last_promoted_model(runs, tmp_path, monkeypatch):
    rl = importlib.import_module("flywheel_rl")
    asked = {}
    monkeypatch.setattr(rl, "train_rl", lambda *given, **named: asked.update(given=given, **named))
    monkeypatch.setattr(rl.manifest, "read_promotion", lambda ws, number: {"model": f"models/{number}"})
    monkeypatch.setattr(rl.checkpoint, "resolve_checkpoint", lambda name, root: root / name)
    for number in ("000", "001", "002"):
        (tmp_path / "ws" / "iterations" / number).mkdir(parents=True)
        (tmp_path / "ws" / "iterations" / number / "promotion.json").touch()
    (tmp_path / "ws" / "params.yaml").write_text("seed: 3")
    ws = rl.Workspace(tmp_path / "ws")
    model = rl.go_on(ws, tmp_path / "rl", 5, ["rl.steps=2", "synthesis.train_tasks=12"])
    begin, end, domain, tasks = asked["given"]
    assert (begin, end, domain) == (ws.root / "models/2", model, "")
    assert (asked["settings"].seed, asked["settings"].rl.steps, asked["settings"].rl.tasks_per_step) == (5, 2, 16)
    assert len(tasks) == 12
    assert not {task_content(task) for task in tasks} & {task_content(task) for task in runs.measured_tasks(60)}
    model.mkdir(parents=True)
    asked.clear()
    assert rl.go_on(ws, tmp_path / "rl", 5) == model
    assert not asked  # it was there
