"""The command: what a user types wrong gives one clear line and exit code 2, and leaves nothing behind."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import minimal_iterations
import pytest
from click.testing import CliRunner
from night import by_day

from flywheel import config
from flywheel.cli import main
from flywheel.config.workspace import Workspace
from flywheel.maintenance import doctor
from flywheel.pipeline import resource_plan
from flywheel.pipeline.iterations import begin_iteration
from flywheel.store import manifest, partitions
from flywheel.utils.errors import BadInput, DiskFull, FlywheelError
from flywheel.utils.files import disk_full_errors


def flywheel(*arguments, cwd=None):
    """Run the command in this process; returns (exit code, output of both streams)."""
    before = Path.cwd()
    try:
        if cwd:
            os.chdir(cwd)
        result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    finally:
        os.chdir(before)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Workspace:
    return minimal_iterations.created(tmp_path_factory.mktemp("made") / "flywheel", sessions=2)


@pytest.fixture
def workspace(made, tmp_path) -> Workspace:
    """A workspace of the small profile that a test may spoil."""
    shutil.copytree(made.root, tmp_path / "ws", symlinks=True)
    return Workspace(tmp_path / "ws")


def one_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    assert len(lines) == 1, output
    assert "Traceback" not in output
    return lines[0]


@pytest.mark.parametrize("words", [*main.iterate_commands()], ids=" ".join)
def test_every_command_has_help_with_an_example(words):
    code, output = flywheel(*words, "--help")
    assert code == 0
    assert f"flywheel {' '.join(words)} " in " ".join(output.split("Example:")[1].split()) + " "


@pytest.mark.parametrize("words", [*main.iterate_commands()], ids=" ".join)
def test_the_table_of_commands_says_what_the_command_says(words):
    group = main
    for word in words[:-1]:
        group = group.table[word]
    found = group.get_command(click.Context(group), words[-1])
    if isinstance(found, click.Group):
        assert found.get_short_help_str(200)
    else:
        assert (found.name, found.get_short_help_str(200)) == (words[-1], group.table[words[-1]][1])


# What help loads none of, and a command what it works with: each takes a twentieth of a second or more.
_SLOW_IMPORTS = """
torch transformers prefect ray dvc pandas playwright aiohttp uvicorn starlette jinja2 soundfile
rich flows flywheel.config pydantic yaml ruamel duckdb pyarrow numpy PIL httpx psutil
""".split()  # noqa: SIM905


def test_help_of_the_command_and_its_groups_loads_none_of_what_commands_work_with():
    code = f"""
import sys
from flywheel.cli import main
for words in [(), *main.iterate_commands()]:
    group = main
    for word in words:
        group = getattr(group, "table", {{}}).get(word)
    if hasattr(group, "table"):
        main([*words, "--help"], standalone_mode=False)
sys.exit(", ".join({{*sys.modules}} & {{*{_SLOW_IMPORTS!r}}}) or None)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "settings" in done.stdout
    assert "rollback" in done.stdout


_MAY_LOAD = {  # `run` until its first line
    "status": "rich flywheel.config ruamel duckdb pyarrow numpy",
    "query": "rich flywheel.config duckdb pyarrow numpy",
    "run": "rich flywheel.config pydantic yaml ruamel duckdb pyarrow numpy PIL httpx psutil flows",
}
_TELL_LOADED = """
import os, sys
from flywheel.cli import main

def tell():
    print("loaded:", *({{*sys.modules}} & {{*{heavy!r}}}), file=sys.stderr, flush=True)

if sys.argv[1] == "run":
    from flywheel.cli import console
    def first_line(screen, stage, line):
        print(stage, line, flush=True)
        tell()
        os._exit(0)
    console.RunConsole.__call__ = first_line
main(sys.argv[1:], standalone_mode=False)
tell()
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run"], "run iteration 001 of "),
        (["query", "select count(*) from trajectories"], "count_star()"),
        (["status"], "every stage is recorded in DVC and unchanged"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_command_loads_no_more_than_it_works_with(words, said, workspace, three_iterations, tmp_path):
    folder = (
        workspace.root if words == ["run"] else shutil.copytree(three_iterations, tmp_path / "three", symlinks=True)
    )
    code = _TELL_LOADED.format(heavy=_SLOW_IMPORTS)
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    loaded = {*done.stderr.split("loaded:")[1].split()}
    assert loaded - {*_MAY_LOAD[words[0]].split()} == set()


def test_tables_are_made_without_pandas_and_data_frames_with_it():
    code = """
