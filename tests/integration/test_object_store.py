"""The copy elsewhere in an object store: an S3 server on this machine, asked by DVC as any other."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys

import object_store
import pytest
import s3fs
from night import by_day
from object_store import BUCKET, Store
from processes import PATIENCE_S

from flywheel.config.workspace import Workspace
from flywheel.store.versioning import backup, dvc_files, stage_records
from flywheel.utils.errors import BadInput, DataError
from flywheel.utils.files import write_text
from flywheel.utils.progress import replace_listener

URL = f"s3://{BUCKET}/mine"


@pytest.fixture(scope="module")
def served():
    with object_store.serving() as store:
        yield store


@pytest.fixture
def store(served, monkeypatch, tmp_path):
    """With nothing in it, and this process as its user."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))  # those of the user are none of ours
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    served.clear()
    for name, value in served.environment.items():
        monkeypatch.setenv(name, value)
    asked_anew()
    yield served
    asked_anew()


def asked_anew() -> None:
    """Keys and address are read where a store is first asked, once a process."""
    s3fs.S3FileSystem.clear_instance_cache()


STAGES = """\
stages:
  rollout:
    wdir: ../..
    cmd: flywheel stage rollout --iteration 001
    outs:
    - data/steps/iteration=001/stage=rollout
  runs:
    wdir: ../..
    cmd: flywheel stage runs --iteration 001
    outs:
    - data/runs/iteration=001/stage=runs
"""


@pytest.fixture
def ws(tmp_path) -> Workspace:
    """One iteration of two stages, which are recorded."""
    ws = Workspace(tmp_path / "ws")
    stage_records.init_dvc_project(ws)
    write_text(dvc_files.dvc_yaml_path(ws, 1), STAGES)
    for table, stage in (("steps", "rollout"), ("runs", "runs")):
        write_text(ws.partition(table, 1, stage) / "_parts.json", f'{{"of": "{table}"}}')
        stage_records.record_stage(ws, stage, 1)
    return ws


def content(ws: Workspace) -> dict[str, str]:
    return {ws.relative(path): path.read_text() for path in ws.data.rglob("*") if path.is_file()}


def lose(ws: Workspace) -> None:
    """All that git does not keep."""
    shutil.rmtree(ws.data)
    shutil.rmtree(ws.root / ".dvc" / "cache")


def push(ws: Workspace, url: str = URL) -> tuple[list[int], list[str]]:
    lines: list[str] = []
    with replace_listener(lambda stage, line: lines.append(line)):
        return backup.push_iterations(ws, url), lines


def test_what_was_pushed_comes_back_from_the_store_alone(store, ws):
    before = content(ws)
    pushed, (line,) = push(ws)
    assert (pushed, line.startswith(f"iteration 001 copied to {URL}: 0.0 MB, of which 4 files were new")) == ([1], True)
    assert store.names()
    assert all(name.startswith("mine/files/md5/") for name in store.names())
    assert push(ws) == ([], [f"{URL} has all that is recorded"])
    lose(ws)
    assert [one.repair_command for one in backup.find_damaged_outputs(ws)] == [
        "`dvc pull`"
    ] * 2  # what `flywheel status` says
    assert len(backup.restore_damaged_outputs(ws)) == 2  # what `flywheel run` does first
    assert content(ws) == before
    lose(ws)
    subprocess.run([sys.executable, "-m", "dvc", "pull", "--quiet"], cwd=ws.root, check=True, timeout=PATIENCE_S)
    assert content(ws) == before


@pytest.mark.exhaustive
def test_keys_from_a_file_and_the_address_from_dvcs_own_settings_do_too(store, ws, monkeypatch, tmp_path):
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    keys = f"[default]\naws_access_key_id = {store.key}\naws_secret_access_key = {store.secret}\n"
    (tmp_path / "credentials").write_text(keys)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    backup.configure_remote(ws, URL)
    with (ws.root / ".dvc" / "config").open("a") as config:
        config.write(f"    endpointurl = {store.url}\n")  # as `dvc remote modify flywheel endpointurl` does
    assert push(ws)[0] == [1]
    assert store.url in (ws.root / ".dvc" / "config").read_text()
    lose(ws)
    assert backup.restore_damaged_outputs(ws)


