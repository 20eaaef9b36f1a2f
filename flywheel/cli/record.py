"""Record a person's work on their own desktop or in a browser: `record`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import shlex
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flywheel.cli.options import FOLDER_OPTION, find_workspace_here
from flywheel.utils.errors import BadInput, DataError

if TYPE_CHECKING:
    from flywheel.config import Settings
    from flywheel.config.workspace import Workspace
    from flywheel.recordings.recorder.recorder import RecordingOptions, RecordingWriter
    from flywheel.recordings.session import SessionMeta


@click.command(epilog='Example: flywheel record "Sort the invoices by date." --annotator anna --exclude keepassxc')
@click.argument("instruction", required=False)
@click.option("--annotator", help="Your name, as it is stored; default: the name of your account.")
@click.option("--novice", is_flag=True, help="You do this for the first time.")
@click.option("--domain", help="Domain of the task, one of synthesis.domains; default: computer, with --browser sites, "
                               "or the first where that is not there.")  # fmt: skip
@click.option("--to", "to", type=click.Path(path_type=Path), help="Folder of recordings; default: recording.folder.")
@click.option("--browser", metavar="URL", help="Record a browser, opened at this address, in place of the desktop.")
@click.option("--display", default="", help="X display; default: DISPLAY.")
@click.option("--exclude", multiple=True, metavar="PATTERN",
              help="Class or title of windows that are not recorded, such as 'keepass*'; with --browser hosts or "
                   "addresses, such as '*.bank.example'.")  # fmt: skip
@click.option("--no-speech", is_flag=True, help="Leave the microphone closed.")
@click.option("--keep-text", is_flag=True,
              help="Keep what is typed also where nothing tells whether that is a password field.")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(0, min_open=True), help="Stop after so long.")
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="Of the page to look through; 0: a free one.")
@click.option("--yes", is_flag=True, help="Keep it as it is, as done, without the page.")
@click.option("--unfinished", type=click.Path(path_type=Path, exists=True, file_okay=False),
              help="Look through this folder, which a killed recorder left, in place of recording.")  # fmt: skip
@FOLDER_OPTION
def record_command(
    instruction: str | None,
    annotator: str | None,
    novice: bool,
    domain: str | None,
    to: Path | None,
    browser: str | None,
    display: str,
    exclude: tuple[str, ...],
    no_speech: bool,
    keep_text: bool,
    seconds: float | None,
    port: int,
    yes: bool,
    unfinished: Path | None,
    workspace: Path | None,
) -> None:
    """Record what you do, desktop or browser, and look it through.

    INSTRUCTION: what you set out to do on this desktop (X11), or with --browser in a browser. Ctrl-C or Ctrl+Shift+F10
    stops it, Ctrl+Shift+F9 pauses it. What is typed into password fields is never stored; screens
    show as many dots as the field does.
    """
    from flywheel import config
    from flywheel.recordings import selection
    from flywheel.recordings.recorder import recorder

    ws = find_workspace_here(workspace)
    settings = config.load_settings(ws.params) if ws else None
    if to is not None:
        folder = to
    elif unfinished is not None:
        folder = unfinished.resolve().parent
    elif ws is None:
        raise BadInput("there is no workspace here", where="flywheel record", fix="name one by -w, or a folder by --to")
    else:
        folder = ws.root / settings.recording.folder
    if unfinished is None:
        if not (instruction or "").strip():
            raise BadInput(
                "say what you set out to do", where="flywheel record", fix='flywheel record "Sort the mails."'
            )
        import getpass

        options = recorder.RecordingOptions(
            instruction.strip(),
            annotator or getpass.getuser(),
            _choose_domain(domain, "sites" if browser else "computer", None if to else settings),
            "novice" if novice else "expert",
            display,
            not no_speech,
            exclude,
        )
        for left in sorted(folder.glob("*" + selection.UNFINISHED)):
            if not recorder.is_recording_held(left):
                click.echo(f"a recording is not decided on yet: {_tell_unfinished(left)}")
        unfinished = folder / (_session_name(instruction) + selection.UNFINISHED)
        record = functools.partial(_record_browser, browser) if browser else _record
        record(unfinished, options, keep_text, seconds)
    with recorder.hold_recording(unfinished):
        kept = _look_through(unfinished, port, yes)
    if kept is None:
        click.echo("nothing is kept")
        return
    target, meta = kept
    click.echo(f"{target}: {meta.seconds:.0f} s")
    if settings and ws.resolve(settings.recording.folder).resolve() == folder.resolve():
        click.echo(_tell_turn(ws, settings, target))
    else:
        click.echo("an iteration takes it in once it lies in recording.folder of a workspace")


def _look_through(unfinished: Path, port: int, yes: bool) -> tuple[Path, SessionMeta] | None:
    """Have a recording looked through; return the session that is made of it, None where it is thrown away."""
    from flywheel.recordings import selection
    from flywheel.recordings.recorder import recorder

    if not recorder.read_events(unfinished):
        shutil.rmtree(unfinished)
        raise DataError("nothing was done in this recording", where=unfinished, fix="it is removed: record again")
    try:
        decision = _decide(unfinished, port, yes)
    except KeyboardInterrupt:
        click.echo(f"\nit waits: {_tell_unfinished(unfinished)}", err=True)
        raise SystemExit(130) from None
    if not decision.keep:
        shutil.rmtree(unfinished)
        return None
    target = unfinished.resolve().parent / unfinished.name.removesuffix(selection.UNFINISHED)
    meta = recorder.finish_recording(unfinished, target, done=decision.done, answer=decision.answer, cut=decision.cut)
    for what, count in recorder.describe_dropped(unfinished).items():
        click.echo(f"left out: {what}, {_count(count, 'time', 'times')}: no action of the model is like it")
    shutil.rmtree(unfinished)
    return target, meta


def _choose_domain(named: str | None, fitting: str, settings: Settings | None) -> str:
    """Return the domain that was named, else the fitting one, else the workspace's first, and tell of that."""
    domains = list(settings.synthesis.domains) if settings else []
    if not domains or (named or fitting) in domains:
        return named or fitting
    if named is not None:
        fix = f"one of {', '.join(domains)}; a workspace of the profile computer has computer"
        raise BadInput(f"the workspace has no domain {named}", where="--domain", fix=fix)
    click.echo(f"domain {domains[0]}, as the workspace has no {fitting}; --domain names another: {', '.join(domains)}")
    return domains[0]


