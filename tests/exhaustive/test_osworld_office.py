"""OSWorld's tasks are played in real applications, and desktop-env's functions judge what anyone may have written.

These tests need what `make osworld` installs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import desktops
import pytest
from osworlds import example, gold, mine, opened

from flywheel.agent.actions import Finished, Hotkey, Type
from flywheel.envs import registry
from flywheel.envs.computer.checker import CHECKER_HOME, CheckerFailed
from flywheel.envs.computer.home import MachineHome
from flywheel.envs.computer.osworld import official
from flywheel.envs.computer.osworld.runner import judge_osworld_metrics
from flywheel.envs.registry import open_environments
from flywheel.envs.tasks.drawing import make_task

ENVIRONMENT = official.find_environment()
pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.timeout(600),
    pytest.mark.skipif(ENVIRONMENT is None or not shutil.which("libreoffice"), reason="make osworld"),
]
_SECONDS = 240.0


def write_with_theirs(code: str, path: Path) -> None:
    """Write a document with a library of desktop-env's environment. code: names the file `path`."""
    subprocess.run([ENVIRONMENT / "bin/python", "-c", f"path = {str(path)!r}\n{code}"], check=True, timeout=120)


def write_sheet(path: Path, rows: list[list]) -> None:
    lines = [f"b.active.append({row!r})" for row in rows]
    write_with_theirs("\n".join(["import openpyxl; b = openpyxl.Workbook()", *lines, "b.save(path)"]), path)


@desktops.needed
@pytest.mark.parametrize("metrics", ["own", "official"])
async def test_a_spreadsheet_is_filled_in_by_keys_and_saved_by_the_tasks_own_steps(tmp_path, metrics):
    with opened(tmp_path) as workspace:
        write_sheet(workspace.root / "files/sums.xlsx", [["a", "b", "sum"], [1, 2], [3, 4]])
        write_sheet(workspace.root / "files/gold.xlsx", [["a", "b", "sum"], [1, 2, 3], [3, 4, 7]])
        download = {"files": [{"url": "https://x.org/sums.xlsx", "path": "/home/user/sums.xlsx"}]}
        config = [
            {"type": "download", "parameters": download},
            {"type": "open", "parameters": {"path": "/home/user/sums.xlsx"}},
        ]
        save = ["python", "-c", "import pyautogui; pyautogui.hotkey('ctrl', 's')"]
        after = [
            {"type": "activate_window", "parameters": {"window_name": "sums.xlsx - LibreOffice Calc", "strict": True}},
            {"type": "sleep", "parameters": {"seconds": 0.5}},
            {"type": "execute", "parameters": {"command": save}},
            {"type": "sleep", "parameters": {"seconds": 1.0}},
        ]
        rules = [{"type": "sheet_data", "sheet_idx0": 0, "sheet_idx1": "EI0"}]
        evaluator = {"func": "compare_table", "result": mine("sums.xlsx"), "expected": gold("gold.xlsx")}
        workspace.add("it", example({**evaluator, "options": {"rules": rules}, "postconfig": after}, config))
        workspace.said |= {"metrics": metrics, "seconds": _SECONDS, "max_steps": 30}
        workspace.load("computer")
        task = make_task(registry.get_task_suite("theirs"), "tasks_it", 1, 1, "train")
        settings = desktops.settings(warm=0, timeout_s=_SECONDS + 30, width=1280, height=800)
        typed = [Hotkey(("ctrl", "home")), Hotkey(("right",)), Hotkey(("right",)), Hotkey(("down",))]
        async with open_environments(settings, [task]) as environments, environments.env(task) as env:
            for actions, score in (([], 0.0), ([*typed, Type("=A2+B2\n=A3+B3\n")], 1.0)):
                await env.reset(task, 1)
                for action in actions:
                    await env.step(action)
                last = await env.step(Finished(""))
                assert last.reward == score, last.info["state"]["checked"]


def _entity_document(path: Path) -> None:
    """A document with the text of the gold's own file, by a reference to it: no parser may follow it."""
    write_with_theirs("import docx; docx.Document().save(path)", path)
    entity = '<?xml version="1.0"?><!DOCTYPE d [<!ENTITY x SYSTEM "file:///opt/checker/0-gold.txt">]>'
    space = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    body = f'{entity}<w:document xmlns:w="{space}"><w:body><w:p><w:r><w:t>&x;</w:t></w:r></w:p></w:body></w:document>'
    _replace_member(path, "word/document.xml", body.encode())


def _huge_document(path: Path) -> None:
    write_with_theirs("import docx; docx.Document().save(path)", path)
    space = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    paragraph = b"<w:p><w:r><w:t>a</w:t></w:r></w:p>"
    body = f'<w:document xmlns:w="{space}"><w:body>'.encode() + paragraph * 5_000_000 + b"</w:body></w:document>"
    _replace_member(path, "word/document.xml", body)


def _nested_document(path: Path) -> None:
    write_with_theirs("import docx; docx.Document().save(path)", path)
    _replace_member(path, "word/document.xml", b"<a>" * 1_000_000)


def _replace_member(path: Path, name: str, content: bytes) -> None:
    with zipfile.ZipFile(path) as book:
        members = {one: book.read(one) for one in book.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as book:
        for one, old in members.items():
            book.writestr(one, content if one == name else old)


@desktops.needed
@pytest.mark.parametrize("write", [_entity_document, _huge_document, _nested_document])
async def test_a_hostile_document_gets_no_score(tmp_path, write):
    """It scores 0, or the judge fails within its limits, which is never a reward."""
    home = tmp_path / "home"
    home.mkdir()
    write(home / "it.docx")
    write_with_theirs("import docx; d = docx.Document(); d.add_paragraph('gold'); d.save(path)", tmp_path / "gold.docx")
    files = {"0-gold.docx": (tmp_path / "gold.docx").read_bytes(), "0-gold.txt": b"gold"}
    metric = {
        "func": "compare_docx_files", "module": official.list_functions()["compare_docx_files"], "options": {},
        "result": {"file": f"{CHECKER_HOME}/it.docx", "name": "it.docx"},
        "expected": {"file": "/opt/checker/0-gold.docx", "name": "gold.docx"},
    }  # fmt: skip
    right = {**metric, "result": metric["expected"]}
    assert await judge(home, metric, 60.0, files) in (0.0, None)
    assert await judge(home, right, 240.0, files) == 1.0


async def judge(home: Path, metric: dict, seconds: float, files: dict[str, bytes]) -> float | None:
    """The score; None where the judge fails within its limits."""
    opened_home = MachineHome(os.open(home, os.O_RDONLY | os.O_DIRECTORY))
    try:
        return (await judge_osworld_metrics([metric], "and", seconds, opened_home, 2**28, files)).score
    except CheckerFailed:
        return None
    finally:
        opened_home.close()
