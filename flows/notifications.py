"""Notify people by a command, a web hook, mail or a notification block of Prefect's (`operations.notify_*`)."""

from __future__ import annotations

import json
import logging
import os
import smtplib
import ssl
import subprocess
from email.message import EmailMessage
from typing import Literal
from urllib.parse import SplitResult, unquote, urlsplit

import httpx

from flywheel.config import OperationsSettings
from flywheel.config.workspace import Workspace
from flywheel.utils.progress import announce

Event = Literal["done", "failed", "crashed", "stopped", "waiting", "params", "disk"]
_DEADLINE_S = 30
log = logging.getLogger(__name__)


def notify(ws: Workspace, rules: OperationsSettings, event: Event, text: str) -> None:
    """Notify people of an event; a failure to do so is reported with the run's progress and stops nothing.

    Does nothing where the settings name nobody. rules: block `operations`, which names command, address and block; each
    has 30 seconds. event: its kind. text: what happened.
    """
    if rules.notify_command:
        _run_command(ws, rules.notify_command, event, text)
    if rules.notify_url:
        _send(ws, rules.notify_url, event, text)
    if rules.notify_block:
        _call_block(ws, rules.notify_block, event, text)


def _run_command(ws: Workspace, command: str, event: str, text: str) -> None:
    variables = {**os.environ, "FLYWHEEL_EVENT": event, "FLYWHEEL_TEXT": text}
    try:
        done = subprocess.run(
            command,
            shell=True,
            input=json.dumps(_message(ws, event, text)),
            text=True,
            env=variables,
            cwd=ws.root,
            capture_output=True,
            timeout=_DEADLINE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        _not_told("operations.notify_command", error)
        return
    if done.returncode:
        _not_told("operations.notify_command", f"exit code {done.returncode}: {done.stderr.strip()[-200:]}")


def _message(ws: Workspace, event: str, text: str) -> dict[str, str]:
    return {"event": event, "text": text, "workspace": str(ws.root)}


def _send(ws: Workspace, url: str, event: str, text: str) -> None:
    """Send the event to a web hook or by mail. The address may hold a secret, so no message shows it."""
    try:
        address = os.path.expandvars(url)
        parts = urlsplit(address)
        if parts.scheme in ("http", "https"):
            httpx.post(address, json=_message(ws, event, text), timeout=_DEADLINE_S).raise_for_status()
        elif parts.scheme in ("smtp", "smtps"):
            _mail(parts, event, f"{text}\n\n{ws.root}\n")
        else:
            _not_told("operations.notify_url", "its variable is not set, or holds neither http(s):// nor smtp(s)://")
    except httpx.HTTPStatusError as error:
        _not_told("operations.notify_url", f"it answers {error.response.status_code}: {error.response.text[:200]}")
    except (OSError, ValueError, httpx.HTTPError, httpx.InvalidURL, smtplib.SMTPException) as error:
        _not_told("operations.notify_url", type(error).__name__)


def _mail(parts: SplitResult, event: str, text: str) -> None:
    mail = EmailMessage()
    to = unquote(parts.path.lstrip("/"))
    mail["Subject"], mail["To"], mail["From"] = f"flywheel: {event}", to, to
    mail.set_content(text)
    tls = parts.scheme == "smtps"
    kind, port = (smtplib.SMTP_SSL, 465) if tls else (smtplib.SMTP, 25)
    with kind(parts.hostname, parts.port or port, timeout=_DEADLINE_S) as server:
        server.ehlo()
        if not tls and server.has_extn("starttls"):
            server.starttls(context=ssl.create_default_context())
        if parts.username:
            server.login(unquote(parts.username), unquote(parts.password or ""))
        server.send_message(mail)


def _call_block(ws: Workspace, name: str, event: str, text: str) -> None:
    from prefect.blocks.core import Block

    try:
        block = Block.load(name, _sync=True)
        block.notify(f"{text}\n{ws.root}", subject=f"flywheel: {event}", _sync=True)
    except Exception as error:  # somebody else's block may raise anything
        _not_told(f"operations.notify_block: {name}", error)


def _not_told(where: str, why: object) -> None:
    announce("notify", f"nobody could be told ({where}): {why}")
    log.warning("nobody could be told (%s): %s", where, why)
