"""`flywheel plan`, and the refusal of a run that cannot fit: on configurations alone, without weights."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from test_memory_plan import UI_TARS

from flywheel import config
from flywheel.cli import main
from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.pipeline import iterations, resource_plan
from flywheel.pipeline.resource_plan import DeviceMemory, check_resources, plan_resources
from flywheel.utils.errors import BadInput, DiskFull

GIB = 2**30


@pytest.fixture
def seven(tmp_path):
    """The folder of a checkpoint of UI-TARS-1.5-7B's shape, but for its weights."""
    folder = tmp_path / "seven"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(UI_TARS))
    (folder / "preprocessor_config.json").write_text('{"min_pixels": 3136, "max_pixels": 12845056}')
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture
def workspace(tmp_path, seven) -> Workspace:
    root = tmp_path / "ws"
    root.mkdir()
    (root / "params.yaml").write_text(f"policy:\n  base: {seven}\n  dtype: bfloat16\n")
    (root / "dvc.yaml").write_text("stages: {}\n")
    return Workspace(root)


def planned(workspace: Workspace, *words: str) -> tuple[int, str]:
    answer = CliRunner().invoke(main, ["plan", "-w", str(workspace.root), *words])
    return answer.exit_code, answer.output


def test_what_does_not_fit_is_told_with_the_first_settings_that_do(workspace):
    code, text = planned(workspace, "--device-memory", "80GiB")
    assert code == 1
    assert "8,292,166,656 parameters" in text
    (line,) = (line for line in text.splitlines() if line.startswith("sft needs "))
    assert line.endswith("the GPU has 80.0 GiB: set adapter.method=lora")
    (line,) = (line for line in text.splitlines() if line.startswith("rl-games needs "))
    assert line.endswith("set rl.gradient_checkpointing=true, adapter.method=lora")
    fixes = [word for one in text.rpartition("flywheel plan ")[2].split("--set ") if (word := one.strip())]
    code, text = planned(workspace, "--device-memory", "80GiB", *(word for fix in fixes for word in ("--set", fix)))
    assert code == 0, text
    assert "does not fit" not in text


def test_json_has_every_stage_with_its_parts(workspace):
    code, text = planned(workspace, "--device-memory", "24GiB", "--json")
    found = json.loads(text)
    assert code == 1
    names = [one["stage"] for one in found["stages"]]
    assert names == ["rollout", "ct", "sft", "rl-games", "rl-sites", "rl-control", "merge", "evaluate"]
    sft = found["stages"][2]
    assert sft["parts"]["weights"] == 4 * found["parameters"]
    assert (sft["fits"], sft["has"]) == (False, 24 * GIB)
    assert found["kv_token"] == 57_344
    assert (found["disk"]["models"], found["network"]) == (6 * 4 * found["parameters"], 0)
    assert found["disk"]["state"] == 12 * found["parameters"]


@pytest.mark.parametrize("typed", ["8XB", "much", "-3GiB", "", "0", "80", "infGiB", "nan"])
def test_a_memory_that_is_no_size_is_refused(workspace, typed):
    code, text = planned(workspace, "--device-memory", typed)
    assert (code, len(text.splitlines())) == (2, 1)


