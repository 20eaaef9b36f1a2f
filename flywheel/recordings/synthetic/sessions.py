"""Make synthetic recorded sessions: an expert program plays the browser's worlds and thinks aloud in synthetic speech.

The shipped ones are made so; `python -m flywheel.recordings.synthetic.sessions` makes more of them.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import json
import logging
import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from flywheel.agent.actions import Action, Click, Drag, Finished, LeftDouble, Point, RightSingle, Type, Wait
from flywheel.config import Settings, load_settings
from flywheel.envs.base import Env, Task
from flywheel.envs.browser.pool import open_browser_pool
from flywheel.envs.suites import catalogue
from flywheel.envs.suites.oracle import demonstrate_task, next_expert_step
from flywheel.envs.tasks.drawing import make_task, make_tasks, task_content, task_to_row
from flywheel.envs.tasks.held_out import held_out_templates, list_templates
from flywheel.recordings import audio
from flywheel.recordings.session import (
    InputEvent,
    ScreenFrame,
    SessionMeta,
    SessionOutcome,
    action_to_events,
    write_session,
)
from flywheel.utils.errors import BadInput, DataError, FlywheelError

# Speech: sentences that a person might say, spoken by `flite` and mixed to one track of samples.

VOICES = ("slt", "rms", "awb", "kal16")
_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class SpeakerHabits:
    """Hold the habits of a speaker: how often each occurs, as a share of the thoughts. pace: factor of a word's
    duration."""

    filler: float
    correction: float
    repetition: float
    pause: float
    silence: float
    pace: float


_FILE = resources.files("flywheel.recordings.synthetic").joinpath("sessions.yaml")
_DECLARED = yaml.safe_load(_FILE.read_text("utf-8"))
SPEAKER_HABITS = {level: SpeakerHabits(**habits) for level, habits in _DECLARED["habits"].items()}


def spoken_thought(thought: str, habits: SpeakerHabits, rng: random.Random) -> list[str]:
    """Turn a thought into spoken parts with pauses between them, with fillers, repetitions and self-corrections.

    These are added by `rng` as often as the speaker's `habits` say.
    """
    words = thought.rstrip(".").split()
    if rng.random() < habits.correction:
        words = _corrected(words, rng)
    elif rng.random() < habits.repetition and len(words) > 2:
        words = [words[0], *words]
    if rng.random() < habits.filler:
        words = [*rng.choice(_DECLARED["fillers"]).split(), *words]
    if rng.random() < habits.pause and len(words) > 4:
        cut = rng.randrange(2, len(words) - 1)
        return [" ".join(words[:cut]), " ".join(words[cut:])]
    return [" ".join(words)]


def _corrected(words: list[str], rng: random.Random) -> list[str]:
    """Add a self-correction where a colour is named: `the red heart` -> `the blue no wait the red heart`."""
    colours = _DECLARED["colours"]
    for at, word in enumerate(words):
        if word in colours and at and words[at - 1] == "the":
            other = rng.choice([colour for colour in colours if colour != word])
            return [*words[:at], other, *rng.choice(_DECLARED["turns"]).split(), *words[at - 1 :]]
    return words


def synthesize_speech(text: str, voice: str, pace: float) -> np.ndarray:
    """Speak the ASCII `text`; return float32 mono [n] at `SAMPLE_RATE`.

    voice: one of `VOICES`. pace: times the usual duration. Raises BadInput where flite is not installed, FlywheelError
    where it fails.
    """
    flite = shutil.which("flite")
    if flite is None:
        raise BadInput(
            "flite is not installed", where="flywheel.recordings.synthetic.sessions", fix="apt install flite"
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "speech.wav"
        # The text is passed in a file: on the command line, flite takes a text without blanks for a file name.
        source = Path(folder) / "text"
        source.write_text(text + ".\n", encoding="ascii")
        command = [flite, "-voice", voice, "--setf", f"duration_stretch={pace}", "-f", str(source), "-o", str(path)]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_S)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise FlywheelError(f"flite failed: {error}", where=voice) from None
        return audio.read_audio(path)


def mix_audio_track(
    pieces: Sequence[tuple[float, np.ndarray]], seconds: float, clicks: Sequence[float], rng: np.random.Generator
) -> np.ndarray:
    """Mix pieces of sound on one float32 track in [-1, 1], with the noise of a room and of the mouse.

    pieces: (start in seconds, samples at `SAMPLE_RATE`). seconds: length of the track; sound beyond its end or before
    its beginning is lost, as with a microphone that was switched on late. clicks: seconds at which the mouse clicks.
    rng: of the noise.
    """
    samples = rng.normal(0, 6e-4, round(seconds * audio.SAMPLE_RATE)).astype(np.float32)
    decay = np.exp(-np.arange(160) / 25).astype(np.float32)
    sounds = [(at, 0.03 * decay * rng.normal(0, 1, 160).astype(np.float32)) for at in clicks]
    for at, piece in [*pieces, *sounds]:
        start = round(at * audio.SAMPLE_RATE)
        piece = piece[max(0, -start) :]
        start = max(start, 0)
        end = min(start + len(piece), len(samples))
        if end > start:
            samples[start:end] += piece[: end - start]
    return np.clip(samples, -1, 1)


# The shipped sessions are made by `python -m flywheel.recordings.synthetic.sessions recordings`. Real environments are
# driven and recorded; the speech is synthetic, with what makes real speech hard: fillers, self-corrections, pauses,
# thoughts after the action, silent steps, a microphone with a clock of its own. The truth (thoughts and their times) is
# written to `truth.json`, which only the measurements read.

log = logging.getLogger(__name__)
SEEDS = 2**31  # the first seed of recorded tasks: above those of training and evaluation
_LEFT_OUT = 200  # more tasks than can ever follow each other in which the person must wait
FIRST_DAY = datetime(2026, 11, 2, 9, 0, tzinfo=UTC)

ANNOTATORS = _DECLARED["annotators"]  # name, level, voice


@dataclass
class _SessionTake:
    """Collect the parts of a session while it is recorded; times on the screen's clock."""

    events: list[InputEvent] = field(default_factory=list)
    screens: list[ScreenFrame] = field(default_factory=list)
    pieces: list[tuple[float, np.ndarray]] = field(default_factory=list)
    clicks: list[float] = field(default_factory=list)
    utterances: list[dict[str, Any]] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    speech_end: float = 0.0

    def say(self, parts: list[str], at: float, step: int, voice: str, pace: float, rng: random.Random) -> float:
        """Speak the parts, beginning at the second `at`; return the second at which the last one ends."""
        for part in parts:
            samples = synthesize_speech(part, voice, pace)
            self.pieces.append((at, samples))
            end = at + len(samples) / audio.SAMPLE_RATE
            self.utterances.append({"start_s": round(at, 3), "end_s": round(end, 3), "said": part, "step": step})
            at = end + rng.uniform(0.55, 0.9)
        self.speech_end = max(self.speech_end, end)
        return end