def _tell_turn(ws: Workspace, settings: Settings, target: Path) -> str:
    """Say when an iteration takes in the session `target`."""
    from flywheel.recordings import selection

    if settings.curation.reviewers:
        return "an iteration takes it in once it is accepted: see `flywheel review recordings`"
    before, limit = selection.count_chosen_before(ws, target), settings.recording.sessions_per_iteration
    if limit == 0:
        return "no iteration takes in recordings: set recording.sessions_per_iteration in params.yaml to 1 or more"
    if before < limit:
        return "the next iteration takes it in"
    waiting = _count(before, "recording comes", "recordings come")
    return f"{waiting} before it, and an iteration takes in {limit} (recording.sessions_per_iteration)"


def _tell_unfinished(recording: Path) -> str:
    """Say how a recording that is not decided on is looked through."""
    return f"flywheel record --unfinished {shlex.quote(str(recording))} looks it through"


def _count(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"


def _session_name(instruction: str) -> str:
    words = re.findall(r"[a-z0-9]+", instruction.lower())[:5]
    return "-".join([datetime.now(UTC).strftime("%Y%m%d-%H%M%S"), *words])


def _record_browser(url: str, folder: Path, options: RecordingOptions, keep_text: bool, seconds: float | None) -> None:
    from flywheel.config import SandboxSettings
    from flywheel.envs.browser.driver import chromium
    from flywheel.recordings.recorder import browser_recorder

    if missing := browser_recorder.explain_missing_display(options.display):
        raise BadInput(missing, where="flywheel record --browser", fix="start it within the desktop, or name --display")
    executable = chromium.find_chromium(SandboxSettings(), headed=True)
    sandbox = not chromium.explain_missing_chromium_sandbox(executable, SandboxSettings())
    with browser_recorder.BrowserRecorder(folder, options, url, executable, sandbox=sandbox) as going:
        why = _follow(going, options, seconds)
    _tell(going, why)


def _record(folder: Path, options: RecordingOptions, keep_text: bool, seconds: float | None) -> None:
    from flywheel.recordings.recorder import accessibility, recorder

    with contextlib.ExitStack() as stack:
        try:
            elements = stack.enter_context(accessibility.ElementWatch(keep_text))
            hidden, label = elements.in_password_field, elements.label
        except BadInput as missing:
            hidden, label = (None if keep_text else lambda *span: (True, [])), None
            kept = "all that is typed is kept" if keep_text else "nothing that is typed is kept (--keep-text keeps it)"
            click.echo(f"{missing}; so no element has a name, and {kept}", err=True)
        going = stack.enter_context(recorder.Recorder(folder, options, hidden, label))
        why = _follow(going, options, seconds)
    _tell(going, why)


def _follow(going: RecordingWriter, options: RecordingOptions, seconds: float | None) -> str:
    stop, pause = (key.title().replace(" ", "+") for key in (options.stop_key, options.pause_key))
    click.echo(f"recording into {going.folder}; {stop} or Ctrl-C stops, {pause} pauses")

    def tell(paused: bool) -> None:
        click.echo(f"paused: nothing is recorded; {pause} goes on" if paused else "recording again")

    with _stop_by_signal(going):
        return going.wait(seconds, tell)


def _tell(going: RecordingWriter, why: str) -> None:
    stats = going.stats
    late = f" ({stats.late} late)" if stats.late else ""
    hidden, left_out = _count(stats.stretches, "stretch", "stretches"), _count(stats.excluded, "input", "inputs")
    click.echo(f"{why}: {_count(stats.inputs, 'input', 'inputs')}, {_count(stats.screens, 'screen', 'screens')}{late}, "
               f"{hidden} of hidden typing, {left_out} left out")  # fmt: skip
    for what, count in Counter(stats.notes).items():
        click.echo(f"not recorded: {what}, {_count(count, 'time', 'times')}")


@contextlib.contextmanager
def _stop_by_signal(going: RecordingWriter) -> Iterator[None]:
    before = {
        number: signal.signal(number, lambda *_: going.stopped.set()) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _decide(unfinished: Path, port: int, yes: bool):
    from flywheel.recordings.recorder.review_page import Decision, review_recording

    if yes:
        return Decision(True, True)
    return asyncio.run(review_recording(unfinished, port, lambda address: click.echo(f"look it through: {address}")))
