"""Recorded results in the benchmarks' own forms, made by a seed, and their own code that scores them.

Their functions are taken out of the benchmarks' files by name, and run alone: the packages around them need servers.
"""

from __future__ import annotations

import ast
import contextlib
import gzip
import io
import json
import math
import os
import pickle
import random
import re
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from flywheel.evaluation.benchmarks.catalogue import BENCHMARKS
from flywheel.evaluation.benchmarks.swe_bench import grade_instance
from flywheel.evaluation.benchmarks.terminal_bench import parse_test_output
from flywheel.evaluation.headroom import pass_at_k

_TYPE_PARAMETERS = re.compile(r"^(class \w+)\[\w+\]", re.MULTILINE)  # of a newer Python's syntax


def find_official(root: Path, name: str) -> Path | None:
    """Find a file of the benchmark's own code below `root`."""
    return next(iter(sorted(root.rglob(name))), None)


def take_functions(path: Path, names: tuple[str, ...], known: dict[str, Any]) -> dict[str, Any]:
    """Run the functions, classes and constants of those names alone. known: what they need besides."""
    wanted = []
    text = _TYPE_PARAMETERS.sub(r"\1", path.read_text(encoding="utf-8"))
    for node in ast.walk(ast.parse(text)):
        targets = [one.id for one in getattr(node, "targets", ()) if isinstance(one, ast.Name)]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            targets = [node.target.id]
        if getattr(node, "name", None) in names or set(targets) & set(names):
            wanted.append(node)
    wanted.sort(key=lambda node: node.lineno)
    space = dict(known)
    code = ast.fix_missing_locations(ast.Module([_future(), *wanted], []))
    exec(compile(code, str(path), "exec"), space)
    return space


def _future() -> ast.ImportFrom:
    return ast.ImportFrom("__future__", [ast.alias("annotations")], 0)


def score_terminal_bench(root: Path, folder: Path, rng: random.Random) -> list[tuple[str, float, float]]:
    """Compare parser, accuracy, pass@k, and which of Harbor's exceptions leave a reward valid."""
    found = []
    adapter = BENCHMARKS["terminal-bench"]
    path = find_official(root, "pytest_parser.py")
    status = Enum("UnitTestStatus", {"PASSED": "passed", "FAILED": "failed"})
    theirs = take_functions(
        path,
        ("PytestTestStatus", "PytestParser"),
        {"re": re, "Enum": Enum, "BaseParser": object, "UnitTestStatus": status},
    )
    for number in range(50):
        names = ("PASSED", "FAILED", "SKIPPED", "XFAIL", "XPASS", "ERROR", "NOISE")
        lines = [f"{rng.choice(names)} tests/test_{n}.py::test_{n}[a b] - E: 1 - 2" for n in range(rng.randint(0, 6))]
        text = "\n".join(["out", "=== short test summary info ===", *lines, "=== 1 failed in 2s ==="])
        said = {test: how == status.PASSED for test, how in theirs["PytestParser"]().parse(text).items()}
        found.append((f"parser {number}", float(parse_test_output(text) == said), 1.0))
    models = next(one for one in sorted(root.rglob("models.py")) if one.parent.name == "harness")
    estimate = take_functions(models, ("_pass_at_k_estimator",), {"np": np})["_pass_at_k_estimator"]
    for n in range(1, 12):
        for c in range(n + 1):
            k = rng.randint(1, n)
            found.append((f"pass@{k} of {c}/{n}", pass_at_k(c, n, k), estimate(None, n, c, k)))
    modes = ("none", "agent_timeout", "test_timeout", "unknown_agent_error", "context_length_exceeded")
    trials = []
    for task in range(40):
        for _ in range(4):
            ended = rng.random() < 0.8
            passed = rng.random() < 0.5
            trials.append({"task_id": f"t{task}", "is_resolved": passed if ended else None,
                           "failure_mode": "none" if ended else rng.choice(modes)})  # fmt: skip
    (folder / "results.json").write_text(json.dumps({"results": trials}))
    score = adapter.score_results(adapter.read_results(folder))
    found.append(("accuracy", score.score, len([one for one in trials if one["is_resolved"]]) / len(trials)))
    policies = take_functions(
        find_official(root, "error_policy.py"),
        ("ErrorPolicy", "_POLICY_GROUPS", "UNKNOWN_ERROR_POLICY", "ERROR_POLICIES"),
        {"dataclass": __import__("dataclasses").dataclass, "MappingProxyType": dict, "Final": object},
    )
    harbor = folder / "job"
    for number, (name, policy) in enumerate(
        [*policies["ERROR_POLICIES"].items(), ("Other", policies["UNKNOWN_ERROR_POLICY"])]
    ):
        trial = harbor / f"t{number}"
        trial.mkdir(parents=True)
        said = {"trial_name": f"t{number}", "task_name": f"t{number}", "exception_info": {"exception_type": name},
                "verifier_result": {"rewards": {"reward": 1}}}  # fmt: skip
        (trial / "result.json").write_text(json.dumps(said))
        (result,) = adapter.read_results(trial)
        found.append((f"valid reward after {name}", float(result.score is not None), float(policy.has_valid_reward)))
    rewards = [None if one.score is None else {"reward": one.score} for one in adapter.read_results(harbor)]
    aggregate = next(one for one in sorted(root.rglob("base.py")) if one.parent.name == "metrics")
    mean = take_functions(aggregate, ("aggregate_reward_dicts",), {})["aggregate_reward_dicts"]
    theirs_mean = mean(rewards, "mean", lambda values: sum(values) / len(values))["mean"]
    found.append(("mean reward", adapter.score_results(adapter.read_results(harbor)).score, theirs_mean))
    return found