def recorded_tasks(settings: Settings) -> Iterator[Task]:
    """Yield the tasks of synthetic sessions, of all worlds, templates and levels in turn, without end.

    None has the content of an evaluation task. The same settings give the same tasks. Raises BadInput for a suite in
    the settings that does not exist.
    """
    held_out = {task_content(task) for task in make_tasks(settings, 0, "eval")}
    names = [name for pair in zip(*_even(settings), strict=True) for name in pair]
    slots = {name: _slots(settings, name) for name in names}
    seed = SEEDS
    for name in itertools.cycle(names):
        template, level = next(slots[name])
        made = None
        while made is None or task_content(made) in held_out:
            made, seed = make_task(catalogue.get_world(name), template, level, seed, "train"), seed + 1
        yield made


def _slots(settings: Settings, name: str) -> Iterator[tuple[str, int]]:
    """Yield templates and levels of a world, without end: every template once before any comes again, then at its next
    level. Where levels are opened one after the other, lower ones come more often: 1, 1, 2, 1, 2, 3."""
    world = catalogue.get_world(name)
    levels = {
        template: [level for level in settings.synthesis.levels if level in spec.max_steps]
        for template, spec in list_templates(settings, world).items()
        if template not in held_out_templates(settings, world)
    }
    learnt = [template for template in levels if levels[template]]
    learnt = random.Random(name).sample(learnt, len(learnt))
    if settings.synthesis.level_unlock_success:
        levels = {name: [one for top in range(len(own)) for one in own[: top + 1]] for name, own in levels.items()}
    for turn in itertools.count():
        for place, template in enumerate(learnt):
            yield template, levels[template][(turn + place) % len(levels[template])]


def _even(settings: Settings) -> list[list[str]]:
    """Return the worlds of each domain, repeated so that all domains get equally many turns."""
    domains = list(settings.synthesis.domains.values())
    turns = int(np.lcm.reduce([len(worlds) for worlds in domains]))
    return [[worlds[i % len(worlds)] for i in range(turns)] for worlds in domains]


