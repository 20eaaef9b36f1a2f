"""Chromium's own sandbox: on where it works, off and said so where it does not, required where that is asked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from browser_pages import SETTINGS

from flywheel.envs.browser.driver import chromium
from flywheel.envs.browser.driver.chromium import Chromium
from flywheel.utils.errors import EnvError

REQUIRED = SETTINGS.model_copy(update={"chromium_sandbox": "required"})


def starts(shell) -> int:
    return len((shell.parent / "starts").read_text().splitlines())


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """Chromium on a machine where it does not start with its sandbox, and an ordinary user."""
    shell = tmp_path / "chromium"
    shell.write_text(
        f"#!/bin/sh\necho >> {tmp_path}/starts\n"
        f'case "$*" in *--no-sandbox*) exec {chromium.find_chromium(SETTINGS)} "$@";; esac\nexit 1\n'
    )
    shell.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    yield shell
    chromium._executables_without_sandbox.discard(shell)


async def test_a_browser_that_does_not_start_with_its_sandbox_starts_without_and_that_is_said(shell):
    """And what was found is not tried again at each start."""
    assert chromium.explain_missing_chromium_sandbox(shell, SETTINGS) == ""
    for count in (2, 3):
        browser = await Chromium.start(shell, SETTINGS.model_copy(update={"frames": "screenshot"}))
        await browser.close()
        assert starts(shell) == count
    assert chromium.explain_missing_chromium_sandbox(shell, SETTINGS) == chromium.SANDBOX_FAILED
    assert "user namespaces" in chromium.suggest_chromium_sandbox_fix(chromium.SANDBOX_FAILED)


async def test_a_sandbox_that_is_required_is_not_done_without(shell, monkeypatch):
    with pytest.raises(EnvError, match="did not start"):
        await Chromium.start(shell, REQUIRED)
    assert starts(shell) == 1
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(EnvError, match=r"sandbox\.chromium_sandbox.*root.*run flywheel as another user"):
        await Chromium.start(chromium.find_chromium(REQUIRED), REQUIRED)


async def test_a_browser_has_none_of_our_secrets(monkeypatch):
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "s3cret")
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
    browser = await Chromium.start(chromium.find_chromium(SETTINGS), SETTINGS)
    environment = Path(f"/proc/{browser.pid}/environ").read_text()  # noqa: ASYNC240
    await browser.close()
    assert "s3cret" not in environment
    assert "TZ=UTC" in environment


def test_off_is_off():
    off = SETTINGS.model_copy(update={"chromium_sandbox": "off"})
    assert chromium.explain_missing_chromium_sandbox(chromium.find_chromium(off), off)
