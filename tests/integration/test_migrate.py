"""`flywheel workspace migrate`: a workspace of an earlier version is refused, brought up to date, and goes on."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from aged_tables import age_tables
from click.testing import CliRunner
from processes import PATIENCE_S

from flywheel import config
from flywheel.cli import main
from flywheel.config import renamed
from flywheel.config.workspace import FORMAT, Workspace
from flywheel.maintenance import migrate, verify
from flywheel.store.versioning import dvc_files, git_tags, stage_records
from flywheel.utils.errors import BadInput

DVC = Path(sys.executable).with_name("dvc")


def aged(ws: Workspace) -> Workspace:
    """As an earlier version left it: its names and values in params.yaml, in the copies, and in what DVC recorded."""

    def before(block: str, values: dict) -> dict:
        names = {new: old.partition(".")[2] for old, new in renamed.RENAMED.items()}
        words = {name: {new: old for old, new in known.items()} for name, known in renamed.RENAMED_VALUES.items()}
        return {
            names.get(f"{block}.{leaf}", leaf): words.get(f"{block}.{leaf}", {}).get(str(value), value)
            for leaf, value in values.items()
        }

    def file_before(path: Path) -> None:
        raw = yaml.safe_load(path.read_text())
        told = {name: before(name, one) if isinstance(one, dict) else one for name, one in raw.items()}
        path.write_text(yaml.safe_dump(told, sort_keys=False))

    ws.params.write_text(config.dump_settings(config.load_settings(ws.params)))
    file_before(ws.params)
    for k in stage_records.list_iterations(ws):
        file_before(ws.frozen_params(k))
        path = dvc_files.dvc_lock_path(ws, k)
        entries = dvc_files.read_dvc_lock(path)
        for entry in entries.values():
            for blocks in entry.get("params", {}).values():
                blocks |= {name: before(name, one) for name, one in blocks.items() if isinstance(one, dict)}
        path.write_text(dvc_files.dump_dvc_lock(entries))
    ws.iterations_index.write_text(ws.iterations_index.read_text().replace(f"format: {FORMAT}\n", ""))
    return ws


@pytest.fixture
def old(three_iterations: Path, tmp_path: Path) -> Workspace:
    ws = Workspace(shutil.copytree(three_iterations, tmp_path / "ws", symlinks=True))
    age_tables(ws)
    return aged(ws)


def flywheel(ws: Workspace, *words: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, [*words, "--workspace", str(ws.root)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def is_clean(ws: Workspace) -> bool:
    done = subprocess.run([DVC, "status"], cwd=ws.root, check=True, capture_output=True, text=True, timeout=PATIENCE_S)
    return "iterations/" not in done.stdout and not stage_records.changed_stages(ws)


def test_other_commands_say_what_to_type(old):
    for words in (("status",), ("workspace", "verify"), ("query", "SELECT 1"), ("settings",), ("run",)):
        code, output = flywheel(old, *words)
        assert (code, len(output.splitlines())) == (2, 1), words
        assert "of an earlier version of flywheel" in output, words
        assert "`flywheel workspace migrate`" in output, words


@pytest.mark.exhaustive
def test_what_was_recorded_stands_by_the_names_of_today(old, three_iterations):
    code, output = flywheel(old, "workspace", "migrate")
    assert code == 0
    for said in ("params.yaml: policy.space -> ", "iterations/001/params.yaml: ", "001/dvc.lock: ", "format 1 -> "):
        assert said in output
    assert stage_records.load_iteration_params(old, 1) == stage_records.load_iteration_params(
        Workspace(three_iterations), 1
    )
    assert is_clean(old)
    assert list(verify.find_faults(old)) == list(verify.find_faults(Workspace(three_iterations)))
    assert flywheel(old, "status")[0] == 0


@pytest.mark.exhaustive
def test_a_second_time_there_is_nothing_to_do(old):
    flywheel(old, "workspace", "migrate")
    before = {path: path.read_bytes() for path in old.root.rglob("*") if path.suffix in (".yaml", ".lock")}
    assert flywheel(old, "workspace", "migrate") == (0, "nothing to do: the workspace is up to date\n")
    assert before == {path: path.read_bytes() for path in before}


@pytest.mark.exhaustive
def test_a_killed_one_goes_on(old, three_iterations):
    """Killed after each file in turn."""
    for written in range(1, 9):
        lines = migrate.migrate_workspace(old)
        try:
            for _ in range(written):
                next(lines)
        except StopIteration:
            break
        lines.close()
    assert old.read_format() == FORMAT
    assert stage_records.load_iteration_params(old, 1) == stage_records.load_iteration_params(
        Workspace(three_iterations), 1
    )
    assert is_clean(old)


@pytest.mark.exhaustive
def test_what_was_set_aside_comes_along(old):
    """And stands on what stayed when it is brought back."""
    aside = Workspace(old.state / "aside" / "after-002-1")
    for path in (*old.data.glob("*/iteration=003"), old.root / "models" / "iteration=003", old.iteration(3)):
        target = aside.root / path.relative_to(old.root)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    old.iterations_index.write_text("newest: ['002']\n")
    code, output = flywheel(old, "workspace", "migrate")
    assert code == 0
    for said in ("params.yaml: ", "dvc.lock: ", ": "):
        assert f".flywheel/aside/{aside.root.name}/iterations/003" + "/" * (said != ": ") + said in output
    assert flywheel(old, "iteration", "rollback", "--undo")[0] == 0
    assert not aside.root.exists()
    assert is_clean(old)
    assert list(verify.find_faults(old)) == []


@pytest.mark.exhaustive
def test_a_workspace_in_git_is_committed(old):
    git_tags.init_git(old.root)
    old.params.write_text(old.params.read_text().replace("git: false", "git: true"))
    flywheel(old, "workspace", "migrate")
    told = subprocess.run(
        ["git", "-C", old.root, "log", "-1", "--format=%s", "--stat"], check=True, capture_output=True, text=True
    ).stdout
    assert told.startswith("flywheel workspace migrate\n")
    assert "iterations/001/params.yaml" in told


@pytest.mark.exhaustive
def test_a_workspace_of_a_later_version_is_left_alone(old):
    old.iterations_index.write_text(f"format: {FORMAT + 1}\nnewest: ['001']\n")
    for words in (("workspace", "migrate"), ("status",)):
        code, output = flywheel(old, *words)
        assert (code, "update flywheel" in output) == (2, True)


@pytest.mark.exhaustive
def test_a_file_that_cannot_be_read_is_named(old):
    old.params.write_text("rl: [\n")
    with pytest.raises(BadInput, match=r"not valid YAML.*params\.yaml"):
        list(migrate.migrate_workspace(old))


def test_the_format_counts_the_steps_and_the_times_that_tables_got_columns():
    assert len(migrate.STEPS) + 6 == FORMAT


@pytest.mark.exhaustive
def test_the_build_step_of_prefect_is_where_it_lies_now(old):
    path = old.root / "prefect.yaml"
    path.write_text("build:\n  - flows.code.fingerprint: {id: code}\n")
    flywheel(old, "workspace", "migrate")
    assert path.read_text() == "build:\n  - flows.code_version.code_version_build_step: {id: code}\n"


@pytest.mark.exhaustive
def test_the_command_of_dvc_is_the_one_of_today(old):
    path = old.root / "dvc.yaml"
    path.write_text(path.read_text().replace("flywheel iteration report", "flywheel report"))
    assert "dvc.yaml: flywheel report -> flywheel iteration report" in flywheel(old, "workspace", "migrate")[1]
    assert path.read_text() == dvc_files.WORKSPACE_DVC_YAML
    assert is_clean(old)