async def record_session(
    env: Env, task: Task, number: int, name: str, level: str, voice: str, folder: Path, *, slips: bool = True
) -> dict[str, Any] | None:
    """Record one synthetic session into `folder`; return its true thoughts and their times, for `truth.json`.

    The result is {"offset_s": audio's clock to the screen's, "utterances": [{"start_s", "end_s", "said", "step"}],
    "thoughts": one a step}; None for a task in which the person must wait, since a wait is not recorded. env: plays
    `task`. number: of the session, which seeds it. name, level, voice: of the person, `expert` or `novice`, and of the
    synthesizer. slips: whether a novice may click a wrong place; a task that fails because of that is done again
    without slips. Raises what `demonstrate_task` and `synthesize_speech` do.
    """
    rng = random.Random(f"recording {number}")
    habits = SPEAKER_HABITS[level]
    actions = [action for _, action, _ in await demonstrate_task(env, task, task.seed)]
    if any(isinstance(action, Wait) for action in actions):
        return None
    needed = len(actions)
    novice = slips and level == "novice"
    stray = rng.randrange(needed) if novice and needed < task.max_steps and rng.random() < 0.4 else -1
    take, clock = _SessionTake(), rng.uniform(1.6, 2.4)
    result = await env.reset(task, task.seed)
    shown = 0.2
    while not (result.terminated or result.truncated):
        step, state = len(take.thoughts), result.info["state"]
        if step == stray:
            thought, action, stray = "Maybe here.", Click(_empty_spot(state, rng)), -1
        else:
            thought, action = next_expert_step(task, state, number) or ("I am done.", Finished())
        seen = result.observation
        digest = hashlib.sha256(seen.screenshot).hexdigest()
        take.screens.append(
            ScreenFrame(round(shown, 3), digest, seen.url, seen.width, seen.height, "png", seen.screenshot)
        )
        acted = _speak_and_act(take, thought, step, clock, habits, voice, rng)
        take.thoughts.append(thought)
        events = action_to_events(action, acted, step, _label(action, state), seconds=_duration(action, rng))
        take.events += events
        take.clicks += [event.time_s for event in events]
        result = await env.step(action)
        shown = events[-1].time_s + rng.uniform(0.1, 0.3)
        clock = max(take.speech_end, shown) + rng.uniform(0.6, 1.6)
    if slips and not result.reward:  # for example, the slip closed a menu, and the steps ran out
        return await record_session(env, task, number, name, level, voice, folder, slips=False)
    if rng.random() < 0.3:
        take.say(["okay done"], clock, len(take.thoughts) - 1, voice, habits.pace, rng)
    seconds = round(max(take.speech_end, shown) + 0.5, 3)
    offset = rng.uniform(-2.0, 1.2)  # the microphone was switched on before the screen, or after it
    sound = mix_audio_track(
        [(at - offset, piece) for at, piece in take.pieces],
        seconds - offset,
        [at - offset for at in take.clicks],
        np.random.default_rng(number),
    )
    outcome = SessionOutcome(terminated=result.terminated, reward=result.reward, state=dict(result.info["state"]))
    meta = SessionMeta(
        session=folder.name,
        annotator=name,
        level=level,
        voice=voice,
        task=task_to_row(task),
        width=result.observation.width,
        height=result.observation.height,
        audio="speech.opus",
        sync_s=round(offset + rng.gauss(0, 0.3), 3),
        started_at=FIRST_DAY + timedelta(minutes=20 * number),
        seconds=seconds,
        outcome=outcome,
    )
    write_session(folder, meta, take.events, take.screens, sound)
    return {"offset_s": round(offset, 3), "utterances": take.utterances, "thoughts": take.thoughts}


def _speak_and_act(
    take: _SessionTake, thought: str, step: int, clock: float, habits: SpeakerHabits, voice: str, rng: random.Random
) -> float:
    """Say the thought before, during or after the action, mostly before; return the second of the action."""
    if rng.random() < habits.silence:
        return clock + rng.uniform(0.3, 1.0)
    parts = spoken_thought(thought, habits, rng)
    order = rng.choices(("before", "during", "after"), (0.8, 0.1, 0.1))[0]
    if order == "after":
        take.say(parts, clock + rng.uniform(0.25, 0.5), step, voice, habits.pace, rng)
        return clock
    end = take.say(parts, clock, step, voice, habits.pace, rng)
    return end - rng.uniform(0.1, 0.5) if order == "during" else end + rng.lognormvariate(-0.6, 0.4)


def _duration(action: Action, rng: random.Random) -> float:
    """Return the seconds from the first event of an action to its second."""
    if isinstance(action, Type):
        return 0.18 * len(action.content) + rng.uniform(0.2, 0.5)
    return rng.uniform(0.4, 0.9)


def _label(action: Action, state: Mapping[str, Any]) -> str:
    """Return the name of the smallest element under the pointer, as an accessibility interface gives it."""
    if isinstance(action, Drag):
        point = action.start_point
    elif isinstance(action, Click | LeftDouble | RightSingle):
        point = action.point
    else:
        return ""
    under = [
        (e["w"] * e["h"], e["name"])
        for e in state["elements"]
        if e["x"] <= point.x <= e["x"] + e["w"] and e["y"] <= point.y <= e["y"] + e["h"]
    ]
    return min(under, default=(0, ""))[1]


