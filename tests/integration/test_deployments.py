"""prefect.yaml, what it names, and the image: held against Prefect's own models and against what flywheel declares."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import prefect
import pytest
import yaml
from prefect.cli.deploy._config import _merge_with_default_deploy_config
from prefect.cli.deploy._models import DeploymentConfig, PrefectYamlModel, RawScheduleConfig, WorkPoolConfig
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import validate

from flows import code_version, iteration
from flows.ops import deployments
from flywheel.cli import scaffold
from flywheel.utils.errors import BadInput

# Of a deployment: its pool's type.
POOLS = {"process": "process", "checkup": "process", "docker": "docker", "kubernetes": "kubernetes"}


@pytest.fixture(scope="module")
def raw(project) -> dict:
    return yaml.safe_load((project / "prefect.yaml").read_text())


@pytest.fixture(params=POOLS)
def deployment(request, raw) -> dict:
    (found,) = [one for one in raw["deployments"] if one["name"] == request.param]
    return found


def test_prefect_knows_every_field(raw):
    """It passes over those that it does not know in silence."""
    PrefectYamlModel.model_validate(raw)
    assert set(raw) - {"definitions"} <= set(PrefectYamlModel.model_fields)
    assert [one["name"] for one in raw["deployments"]] == [*POOLS]
    for one in raw["deployments"]:
        assert set(one) <= set(DeploymentConfig.model_fields) - {"schedule"}  # deprecated
        assert set(one["work_pool"]) <= set(WorkPoolConfig.model_fields)


def test_a_deployment_is_what_flywheel_up_would_make(deployment, project):
    flow = load_flow_from_entrypoint(deployment["entrypoint"], use_placeholder_flow=False)
    entrypoint = deployments.CHECKUP if deployment["name"] == "checkup" else deployments.ENTRYPOINT
    ours = load_flow_from_entrypoint(str(project / entrypoint), use_placeholder_flow=False)
    assert (flow.name, flow.fn.__module__) == (ours.name, f"flows.{flow.name}")
    assert parameter_schema(flow) == parameter_schema(ours)
    limit = deployments._ONE_AT_A_TIME
    assert deployment["concurrency_limit"] == {
        "limit": limit.limit,
        "collision_strategy": limit.collision_strategy.value,
    }
    validate(deployment["parameters"], parameter_schema(flow).model_dump(), raise_on_error=True)
    assert deployment["version"] == "{{ code.version }}"
    assert _merge_with_default_deploy_config(deployment)["work_pool"]["work_queue_name"] is None


def test_the_schedules_that_it_shows_are_some(project):
    """They stand in a comment: nobody's flywheel begins by itself."""
    text = re.sub(r"^    # (schedules:|  - \{)", r"    \1", (project / "prefect.yaml").read_text(), flags=re.M)
    found = yaml.safe_load(text)["deployments"][0]["schedules"]
    parsed = [RawScheduleConfig.model_validate(one) for one in found]
    assert [one.parameters for one in parsed] == [{}, {"until": "ingest"}]
    schema = parameter_schema(iteration.iteration).model_dump()
    for one in parsed:
        validate({"workspace": "/w", **one.parameters}, schema, raise_on_error=True)


def template(kind: str, project: Path) -> dict:
    """What a pool of the type takes: as Prefect ships it, for Kubernetes with the workspace's volume."""
    if kind == "kubernetes":
        return json.loads((project / "deploy" / "kubernetes.json").read_text())
    return shipped(kind)


def shipped(kind: str) -> dict:
    known = prefect.__module_path__ / "server" / "api" / "collections_data" / "views" / "aggregate-worker-metadata.json"
    workers = {name: one for found in json.loads(known.read_text()).values() for name, one in found.items()}
    return workers[kind]["default_base_job_configuration"]


def test_pools_take_its_job_variables(deployment, project):
    chosen = template(POOLS[deployment["name"]], project)["variables"]
    given = deployment["work_pool"].get("job_variables", {})
    assert set(chosen.get("required", [])) <= set(given)
    validate(given, {**chosen, "additionalProperties": False}, raise_on_error=True)