import sys
from flywheel.store import partitions
partitions.hide_pandas_from_pyarrow()
rows = [{"iteration": 1, "tag": "ct", "step": 0, "value": 2.5}]
table = partitions.pa.Table.from_pylist(rows)
assert "pandas" not in sys.modules
assert table.to_pandas().to_dict("records") == rows
import pandas
partitions.hide_pandas_from_pyarrow()
assert sys.modules["pandas"] is pandas
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_outside_a_workspace(tmp_path):
    code, output = flywheel("run", cwd=tmp_path)
    assert code == 2
    assert "flywheel init DIR" in one_line(output)


@pytest.mark.parametrize(
    ("assignment", "said"),
    by_day(
        [
            ("rollout.n_rollouts=none", "rollout.n_rollouts"),
            ("rollout.nothing=1", "rollout.nothing"),
            ("rl.eps_high=-1", "rl.eps_high"),
            ("novalue", "--set"),
            ("merge.weights={games: 2, sites: -1}", "merge.weights must be 0 or more and sum to 1"),
        ],
        2,
    ),
)
def test_a_wrong_parameter_is_named_and_nothing_is_begun(workspace, assignment, said):
    code, output = flywheel("run", "-w", workspace.root, "--set", assignment)
    assert code == 2
    assert said in one_line(output)
    assert not workspace.frozen_params(1).exists()


def test_a_model_folder_that_is_not_one(workspace):
    (workspace.root / "models" / "base" / "model.safetensors").unlink()
    code, output = flywheel("run", "-w", workspace.root)
    assert code == 2
    assert "the model folder has no safetensors file" in one_line(output)


def test_a_model_folder_that_is_missing(workspace):
    code, output = flywheel("run", "-w", workspace.root, "--set", "policy.base=models/none")
    assert code == 2
    assert "no such model folder" in one_line(output)


def test_an_annotator_whose_name_cannot_be_stored(workspace):
    code, output = flywheel("annotate", "-w", workspace.root, "--annotator", "eve@firm.com")
    assert code == 2
    assert "no name of a reviewer: 'eve@firm.com'" in one_line(output)


def test_a_recordings_folder_that_is_missing(workspace):
    shutil.rmtree(workspace.root / "recordings")
    code, output = flywheel("run", "-w", workspace.root)
    assert code == 2
    assert "recording.folder" in one_line(output)


def test_an_iteration_that_cannot_be_next(workspace):
    code, output = flywheel("run", "-w", workspace.root, "--iteration", 5)
    assert code == 2
    assert "the next is 1" in one_line(output)


def test_an_unknown_stage(workspace):
    code, output = flywheel("stage", "polish", "--iteration", 1, "-w", workspace.root)
    assert code == 2
    assert "ingest" in one_line(output)


def test_the_name_of_a_stage_is_checked_before_what_else_is_missing():
    code, output = flywheel("stage", "rolout")
    assert code == 2
    assert "unknown stage rolout; did you mean rollout? known are ingest, " in one_line(output)