@pytest.mark.parametrize(("typed", "size"), [("80GiB", 80 * GIB), ("24 GB", 24 * 10**9), ("1.5g", 3 * GIB // 2)])
def test_sizes_are_read_as_they_are_written(typed, size):
    assert resource_plan.read_device_memory(typed).bytes == size


def test_an_adapter_is_what_an_iteration_writes_and_sends(workspace):
    whole = plan_resources(workspace, _settings(workspace), DeviceMemory("cuda", 80 * GIB))
    own = _settings(workspace, **{"adapter.method": "lora", "versioning.remote": "/copy"})
    small = plan_resources(workspace, own, DeviceMemory("cuda", 80 * GIB))
    assert small.disk.models == 6 * 4 * small.trained
    assert small.network == small.disk.models + small.disk.data
    assert small.disk.models < whole.disk.models / 100


def test_a_disk_without_the_room_is_told_and_refused_with_the_figures(workspace, monkeypatch):
    monkeypatch.setattr(resource_plan.shutil, "disk_usage", lambda _: SimpleNamespace(free=20 * GIB))
    words = ("--set", "rl.gradient_checkpointing=true", "--device-memory", "300GiB")
    code, text = planned(workspace, *words)
    assert code == 1
    assert "20.0 GiB are free" in text
    assert "the disk has not the room: set adapter.method=lora" in text
    assert planned(workspace, *words, "--set", "adapter.method=lora")[0] == 0
    large = DeviceMemory("cuda", 300 * GIB)
    settings = _settings(workspace, **{"rl.gradient_checkpointing": True})
    # Six models and their copies, 12 bytes a parameter of state, screens and their copies.
    screens = int((40 * 4 + 40 + 240 + 3 * 4 * 16) * 8 * 224 * 224 * 0.15)
    needs = (2 * 6 * 4 + 12) * 8_292_166_656 + 2 * screens
    with pytest.raises(
        DiskFull, match=rf"writes {needs / GIB:.1f} GiB .* 20\.0 GiB are free.*; set adapter\.method=lora"
    ):
        check_resources(workspace, settings, large)
    monkeypatch.setattr(resource_plan.shutil, "disk_usage", lambda _: SimpleNamespace(free=needs))
    assert check_resources(workspace, settings, large) == ""
    monkeypatch.setattr(resource_plan.shutil, "disk_usage", lambda _: SimpleNamespace(free=needs - 1))
    with pytest.raises(DiskFull):
        check_resources(workspace, settings, large)
    assert check_resources(workspace, settings, large, begun=True) == ""


SHARED = {
    "policy.backend": "openai",
    "policy.endpoint": "http://127.0.0.1:1/v1",
    "policy.model": "m",
    "policy.sleeps_while_training": True,
    "rl.max_staleness": 0,
    "rl.gradient_checkpointing": True,
    "adapter.method": "lora",
    "adapter.base_dtype": "bfloat16",
}


def test_a_server_on_the_same_gpu_counts_asleep_beside_a_step_and_awake_beside_what_rl_keeps(workspace):
    device = DeviceMemory("cuda", 80 * GIB, 100 * GIB)
    apart = {
        stage.stage: stage
        for stage in plan_resources(
            workspace, _settings(workspace, **SHARED | {"policy.sleeps_while_training": False}), device
        ).stages
    }
    plan = plan_resources(workspace, _settings(workspace, **SHARED), device)
    found, server = {stage.stage: stage for stage in plan.stages}, plan.server
    assert found["sft"].needs == apart["sft"].needs + server.memory.asleep
    assert found["sft"].parts["host"] == apart["sft"].parts["host"] + server.memory.host
    rl = found["rl-games"]
    keeps = sum(rl.parts[name] for name in ("process", "weights", "optimizer", "value_model", "screens"))
    assert rl.needs == max(apart["rl-games"].needs + server.memory.asleep, keeps + server.memory.least)
    assert found["rollout"].needs == rl.parts["process"] + server.memory.least
    # The share that is told leaves RL what it keeps, and a hundredth more would not; so with the least one.
    assert server.most * 80 * GIB + keeps <= 80 * GIB < (server.most + 0.01) * 80 * GIB + keeps
    assert server.least * 80 * GIB >= server.memory.least > (server.least - 0.01) * 80 * GIB
    assert server.rows * server.memory.kv_row <= server.most * 80 * GIB - server.memory.least + server.memory.kv_row


def test_a_card_on_which_both_sides_do_not_fit_is_told_with_what_to_set(workspace):
    words = [word for name, value in SHARED.items() for word in ("--set", f"{name}={str(value).lower()}")]
    code, text = planned(workspace, "--device-memory", "80GiB", *words)
    assert code == 0, text
    assert "--gpu-memory-utilization 0." in text
    code, text = planned(workspace, "--device-memory", "36GiB", *words)
    assert code == 1
    assert "(none is both)" in text
    (line,) = (line for line in text.splitlines() if line.startswith("rl-games needs "))
    assert line.endswith("the GPU has 36.0 GiB: set adapter.base_dtype=nf4")
    settings = _settings(workspace, **SHARED, **{"ct.gradient_checkpointing": True, "sft.gradient_checkpointing": True})
    needs = max(one.needs for one in plan_resources(workspace, settings, DeviceMemory("cuda", GIB)).stages)
    told = check_resources(workspace, settings, DeviceMemory("cuda", needs - GIB))
    assert re.search(
        r"\(vllm needs 0\.\d+ of it at least, and RL leaves it 0\.\d+\): it may not fit; set adapter\.b", told
    )
    code, text = planned(workspace, "--device-memory", "16GiB", *words)
    (line,) = (line for line in text.splitlines() if line.startswith("rollout needs "))
    assert line.endswith("no setting makes it fit")


@pytest.mark.parametrize("endpoint", ["http://localhost:8000/v1", ["http://10.0.0.9:8000/v1", "http://[::1]:8000/v1"]])
def test_a_server_on_this_machine_that_does_not_sleep_is_told(workspace, endpoint):
    """It may have a GPU of its own, so no stage counts it; where both do not fit on this one, a run says so."""
    awake = SHARED | {"policy.sleeps_while_training": False, "policy.endpoint": endpoint}
    device = DeviceMemory("cuda", 200 * GIB, 100 * GIB)
    plan = plan_resources(workspace, _settings(workspace, **awake), device)
    shared = plan_resources(workspace, _settings(workspace, **SHARED), device)
    assert (plan.server, shared.uncounted) == (None, None)
    assert plan.uncounted == shared.server.memory
    most = max(one.needs for one in plan.stages if one.device == "cuda")
    both = most + plan.uncounted.least
    assert check_resources(workspace, _settings(workspace, **awake), DeviceMemory("cuda", both)) == ""
    assert "does not sleep" in check_resources(workspace, _settings(workspace, **awake), DeviceMemory("cuda", both - 1))
    elsewhere = _settings(workspace, **awake | {"policy.endpoint": "http://10.0.0.9:8000/v1"})
    assert plan_resources(workspace, elsewhere, device).uncounted is None
    assert check_resources(workspace, elsewhere, DeviceMemory("cuda", both - 1)) == ""
    words = [word for name, value in awake.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    code, text = planned(workspace, "--device-memory", "200GiB", *words)
    assert code == 0, text
    (line,) = (line for line in text.splitlines() if line.startswith("the server of policy.endpoint"))
    assert line.endswith("or set policy.sleeps_while_training=true")


def test_a_run_that_cannot_fit_is_refused_and_one_that_nearly_does_is_told(workspace):
    settings = _settings(workspace, **{"adapter.method": "lora", "adapter.base_dtype": "bfloat16"})
    needs = max(one.needs for one in plan_resources(workspace, settings, DeviceMemory("cuda", GIB)).stages)
    assert check_resources(workspace, settings, DeviceMemory("cuda", needs)) == ""
    close = check_resources(workspace, settings, DeviceMemory("cuda", needs - GIB))
    assert close.startswith("stage rl-")
    assert "it may not fit; set rl.gradient_checkpointing=true" in close
    with pytest.raises(
        BadInput, match=r"stage rl-.* needs .* GiB, the GPU has .*; set rl\.gradient_checkpointing=true"
    ):
        check_resources(workspace, settings, DeviceMemory("cuda", int(needs / 1.2)))


def test_the_servers_memory_is_no_matter_of_this_device(workspace):
    own = {"policy.backend": "openai", "policy.endpoint": "http://127.0.0.1:1/v1", "policy.model": "m"}
    plan = plan_resources(workspace, _settings(workspace, **own), DeviceMemory("cuda", GIB))
    rollout = plan.stages[0]
    assert (rollout.needs, rollout.fits, rollout.note) == (0, True, "on the server of policy.endpoint")
    assert rollout.parts["cache"] == 16 * 576 * plan.kv_token
    assert "policy" not in plan.stages[3].parts


def test_of_a_name_on_the_hub_the_configuration_alone_is_fetched(workspace, seven, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", lambda name, allow_patterns: asked.append(allow_patterns) or str(seven)
    )
    plan = plan_resources(workspace, _settings(workspace, **{"policy.base": "an/owner"}), DeviceMemory("cuda", GIB))
    assert plan.parameters == 8_292_166_656
    assert asked
    assert not any("safetensors" in pattern for patterns in asked for pattern in patterns)


def test_of_an_adapters_base_on_the_hub_the_configuration_alone_is_fetched(workspace, seven, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", lambda name, allow_patterns: asked.append(allow_patterns) or str(seven)
    )
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    fields = {"base_model_name_or_path": "an/owner", "peft_type": "LORA", "r": 4, "lora_alpha": 8}
    (adapter / "adapter_config.json").write_text(json.dumps(fields))
    (adapter / "base.json").write_text('{"model": "an/owner", "digest": "0123456789abcdef"}')
    plan = plan_resources(workspace, _settings(workspace, **{"policy.base": str(adapter)}), DeviceMemory("cuda", GIB))
    assert plan.disk.fetched == 2 * plan.parameters == 2 * 8_292_166_656
    assert asked
    assert not any("safetensors" in pattern for patterns in asked for pattern in patterns)
    (adapter / "adapter_config.json").write_text(json.dumps(fields | {"of_tomorrow": 1}))
    code, text = planned(workspace, "--set", f"policy.base={adapter}")
    assert (code, "an adapter with of_tomorrow 1 is not understood here" in text) == (2, True)


def test_preflight_refuses_before_weights_are_looked_at(workspace, monkeypatch):
    monkeypatch.setattr(resource_plan, "read_device_memory", lambda: DeviceMemory("cuda", 80 * GIB))
    with pytest.raises(BadInput, match=r"stage rl-.* needs .* GiB, the GPU has 80\.0 GiB"):
        iterations.run_preflight(workspace, _settings(workspace))


def test_a_plan_for_a_cpu_says_that_bits_want_a_gpu(workspace):
    four = {"adapter.method": "lora", "adapter.base_dtype": "nf4"}
    plan = plan_resources(workspace, _settings(workspace, **four), DeviceMemory("cpu", GIB, GIB))
    assert {one.stage for one in plan.stages if "a run with these settings is refused" in one.note} == {
        *("ct", "sft", "rl-games", "rl-sites", "rl-control")
    }


def test_the_machines_memory_counts_beside_a_gpu(workspace):
    settings = _settings(workspace, **{"adapter.method": "lora"})
    with pytest.raises(BadInput, match=r"this machine has 8\.0 GiB"):
        check_resources(workspace, settings, DeviceMemory("cuda", 1000 * GIB, 8 * GIB))


def test_the_shipped_settings_are_never_refused(project):
    assert check_resources(Workspace(project), Settings(), DeviceMemory("cpu", GIB, GIB)) == ""


def _settings(workspace: Workspace, **values: object) -> Settings:
    return config.load_settings(workspace.params, values)