def test_the_template_for_kubernetes_is_prefects_and_the_workspaces_volume(project):
    ours, theirs = template("kubernetes", project), shipped("kubernetes")
    used = set(re.findall(r"\{\{ (\w+) \}\}", json.dumps(ours["job_configuration"])))
    own = {"workspace_claim", "workspace_path", "workspace_user"}
    assert used == set(ours["variables"]["properties"]) == own | set(theirs["variables"]["properties"])
    pod = ours["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {one["name"] for one in pod.pop("volumes")} == {one["name"] for one in container.pop("volumeMounts")}
    assert pod.pop("securityContext")["runAsNonRoot"] is True
    assert ours["job_configuration"] == theirs["job_configuration"]


def test_the_image_has_what_the_setup_would_install(project):
    dockerfile, setup = (project / "Dockerfile").read_text(), (project / "scripts" / "setup").read_text()
    (installed,) = re.findall(r"apt-get install -y --no-install-recommends ([^\\]+)", dockerfile)
    run = re.sub(r'^if \[ "\$level" = test \]; then\n.*?^fi\n', "", setup, flags=re.M | re.S)
    asked = set(
        re.findall(r"""(?:(?:\|\||;|^ +) ?apt |^browser=|^needs_(?:font|library) \S+ )([a-z0-9-]+)""", run, flags=re.M)
    )
    assert set(installed.split()) == asked - {"python3", "python3-venv", "chromium"}  # the image's; instead of headless
    assert re.search(r"^FROM python:3\.\d+\.\d+-slim-\w+$", dockerfile, flags=re.M)
    assert re.search(r"^USER (?!root)\w+$", dockerfile, flags=re.M)


def test_the_setup_asks_for_the_venv_of_the_python_that_it_takes(project, tmp_path):
    """Debian's python3-venv is of its first Python alone; on a machine with several another may be taken."""
    programs = {
        "python3": f'case $* in *ensurepip*) exit 1;; *print*) exec {sys.executable} "$@";; *venv*) exit 7;; esac',
        "apt-get": f'echo "$@" >> {tmp_path}/asked',
        "id": "echo 0",
    }
    (tmp_path / "bin").mkdir()
    (tmp_path / "scripts").mkdir()
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    for name in ("pyproject.toml", "constraints.txt", "scripts/setup"):
        shutil.copy(project / name, tmp_path / name)
    path = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    done = subprocess.run(["sh", tmp_path / "scripts" / "setup"], env=os.environ | path, capture_output=True, text=True)
    asked = (tmp_path / "asked").read_text().split()
    assert (done.returncode, asked[-1]) == (7, f"python3.{sys.version_info[1]}-venv"), done.stderr


@pytest.mark.exhaustive
def test_workspaces_on_one_server_have_names_of_their_own(project, tmp_path):
    ws = scaffold.create_workspace(tmp_path / "Night 2")
    found = yaml.safe_load((ws.root / "prefect.yaml").read_text())
    assert [one.pop("name") for one in found["deployments"]] == [f"night-2-{name}" for name in POOLS]
    shared = yaml.safe_load((project / "prefect.yaml").read_text())
    assert [one.pop("name") for one in shared["deployments"]] == [*POOLS]
    assert found == shared


@pytest.fixture
def copied(tmp_path, monkeypatch, project) -> Path:
    """Some of the source, elsewhere, as what this process runs."""
    shutil.copytree(project / "flows", tmp_path / "flows", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(code_version, "_ROOT", tmp_path)
    monkeypatch.setattr(code_version, "compute_code_version", code_version.compute_code_version.__wrapped__)
    return tmp_path


def test_code_is_named_by_its_content(copied):
    first = code_version.compute_code_version()
    (copied / "flows" / "__pycache__").mkdir()
    (copied / "flows" / "__pycache__" / "iteration.pyc").write_bytes(b"compiled")
    assert code_version.compute_code_version() == first == code_version.code_version_build_step()["version"]
    (copied / "flows" / "iteration.py").rename(copied / "flows" / "turn.py")
    renamed = code_version.compute_code_version()
    with (copied / "flows" / "turn.py").open("a") as file:
        file.write("# more\n")
    assert len({first, renamed, code_version.compute_code_version()}) == 3


def test_other_code_is_told_in_a_line(copied, monkeypatch):
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__NAME", "night-process")
    made_with = code_version.compute_code_version()
    (copied / "flows" / "iteration.py").unlink()
    with pytest.raises(
        BadInput, match=rf"this worker has other code.*{re.escape(made_with)} \(deployment night-process"
    ):
        code_version.check_code_version(made_with)
    with pytest.raises(BadInput, match="than its iteration"):
        code_version.check_code_version(made_with, by="its iteration")
    code_version.check_code_version(code_version.compute_code_version())


@pytest.mark.parametrize("version", [None, "", "v2", "d41d8cd98f00b204e9800998ecf8427e"])
def test_versions_that_are_not_of_flywheel_say_nothing_of_its_code(version):
    code_version.check_code_version(version)