@pytest.mark.exhaustive
def test_the_command_as_a_module_of_python():
    command = [sys.executable, "-m", "flywheel", "stage", "rolout"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "did you mean rollout?" in one_line(done.stderr)
    help_text = subprocess.run([*command[:3], "stage", "--help"], capture_output=True, text=True, check=True).stdout
    assert help_text.startswith("Usage: flywheel stage ")


def test_a_stage_of_an_iteration_that_was_not_begun(workspace):
    code, output = flywheel("stage", "score", "--iteration", 1, "-w", workspace.root)
    assert code == 2
    assert "has not been begun" in one_line(output)


def test_wrong_sql(workspace):
    code, output = flywheel("query", "selct 1", "-w", workspace.root)
    assert code == 2
    one_line(output)


def test_query_of_an_empty_workspace_in_every_format(workspace, tmp_path):
    sql = "select count(*) as n from trajectories"
    assert "0" in flywheel("query", sql, "-w", workspace.root)[1]
    assert json.loads(flywheel("query", sql, "-w", workspace.root, "--format", "json")[1]) == [{"n": 0}]
    assert flywheel("query", sql, "-w", workspace.root, "--format", "csv")[1].split() == ["n", "0"]
    out = tmp_path / "n.parquet"
    assert flywheel("query", sql, "-w", workspace.root, "--format", "parquet", "-o", out)[0] == 0
    assert partitions.pq.read_table(out).to_pylist() == [{"n": 0}]
    assert flywheel("query", sql, "-w", workspace.root, "--format", "parquet")[0] == 2


def test_a_half_written_parquet_file_is_named(workspace):
    partitions.write_partition(workspace, "tasks", 1, "synthesize", [])
    path = partitions.partition_files(workspace, "tasks", 1, "synthesize")[0]
    path.write_bytes(path.read_bytes()[:100])
    code, output = flywheel("query", "from tasks", "-w", workspace.root)
    assert code == 1
    assert "tasks" in one_line(output)
    assert "dvc checkout" in one_line(output)


def test_a_half_written_parquet_file_hides_nothing_else(workspace):
    manifest.init_first_checkpoint(workspace, digest="abc")
    begin_iteration(workspace, 1, frozen_without_sessions(workspace))
    partitions.write_partition(workspace, "tasks", 1, "synthesize", [])
    path = partitions.partition_files(workspace, "tasks", 1, "synthesize")[0]
    path.write_bytes(path.read_bytes()[:100])
    assert flywheel("query", "select count(*) as n from steps", "-w", workspace.root)[0] == 0
    (found,) = doctor.check_recorded_data(workspace.root)
    assert found.state == "missing"
    assert "data/tasks/iteration=001/stage=synthesize" in found.detail


def test_a_broken_chain_of_manifests_is_told(workspace):
    manifest.init_first_checkpoint(workspace, digest="abc")
    begin_iteration(workspace, 1, frozen_without_sessions(workspace))
    manifest.write_manifest(workspace, 1, window=1)
    workspace.promotion(1).write_text("{}")
    assert doctor.check_recorded_data(workspace.root) == []
    workspace.manifest(0).write_text(workspace.manifest(0).read_text() + "\n")
    (found,) = doctor.check_recorded_data(workspace.root)
    assert found.state == "missing"
    assert found.detail.startswith("iterations/000/manifest.json: the manifest changed after iteration 001")


@pytest.mark.parametrize("sql", by_day(["", ";", "/* nothing */"]))
def test_an_empty_query(workspace, sql):
    code, output = flywheel("query", sql, "-w", workspace.root)
    assert code == 2
    assert "the query is empty" in one_line(output)


def test_an_output_path_that_is_not_there(workspace, tmp_path):
    out = tmp_path / "no" / "folder" / "x.csv"
    code, output = flywheel("query", "select 1", "-w", workspace.root, "--format", "csv", "-o", out)
    assert code == 2
    assert str(out) in one_line(output)


@pytest.mark.exhaustive
def test_a_workspace_that_cannot_be_written_is_one_line(workspace, monkeypatch):
    """The kernel's own error, as a read-only file system gives it: permissions do not bind the superuser."""

    def refused(self, *_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))

    begin_iteration(workspace, 1, frozen_without_sessions(workspace))
    with monkeypatch.context() as patient:
        patient.setattr(Path, "mkdir", refused)
        for command in (["run"], ["iteration", "report"], ["iteration", "drop", "--yes"]):
            code, output = flywheel(*command, "-w", workspace.root)
            assert code == 1, command
            assert "Read-only file system" in one_line(output)
        code, output = flywheel("status", "-w", workspace.root)
        assert code == 0
        assert "what changed is not looked at: Read-only file system" in output
        assert flywheel("query", "from iterations", "-w", workspace.root)[0] == 0


def frozen_without_sessions(ws: Workspace):
    return config.load_settings(ws.params, {"recording.sessions_per_iteration": 0})