def _show_result(path: Path, call: Callable[[dict[str, Any]], Any]) -> list[float]:
    space = take_functions(path, ("get_result",), {"os": os, "json": json, "argparse": None})
    with contextlib.redirect_stdout(io.StringIO()):
        return call(space)


def _write_osworld(folder: Path, rng: random.Random) -> None:
    domains = ("libreoffice_calc", "libreoffice_impress", "libreoffice_writer", "vlc", "thunderbird", "chrome", "gimp",
               "vs_code", "os", "multi_apps", "msedge", "file_explorer", "settings", "notepad", "clock", "windows_calc",
               "microsoft_paint")  # fmt: skip
    for domain in domains:
        for number in range(8):
            run = folder / domain / f"task-{number}"
            run.mkdir(parents=True)
            if number and rng.random() < 0.15:
                (run / "traj.jsonl").write_text(json.dumps({"Error": "Time limit exceeded"}) + "\n")
            else:
                texts = ("0", "0.0", "1", "1.0", "0.5", "True", "False", f"{rng.random()}")
                (run / "result.txt").write_text(rng.choice(texts) + "\n")


def score_osworld(
    root: Path, folder: Path, rng: random.Random, name: str = "osworld"
) -> list[tuple[str, float, float]]:
    """Compare the mean and the domains' means with show_result.py's, over results with partial credit."""
    target = folder / "pyautogui" / "screenshot" / "m"
    _write_osworld(target, rng)
    adapter = BENCHMARKS[name]
    score = adapter.score_results(adapter.read_results(folder))
    path = find_official(root, "show_result.py")
    if name == "osworld":
        scores = _show_result(path, lambda space: space["get_result"]("pyautogui", "m", "screenshot", str(folder)))
    else:
        scores = _show_result(path, lambda space: space["get_result"](str(target)))
    said = [path.read_text().strip() for path in folder.rglob("result.txt")]  # which it printed "False" of as 1.0
    true = [{"True": 1.0, "False": 0.0}[one] if one in ("True", "False") else float(one) for one in said]
    return [
        ("mean as printed", score.figures["printed"], sum(scores) / len(scores)),
        ("tasks", score.figures["tasks"], float(len(scores))),
        ("partial of 2.0", score.figures["partial"], sum(true) / len(true)),
        ("binary of 2.0", score.figures["binary"], sum(one == 1.0 for one in true) / len(true)),
    ]


