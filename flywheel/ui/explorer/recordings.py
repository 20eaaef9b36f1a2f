"""Show recordings to reviewers from their folders, before an iteration takes them in, and store verdicts."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, StrictBool

from flywheel import config
from flywheel.agent.grammar import Grammar
from flywheel.agent.parsing.parser import action_fields
from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.recordings import reviewing
from flywheel.recordings.session import RecordedSession, load_session
from flywheel.store import labels
from flywheel.store.recording_verdicts import QUESTIONS
from flywheel.store.schema import Step
from flywheel.ui.explorer import trajectories
from flywheel.ui.explorer.catalog_reader import CatalogReader, NotInStore, Row
from flywheel.ui.explorer.media import IMAGE_TYPES, TokenTexts, find_audio_file
from flywheel.ui.explorer.review import blind_steps


class VerdictRequest(BaseModel):
    """Hold a reviewer's verdict on a recording, as a page sends it.

    answers: yes or no by question (`QUESTIONS`). sha256: of the recording as it was shown.
    """

    name: str = Field(max_length=300)
    answers: dict[str, StrictBool]
    reviewer: str
    comment: str = ""
    sha256: str = ""


def list_recordings(ws: Workspace, reviewer: str) -> dict[str, Any]:
    """List the recordings under review, and trajectories that are reviewed like them, for one reviewer.

    Returns `rows`, each with `name`, `instruction`, `iteration`, `reviews` (how many), `state`, and whether it is
    `open` for the reviewer; `states`, the number of rows in each; `questions`; `needed`, the number of reviewers that
    an iteration asks for (0: none); and `comment`, the most characters of a comment. Raises BadInput for an invalid
    name of the reviewer or a wrong params.yaml, and as `reviewing.list_reviewed`.
    """
    key, settings = labels.normalise_reviewer(reviewer), config.load_settings(ws.params)
    found = reviewing.list_reviewed(ws, settings)
    rows = [
        {"name": one.name, "instruction": one.instruction, "iteration": one.iteration, "state": one.state}
        | {"reviews": len(one.verdicts), "open": one.refusal(key) is None}
        for one in found
    ]
    return {
        "rows": rows,
        "states": dict(sorted(Counter(one.state for one in found).items())),
        "questions": QUESTIONS,
        "needed": settings.curation.reviewers,
        "comment": labels.MAX_COMMENT_CHARACTERS,
    }


def load_recording_item(asking: CatalogReader, tokens: TokenTexts, name: str, reviewer: str) -> dict[str, Any]:
    """Load a recording, or a trajectory that somebody asked for, to review.

    Returns its `name`, `instruction`, `iteration`, `state`, `sha256`, `steps` and where their `screens` are, whether it
    has `sound`, `obstacle`, why the reviewer may give no verdict on it ("": one may), and `said`, the verdicts: none
    before the reviewer has given one, or all is decided. Who recorded it, and what scorers say, is left out. Raises
    BadInput for an invalid name of the reviewer, as `reviewing.find_reviewed`, DataError for a damaged recording, and
    for a trajectory as `trajectories.load_trajectory_detail`.
    """
    ws, key = asking.ws, labels.normalise_reviewer(reviewer)
    settings = config.load_settings(ws.params)
    one = reviewing.find_reviewed(ws, settings, name)
    obstacle = one.refusal(key)
    over = one.state in ("accepted", "refused") or key in [said.reviewer for said in one.verdicts]
    if one.iteration:
        steps, sound = blind_steps(trajectories.load_trajectory_detail(asking, tokens, name)), False
    else:
        session = load_session(_folder(ws, settings, name), speech=False)
        steps, sound = _session_steps(session, settings), bool(session.meta.audio)
    return {
        **{field: getattr(one, field) for field in ("name", "instruction", "iteration", "state", "sha256")},
        "steps": steps,
        "screens": one.iteration or f"recordings/{name}",
        "sound": sound,
        "obstacle": obstacle.what if obstacle else "",
        "said": [asdict(said) for said in one.verdicts] if over else [],
    }


def _session_steps(session: RecordedSession, settings: Settings) -> list[Row]:
    grammar, steps = Grammar.of_settings(settings), []
    for number, recorded in enumerate(session.actions):
        screen = session.screens[recorded.screen]
        done = action_fields(recorded.action, grammar)
        step = Step("", number, "human", image_sha256=screen.sha256, url=screen.url, **done)
        size = {"width": screen.width, "height": screen.height}
        steps.append(trajectories.make_step_row(vars(step), size, []) | {"tokens": []})
    return steps


def read_recorded_screen(ws: Workspace, name: str, sha256: str) -> tuple[bytes, str]:
    """Return the bytes and the media type of a screen of the recording `name`.

    Raises NotInStore where there is no such recording or screen, DataError for a damaged recording, BadInput for a
    wrong params.yaml.
    """
    session = load_session(_folder(ws, config.load_settings(ws.params), name), speech=False)
    found = next((one for one in session.screens.values() if one.sha256 == sha256), None)
    if found is None or found.format.lower() not in IMAGE_TYPES:
        raise NotInStore("the recording has no such screen", where=name[:80])
    return found.bytes, IMAGE_TYPES[found.format.lower()]


def find_recorded_sound(ws: Workspace, name: str) -> tuple[Path, str]:
    """Return the file of a recording's sound, and its media type. Raises NotInStore where there is no sound."""
    return find_audio_file(_folder(ws, config.load_settings(ws.params), name))


def _folder(ws: Workspace, settings: Settings, name: str) -> Path:
    path = reviewing.find_recording_folder(ws, settings, name)
    if path is None:
        raise NotInStore(f"there is no recording {name[:80]} here")
    return path


def save_recording_verdict(ws: Workspace, said: VerdictRequest) -> dict[str, Any]:
    """Store the verdict `said`; return the recording's `state`. Raises as `reviewing.give_recording_verdict`."""
    settings = config.load_settings(ws.params)
    facts = said.model_dump(exclude={"name", "answers"})
    return {"state": reviewing.give_recording_verdict(ws, settings, said.name, said.answers, **facts).state}


def query_recording_agreement(ws: Workspace) -> list[Row]:
    """Compute how far reviewers agree on recordings: a row for each `question`, with the fields of `Agreement`.

    Raises DataError for a damaged file of verdicts.
    """
    found = reviewing.measure_review_agreement(ws)
    return [{"question": name, **asdict(one)} for name, one in found.items() if one.n]