HINDERED = {
    "no keys": ("AWS_ACCESS_KEY_ID", None, r"locate credentials.*AWS_ACCESS_KEY_ID and"),
    "another user": ("AWS_ACCESS_KEY_ID", "AKIANOBODY", r"see its keys"),
    "another secret": ("AWS_SECRET_ACCESS_KEY", "s3cret-of-another", r"see its keys"),
    "no bucket": ("url", "s3://no-such-bucket/mine", r"bucket does not exist.*make the bucket"),
    "no server": ("AWS_ENDPOINT_URL", "http://127.0.0.1:9", r"see whether the store is there"),
}


@pytest.mark.parametrize("name", by_day(HINDERED))
def test_a_store_that_cannot_be_used_is_told_in_a_line_and_nothing_is_lost(store, ws, name, monkeypatch, capfd):
    before = content(ws)
    variable, value, words = HINDERED[name]
    with monkeypatch.context() as spoilt:
        if value is None:
            spoilt.delenv("AWS_SECRET_ACCESS_KEY")
            spoilt.delenv(variable)
        elif variable != "url":
            spoilt.setenv(variable, value)
        url = value if variable == "url" else URL
        pushed, (line,) = push(ws, url)
        assert pushed == []
        with pytest.raises(AssertionError, match=words):
            raise AssertionError(line)
        assert line.startswith("not copied to the remote: ")
        assert url in line
        assert "\n" not in line
        assert store.secret not in line
        assert "s3cret-of-another" not in line
    assert capfd.readouterr().err == ""
    asked_anew()
    assert content(ws) == before
    assert push(ws)[0] == [1]


@pytest.mark.exhaustive
def test_a_store_that_is_gone_when_files_are_wanted_says_so_and_the_same_command_goes_on(store, ws, monkeypatch):
    before = content(ws)
    push(ws)
    lose(ws)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    asked_anew()
    with pytest.raises(DataError, match=r"cannot be brought back: .*127\.0\.0\.1:9.*dvc pull") as caught:
        backup.restore_damaged_outputs(ws)
    assert "\n" not in str(caught.value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
    asked_anew()
    assert backup.restore_damaged_outputs(ws)
    assert content(ws) == before


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s4://bucket/data", "DVC knows no s4://.*a folder, or one of .*s3"),
        ("memory://data", "DVC knows no memory://"),
        ("hdfs://there/data", r"hdfs:// is not installed.*pip install dvc-hdfs"),
        ("ssh://me:secret@there/data", "a password stands in the address.*--local"),
    ],
)
def test_a_store_that_cannot_be_meant_is_refused_before_anything_begins(url, words, tmp_path):
    with pytest.raises(BadInput, match=words) as caught:
        backup.check_remote_url(Workspace(tmp_path), url)
    assert "versioning.remote" in str(caught.value)
    assert "me:secret" not in str(caught.value)


def test_without_the_extra_an_s3_store_says_what_to_type(monkeypatch, tmp_path):
    for url in ("", "/folder", "s3://bucket/data"):
        backup.check_remote_url(Workspace(tmp_path), url)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"pip install -e '\.\[s3\]'"):
        backup.check_remote_url(Workspace(tmp_path), "s3://bucket/data")


@pytest.mark.exhaustive
def test_the_store_asks_for_keys(store: Store):
    """Else the tests above would prove nothing."""
    other = Store(store.url, store.key, "another", store.process)
    with pytest.raises(Exception, match="SignatureDoesNotMatch"):
        other.client("s3").list_objects_v2(Bucket=BUCKET)