def score_windows_agent_arena(root: Path, folder: Path, rng: random.Random) -> list[tuple[str, float, float]]:
    """Compare as `score_osworld`."""
    return score_osworld(root, folder, rng, "windows-agent-arena")


def score_swe_bench(root: Path, folder: Path, rng: random.Random) -> list[tuple[str, float, float]]:
    """Compare grading by tests' statuses, and the share of resolved instances in a run's report."""
    constants = take_functions(
        find_official(root / "package", "__init__.py").parent / "harness/constants/__init__.py",
        ("ResolvedStatus", "TestStatus", "EvalType", "FAIL_TO_PASS", "FAIL_TO_FAIL", "PASS_TO_PASS", "PASS_TO_FAIL"),
        {"Enum": Enum},
    )
    names = ("_resolve_case", "test_passed", "test_maintained", "test_failed", "get_eval_tests_report",
             "compute_fail_to_pass", "compute_pass_to_pass", "get_resolution_status")  # fmt: skip
    theirs = take_functions(find_official(root / "package", "grading.py"), names, constants)
    found = []
    statuses = ("PASSED", "FAILED", "SKIPPED", "ERROR", "XFAIL", "OTHER")
    resolved, gold = {}, {}
    for number in range(300):
        tests = [f"tests/t.py::test_{n}[log(photon {n})]" for n in range(rng.randint(1, 6))]
        said = {test: rng.choices(statuses, (10, 2, 1, 1, 2, 1))[0] for test in tests if rng.random() < 0.95}
        asked = [test[:-6] if rng.random() < 0.2 else test for test in tests]
        first, second = asked[: len(asked) // 2], asked[len(asked) // 2 :]
        fail_only = rng.random() < 0.2
        kind = constants["EvalType"]("fail_only" if fail_only else "pass_and_fail")
        report = theirs["get_eval_tests_report"](said, {"FAIL_TO_PASS": first, "PASS_TO_PASS": second}, eval_type=kind)
        status = theirs["get_resolution_status"](report)
        ours = grade_instance(said, first, second, fail_only=fail_only)
        found.append((f"fail to pass {number}", ours["fail_to_pass"], theirs["compute_fail_to_pass"](report)))
        found.append((f"pass to pass {number}", ours["pass_to_pass"], theirs["compute_pass_to_pass"](report)))
        found.append((f"resolved {number}", ours["resolved"], float(status == "RESOLVED_FULL")))
        resolved[f"i{number}"], gold[f"i{number}"] = status == "RESOLVED_FULL", report
    for name, done in resolved.items():
        (folder / "logs" / name).mkdir(parents=True)
        said = {name: {"resolved": done, "patch_exists": True, "tests_status": gold[name]}}
        (folder / "logs" / name / "report.json").write_text(json.dumps(said))
    adapter = BENCHMARKS["swe-bench"]
    share = sum(resolved.values()) / len(resolved)
    return [*found, ("resolved share", adapter.score_results(adapter.read_results(folder)).score, share)]


def score_android_world(root: Path, folder: Path, rng: random.Random) -> list[tuple[str, float, float]]:
    """Compare the mean over tasks with process_episodes's, over checkpoints with episodes that broke."""
    listed = json.loads(find_official(root, "task_metadata.json").read_bytes())
    episodes = []
    for task in listed[:60]:
        own = []
        for instance in range(3):
            broke = rng.random() < 0.15
            own.append({
                "goal": "g", "task_template": task["task_name"], "instance_id": instance, "seed": 1, "run_time": 2.0,
                "episode_data": np.nan if broke else {"step_number": np.arange(3)},
                "is_successful": np.nan if broke else rng.choice([0.0, 1.0, 0.5, True]), "episode_length": 3,
                "exception_info": "Traceback\nTimeoutError: adb" if broke else None, "aux_data": None,
            })  # fmt: skip
            (folder / f"{task['task_name']}_{instance}.pkl.gz").write_bytes(gzip.compress(pickle.dumps(own[-1:])))
        episodes += own
    constants = take_functions(find_official(root, "constants.py"), ("EpisodeConstants",), {})
    known = {"pd": pd, "np": np, "os": os, "constants": type("constants", (), constants),
             "__file__": str(find_official(root, "suite_utils.py")), "_log_and_print": lambda *_: None}  # fmt: skip
    names = ("process_episodes", "_extract_task_metadata", "_TASK_TEMPLATE_COLUMN", "_TASK_PROMPT_COLUMN")
    theirs = take_functions(find_official(root, "suite_utils.py"), names, known)["process_episodes"](episodes)
    adapter = BENCHMARKS["android-world"]
    score = adapter.score_results(adapter.read_results(folder))
    failed = float(sum(one["exception_info"] is not None for one in episodes))
    return [("mean success rate", score.score, float(theirs["mean_success_rate"].mean())),
            ("failed trials", score.figures["num_fail_trials"], failed)]  # fmt: skip


def score_browsecomp_plus(root: Path, folder: Path, rng: random.Random) -> list[tuple[str, float, float]]:
    """Compare judgements' parsing, accuracy, recall and calibration error with evaluate_run.py's."""
    from flywheel.evaluation.benchmarks.browsecomp_plus import calibration_error, parse_judgement

    theirs = take_functions(
        find_official(root, "evaluate_run.py"),
        ("parse_judge_response", "calib_err", "calculate_calibration_error"),
        {"re": re, "np": np},
    )
    found, runs = [], []
    for number in range(350):
        bold = rng.choice(["correct: {}", "**correct:** {}", "**correct**: {}", "no verdict {}"])
        text = f"extracted_final_answer: x\nreasoning: y\n{bold.format(rng.choice(['yes', 'no']))}\n"
        text += rng.choice([f"confidence: {rng.randint(0, 120)}%", f"**confidence:** {rng.random() * 100:.1f}", ""])
        said = theirs["parse_judge_response"](text)
        ours = parse_judgement(text)
        found.append((f"judgement {number}", float(ours == {name: said[name] for name in ours}), 1.0))
        run = {"query_id": str(number), "response": "a", "is_completed": rng.random() < 0.9, "judge_result": said,
               "retrieval": {"recall": rng.random()}}  # fmt: skip
        if not run["is_completed"]:
            run["judge_result"] = {"parse_error": True}
        runs.append(run)
        (folder / f"{number}_eval.json").write_text(json.dumps(run))
    adapter = BENCHMARKS["browsecomp-plus"]
    score = adapter.score_results(adapter.read_results(folder))
    right = sum(bool(one["judge_result"].get("correct")) for one in runs) / len(runs)
    found += [("accuracy", score.score, right)]
    found += [("recall", score.figures["recall"], float(np.mean([one["retrieval"]["recall"] for one in runs])))]
    for n in (100, 150, 200, 350):
        pairs = [(float(rng.randint(0, 100)), rng.random() < 0.5) for _ in range(n)]
        confidences, correct = zip(*pairs, strict=True)
        with np.errstate(all="ignore"):
            wanted = theirs["calculate_calibration_error"](list(confidences), list(correct)) / 100
        found.append(
            (f"calibration error of {n}", calibration_error(confidences, list(map(float, correct))), float(wanted))
        )
    return found


def score_lmgame_bench(root: Path, folder: Path, rng: random.Random) -> list[tuple[str, float, float]]:
    """Compare normalised rewards with normalize_column_safely's, over the rewards that the benchmark publishes."""
    adapter = BENCHMARKS["lmgame-bench"]
    table = find_official(root, "model_perf_rank.json")
    score = adapter.score_results(adapter.read_results(table.parent))
    theirs = take_functions(find_official(root, "notebook_utils.py"), ("normalize_column_safely",), {"pd": pd})
    rows = {
        f"{model} {'with' if mode == 'harness_true' else 'without'} harness": {
            game: 10 * math.log2(np.mean(rewards)) if game == "twenty_forty_eight" else float(np.mean(rewards))
            for game, rewards in games.items()
            if rewards
        }
        for model, modes in json.loads(table.read_bytes()).items()
        for mode, games in modes.items()
    }
    frame = pd.DataFrame.from_dict({player: games for player, games in rows.items() if games}, orient="index")
    found = []
    for game in frame.columns:
        for player, wanted in theirs["normalize_column_safely"](frame[game]).dropna().items():
            found.append((f"{player}/{game}", score.figures[f"{player}/{game}"], float(wanted)))
    return found


def score_online_mind2web(root: Path, folder: Path, rng: random.Random) -> list[tuple[str, float, float]]:
    """Compare the success rate with a judge's own analysis of the same lines."""
    lines = [{"task_id": f"t{n}", "predicted_label": rng.randint(0, 1), "action_history": []} for n in range(300)]
    path = folder / "WebJudge_auto_eval_results.json"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    names = ("compute_metrics", "_failure_reason")
    theirs = take_functions(find_official(root, "judge_analysis.py"), names, {"statistics": __import__("statistics")})
    adapter = BENCHMARKS["online-mind2web"]
    score = adapter.score_results(adapter.read_results(folder)).score
    return [("success rate", score, theirs["compute_metrics"](lines)["success_rate"] / 100)]


OFFICIAL: dict[str, Callable[[Path, Path, random.Random], list[tuple[str, float, float]]]] = {
    "terminal-bench": score_terminal_bench, "osworld": score_osworld, "swe-bench": score_swe_bench,
    "windows-agent-arena": score_windows_agent_arena, "android-world": score_android_world,
    "browsecomp-plus": score_browsecomp_plus, "lmgame-bench": score_lmgame_bench,
    "online-mind2web": score_online_mind2web,
}  # fmt: skip


def write_broken(name: str, folder: Path) -> int:
    """Write recorded results of episodes that all broke in the environment or the harness, in the benchmark's own form;
    return how many. `folder` is empty."""
    if name == "terminal-bench":
        trials = [
            {"task_id": "a", "is_resolved": None, "failure_mode": mode}
            for mode in ("unknown_agent_error", "parse_error")
        ]
        (folder / "results.json").write_text(json.dumps({"results": trials}))
        return len(trials)
    if name in ("osworld", "windows-agent-arena"):
        for number in range(3):
            run = folder / "os" / f"t{number}"
            run.mkdir(parents=True)
            (run / "traj.jsonl").write_text(json.dumps({"step_num": 1, "action": "WAIT"}) + "\n" if number else "")
        return 3
    if name == "swe-bench":
        said = {"resolved_ids": [], "unresolved_ids": ["a"], "infra_failure_ids": ["a"], "error_ids": ["b"],
                "incomplete_ids": ["c"]}  # fmt: skip
        (folder / "m.run.json").write_text(json.dumps(said))
        return 3
    if name == "android-world":
        episode = {
            "task_template": "a",
            "instance_id": 0,
            "is_successful": np.nan,
            "exception_info": "E",
            "run_time": 1.0,
        }
        (folder / "a_0.pkl.gz").write_bytes(gzip.compress(pickle.dumps([episode, {**episode, "instance_id": 1}])))
        return 2
    if name == "browsecomp-plus":
        run = {
            "query_id": "1",
            "response": "a",
            "is_completed": True,
            "judge_result": {"parse_error": True, "correct": None},
        }
        (folder / "1_eval.json").write_text(json.dumps(run))
        return 1
    if name == "lmgame-bench":
        said = {"settings": {"game_name": "sokoban", "model_name": "m", "num_runs": 3}, "individual_run_results": []}
        (folder / "gym_run_summary.json").write_text(json.dumps(said))
        return 3
    (folder / "auto_eval_results.json").write_text(json.dumps({"task_id": "a", "predicted_label": None}) + "\n")
    (folder / "b").mkdir()
    (folder / "b" / "result.json").write_text("{}")
    return 2