def _empty_spot(state: Mapping[str, Any], rng: random.Random) -> Point:
    """Return a point far from all elements, where a click does nothing."""

    def apart(x: float, y: float) -> float:
        gaps = [max(e["x"] - x, x - e["x"] - e["w"], e["y"] - y, y - e["y"] - e["h"]) for e in state["elements"]]
        return min(gaps, default=1.0)

    points = [(rng.uniform(0.02, 0.98), rng.uniform(0.02, 0.98)) for _ in range(200)]
    return Point(*max(points, key=lambda point: apart(*point)))


async def make_sessions(folder: Path, count: int, settings: Settings, first: int = 0) -> None:
    """Make the synthetic sessions numbered `first` to `count` - 1 in `folder`.

    settings: of tasks and browsers. Each is the same however many are made. Earlier ones stay; with `first` 0, those
    named in `truth.json` are removed first. Raises BadInput where a session before `first` is missing, and where there
    is nothing to make; DataError where truth.json or one before `first` is damaged; and what `open_browser_pool`,
    `BrowserPool.env` and `record_session` do.
    """
    if count <= first:
        raise BadInput(
            f"of {count} sessions in all none is left to be made from {first} on",
            where="--count",
            fix=f"how many there are to be in the end, such as {first + 100}",
        )
    truth_file = folder / "truth.json"
    if first and not truth_file.is_file():
        raise BadInput("no truth.json", where=folder, fix="make the sessions before it first, without --first")
    truth = _read_json(truth_file, _check_truth) if truth_file.is_file() else {}
    if not first:
        for name in truth:
            shutil.rmtree(folder / name, ignore_errors=True)
        truth = {}
    number = passed = 0
    async with open_browser_pool(settings) as pool:
        for task in recorded_tasks(settings):
            if number == count:
                break
            # Each world gets every annotator in turn.
            name, level, voice = ANNOTATORS[(number + number // len(ANNOTATORS)) % len(ANNOTATORS)]
            target = folder / f"{number:03d}-{task.world}-{name}"
            if number < first:
                there = _task_id(target) == task.task_id  # False: that task was left out
                number, passed = number + there, 0 if there else passed + 1
                if passed > _LEFT_OUT:
                    raise BadInput(
                        f"session {number:03d} is missing, or of other parameters",
                        where=folder,
                        fix="make all anew, without --first",
                    )
                continue
            shutil.rmtree(target, ignore_errors=True)
            async with pool.env() as env:
                found = await record_session(env, task, number, name, level, voice, target)
            if found:
                truth[target.name] = found
                number += 1
            log.info("%s: %s%s", target.name, task.instruction, "" if found else " (left out: one must wait)")
    truth_file.write_text(json.dumps(truth, indent=1) + "\n", encoding="utf-8")


def sessions_match_settings(folder: Path, settings: Settings) -> bool:
    """Tell whether the synthetic sessions in `folder` are the ones that these settings give.

    Only sessions named in its truth.json count; without any it is True, where one of them is missing False. Raises
    DataError for a truth.json or session.json that is damaged, BadInput for settings whose tasks cannot be drawn
    (`make_tasks`).
    """
    truth_file = folder / "truth.json"
    names = _read_json(truth_file, _check_truth) if truth_file.is_file() else {}
    made = {_task_id(folder / name) for name in names}
    asked = itertools.islice(recorded_tasks(settings), len(made) + _LEFT_OUT)
    return made <= {task.task_id for task in asked}


def _check_truth(found: Any) -> dict[str, Any]:
    """Return the content of a truth.json, by the sessions' names; raises TypeError where it is none."""
    if not isinstance(found, dict):
        raise TypeError("not an object with the sessions' names")
    return found


def _task_id(folder: Path) -> str | None:
    """Return the id of the task of the session in `folder`; None where there is no session.json."""
    meta = folder / "session.json"
    return _read_json(meta, lambda found: str(found["task"]["task_id"])) if meta.is_file() else None


def _read_json(path: Path, take: Callable[[Any], Any]) -> Any:
    try:
        return take(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"the recording cannot be read: {error!r}", where=path, fix="restore the file") from None


def main() -> None:
    """Run the command line; for wrong input print one line and exit with 2."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the sessions go, such as recordings")
    parser.add_argument("--count", type=int, default=144, help="how many there are in the end (default %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="those before it are there (default %(default)s)")
    parser.add_argument("--params", type=Path, help="a params.yaml, for its domains, levels and held-out templates")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    try:
        chosen = load_settings(arguments.params) if arguments.params else Settings()
        asyncio.run(make_sessions(arguments.folder, arguments.count, chosen, arguments.first))
    except BadInput as error:
        parser.exit(2, f"make_sessions: {error}\n")


if __name__ == "__main__":
    main()
