"""Adapt LMGame-Bench: its games, their actions, and summaries of runs. https://github.com/lmgame-org/GamingAgent"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from flywheel.agent import actions as act
from flywheel.evaluation.benchmarks.benchmark import (
    AdaptedActions,
    BenchmarkTask,
    OfficialScore,
    RefusedTask,
    TaskResult,
    require_results,
    require_text,
)
from flywheel.utils import yaml_text
from flywheel.utils.errors import BadInput

_SUMMARY, _TABLE, _CONFIG = "gym_run_summary.json", "model_perf_rank.json", "config.yaml"
_TOOL = "act"  # a call of it names an action of the game
_KEYS = ("up", "down", "left", "right")
_WAIT = "no_op"
_LOG_GAME = "twenty_forty_eight"  # whose score is 10 log2 of the reward
_LOWEST, _RANGE = 1.0, 99.0  # of a normalised score


class LmgameBench:
    """Adapt LMGame-Bench. An action is the name of a game's action, or another text that the game reads."""

    name, title = "lmgame-bench", "LMGame-Bench"
    source = "github.com/lmgame-org/GamingAgent: gamingagent/configs"
    space = "none: its actions are names"
    ran = "none of its own games; games of ours of the same rules (2048, Sokoban, tiles) are in docs/worlds.md"

    def load_tasks(self, folder: Path) -> Iterator[BenchmarkTask | RefusedTask]:
        """Yield a task for each game's config.yaml below `folder`. Raises BadInput where there is none."""
        paths = sorted(path for path in folder.rglob(_CONFIG) if path.parent.parent.name == "configs")
        if not paths:
            raise BadInput("no game's config.yaml", where=folder, fix="name its folder gamingagent/configs")
        for path in paths:
            try:
                said = yaml_text.load_yaml(path.read_text(encoding="utf-8"))
                game = said["game_env"]
                name = require_text(game["name"], "name")
                instruction = require_text(game.get("description", f"Play {name}."), "description")
            except (OSError, yaml.YAMLError, ValueError, KeyError, TypeError) as error:
                yield RefusedTask(path, f"{type(error).__name__} {error}"[:200])
                continue
            kind = str(game.get("env_type", path.parent.name.partition("_")[0]))
            needs = "its ROM and stable-retro" if kind == "retro" else "the package gamingagent"
            yield BenchmarkTask(name, instruction, kind, f"it needs {needs}", game, path)

    def parse_action(self, written: Any, screen: tuple[int, int] | None = None) -> AdaptedActions:
        """Parse an action: a direction is its arrow key, no_op a wait, any other a call of `act`."""
        name = require_text(written, "an action")
        if name in _KEYS:
            return AdaptedActions((act.Hotkey((name,)),))
        return AdaptedActions((act.Wait() if name == _WAIT else act.ToolCall.of(_TOOL, {"action": name}),))

    def format_action(self, action: AdaptedActions, screen: tuple[int, int] | None = None) -> str:
        """Write an action's name. Raises ValueError for an action that names none."""
        match action.actions:
            case (act.Hotkey((key,)),) if key in _KEYS:
                return key
            case (act.Wait(),):
                return _WAIT
            case (act.ToolCall(tool, arguments),) if tool == _TOOL:
                return require_text(json.loads(arguments).get("action"), "action")
        raise ValueError("LMGame-Bench has no name for it")

    def read_results(self, folder: Path) -> list[TaskResult]:
        """Read the runs' summaries (gym_run_summary.json, at any depth), or else the table model_perf_rank.json.

        The category is the player: the model, with or without harness. A run that a summary's settings ask for and that
        is not in it is a fault.
        """
        tables = sorted(folder.rglob(_TABLE))
        paths = sorted(folder.rglob(_SUMMARY))
        found = [one for path in paths for one in _read_summary(path)]
        found = found or [one for path in tables[:1] for one in _read_table(path)]
        if not found:
            raise BadInput(f"no runs in any {_SUMMARY}, and no {_TABLE}", where=folder, fix="name a folder of runs")
        return found

    def score_results(self, results: Sequence[TaskResult]) -> OfficialScore:
        """Score as its evaluation does: rewards are normalised over players, and averaged over games, then players.

        A player's reward in a game is the mean over its runs (`transform_reward`, `normalise_rewards`). Figures are
        `player/game`, and `raw/player/game` before normalising.
        """
        require_results(results, self.title)
        rewards: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for one in results:
            if one.score is not None:
                rewards[one.category][one.task].append(one.score)
        raw = {
            player: {game: transform_reward(game, fmean(values)) for game, values in games.items()}
            for player, games in rewards.items()
        }
        normal = normalise_rewards(raw)
        figures = {f"raw/{player}/{game}": value for player, games in raw.items() for game, value in games.items()}
        figures |= {f"{player}/{game}": value for player, games in normal.items() for game, value in games.items()}
        means = [fmean(games.values()) for games in normal.values()]
        return OfficialScore(fmean(means) if means else 0.0, figures)


def transform_reward(game: str, reward: float) -> float:
    """Return a game's mean reward as LMGame-Bench counts it: of 2048 ten times its binary logarithm (0 below 1)."""
    return (10 * math.log2(reward) if reward >= 1 else 0.0) if game == _LOG_GAME else reward


def normalise_rewards(rewards: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Normalise rewards (player -> game -> reward) in each game: the lowest is 1, the highest 100; equal ones are 1."""
    columns: dict[str, list[float]] = defaultdict(list)
    for games in rewards.values():
        for game, value in games.items():
            columns[game].append(value)

    def scaled(game: str, value: float) -> float:
        low, high = min(columns[game]), max(columns[game])
        return (value - low) / (high - low) * _RANGE + _LOWEST if high > low else _LOWEST

    return {player: {game: scaled(game, value) for game, value in games.items()} for player, games in rewards.items()}


def _read_summary(path: Path) -> list[TaskResult]:
    try:
        said = json.loads(path.read_bytes())
        settings, runs = said["settings"], said["individual_run_results"]
        game, model = str(settings["game_name"]), str(settings["model_name"])
        player = f"{model} {'with' if settings.get('harness') else 'without'} harness"
        found = [
            TaskResult(game, int(run["run_id"]), int(settings.get("max_steps_per_episode") or 0),
                       float(run["total_perf_score_for_episode"]), category=player,
                       parts={"steps": float(run["steps"]), "reward": float(run["total_reward_for_episode"])})
            for run in runs
        ]  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"no summary of a run: {type(error).__name__} {error}", where=path, fix="run it again") from None
    done = {one.seed for one in found}
    missing = [number for number in range(1, int(settings.get("num_runs") or 0) + 1) if number not in done]
    return found + [TaskResult(game, number, fault="the run broke off", category=player) for number in missing]


def _read_table(path: Path) -> list[TaskResult]:
    found = []
    try:
        for model, modes in json.loads(path.read_bytes()).items():
            for mode, games in modes.items():
                player = f"{model} {'with' if mode == 'harness_true' else 'without'} harness"
                for game, rewards in games.items():
                    runs = enumerate(rewards, 1)
                    found += [TaskResult(game, run, score=float(reward), category=player) for run, reward in runs]
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise BadInput(f"no table of rewards: {error}", where=path, fix="name another folder") from None
    return found