@pytest.mark.parametrize(
    "command",
    [
        ["init"],
        ["doctor", "-w"],
        ["model", "pretrain", "--out"],
        ["env", "page", "try", "miniwob", "--screenshot"],
        ["run", "-w"],
    ],
    ids=lambda command: command[0],
)
@pytest.mark.parametrize(
    "place", by_day(["file/in it", "x" * 300, "/proc/none/in it"]), ids=["file", "long", "no folder"]
)
def test_a_place_where_nothing_can_be_is_one_line(tmp_path, command, place):
    (tmp_path / "file").write_text("a file")
    code, output = flywheel(*command, tmp_path / place)
    assert code == 2
    assert place in one_line(output)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "No such command"),
        (["rnu"], "did you mean `flywheel run`?"),
        (["--nothing"], "No such option"),
        (["query"], "Missing argument"),
        (["query", "select 1", "--format", "xml"], "'xml' is not one of"),
        (["stage", "route"], "Missing option"),
        (["stage"], "Missing argument"),
        (["env", "page", "try", "miniwob", "--seed", "-1"], "not in the range"),
        (["env", "page", "nothing"], "No such command"),
    ],
    ids=" ".join,
)
def test_a_command_that_is_typed_wrong_is_one_line(words, said):
    code, output = flywheel(*words)
    assert code == 2
    line = one_line(output)
    assert said in line
    assert "--help" in line


def test_init_refuses_a_folder_that_holds_something(tmp_path):
    (tmp_path / "mine").write_text("mine")
    code, output = flywheel("init", tmp_path)
    assert code == 2
    assert "not empty" in one_line(output)
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.parametrize(
    ("profile", "wanted"),
    by_day(
        [
            ("small", None),
            ("laptop", None),
            ("evening", "--params params.yaml --first 144 --count 864"),
            ("overnight", "--params params.yaml --count 1200"),  # the shipped ones are of fewer worlds
            ("computer", "--world chores --count 1500"),
        ]
    ),
)
def test_init_says_how_many_recordings_the_profile_lacks(tmp_path, profile, wanted):
    code, output = flywheel("init", tmp_path / "new", "--profile", profile)
    assert code == 0
    assert ("flywheel.recordings.synthetic." in output) == bool(wanted)
    if wanted:
        assert wanted in output


def test_init_refuses_an_unknown_profile_and_makes_nothing(tmp_path):
    assert flywheel("init", tmp_path / "new", "--profile", "huge")[0] == 2
    assert not (tmp_path / "new").exists()


def test_clean_leaves_what_runs_did_not_make(workspace):
    partitions.write_partition(workspace, "tasks", 1, "synthesize", [])
    (workspace.root / "models" / "iteration=001").mkdir()
    code, _ = flywheel("workspace", "reset", "--yes", "-w", workspace.root)
    assert code == 0
    assert not workspace.data.exists()
    assert (workspace.root / "models" / "base" / "model.safetensors").is_file()
    assert (workspace.root / "params.yaml").is_file()
    assert "nothing to remove" in flywheel("workspace", "reset", "--yes", "-w", workspace.root)[1]


@pytest.mark.exhaustive
def test_doctor_tells_programs_what_is_missing(workspace):
    code, output = flywheel("doctor", "--json", "-w", workspace.root)
    states = {finding["name"]: finding["state"] for finding in json.loads(output)}
    assert states["prefect"] == "ok"
    assert states["workspace"] == "ok"
    assert states["Chromium's own sandbox"] in ("ok", "optional")
    assert code == ("missing" in states.values())


@pytest.mark.parametrize(
    ("cuda", "found", "fix"),
    [(None, "knows no CUDA", "cu130"), ("13.0", "torch cannot use it", "a driver for CUDA 13.0")],
)
def test_doctor_tells_why_torch_finds_no_gpu_where_one_is(monkeypatch, tmp_path, cuda, found, fix):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.version.cuda", cuda)
    monkeypatch.setattr(resource_plan, "GPU_DEVICES", (str(tmp_path / "none"),))
    assert doctor._gpu().detail == "none: everything runs on the CPU"
    monkeypatch.setattr(resource_plan, "GPU_DEVICES", (str(tmp_path),))
    told = doctor._gpu()
    assert (told.state, found in told.detail, fix in told.fix) == ("optional", True, True)


def test_a_full_disk_is_named():
    with (
        pytest.raises(DiskFull, match="the disk is full; what was finished is kept"),
        disk_full_errors(Path("/dev/full")),
        Path("/dev/full").open("w") as full,
    ):
        full.write("x" * 100_000)


def test_errors_survive_a_trip_to_another_process():
    import pickle

    error = pickle.loads(pickle.dumps(BadInput("what", where="there", fix="do this")))
    assert (type(error), str(error)) == (BadInput, "what (there); do this")
    assert isinstance(error, FlywheelError)
