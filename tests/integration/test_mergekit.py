"""mergekit reads what `model merge-adapter` and training write, and its merges are ours where they mean the same.

mergekit pins other versions of libraries, so it is a command of another environment: FLYWHEEL_MERGEKIT is the path of
its `mergekit-yaml` (`pip install mergekit` in a venv of its own).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import checkpoints
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from flywheel.cli import main
from flywheel.config import AdapterSettings
from flywheel.policy.adapter import attach_adapter, save_adapter
from flywheel.policy.model import load_model

MERGEKIT = Path(os.environ.get("FLYWHEEL_MERGEKIT", "none"))
pytestmark = pytest.mark.skipif(not MERGEKIT.is_file(), reason="FLYWHEEL_MERGEKIT is not the path of mergekit-yaml")
SHARES = (0.6, 0.4)


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl"])
def base(request, tmp_path_factory) -> Path:
    made = checkpoints.config
    with pytest.MonkeyPatch.context() as patch:
        # mergekit has three levels of deepstack in its description of Qwen3-VL, whatever config.json says.
        three = {"depth": 3, "deepstack_visual_indexes": [0, 1, 2]} if request.param == "qwen3_vl" else {}

        def config(architecture: str, **chosen: bool) -> dict:
            raw = made(architecture, **chosen)
            return raw | {"vision_config": raw["vision_config"] | three}

        patch.setattr(checkpoints, "config", config)
        return checkpoints.make(
            tmp_path_factory.mktemp("kit") / "base", request.param, tied=request.param == "qwen3_vl"
        )


@pytest.fixture(scope="module")
def merged(base) -> Path:
    """The folder of two adapters (a0, a1), of these as whole checkpoints (w0, w1), and of their merge by us (ours)."""
    place = base.parent
    for number in range(2):
        model = load_model(base)
        attach_adapter(model, base, AdapterSettings(method="lora", rank=3, alpha=6), number)
        with torch.no_grad():
            for weight in (one for one in model.parameters() if one.requires_grad):
                weight.copy_(0.2 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(number)))
        save_adapter(model, base, place / f"a{number}")
        _run("merge-adapter", place / f"a{number}", place / f"w{number}")
    _run("merge", place / "a0", place / "a1", place / "small", "--weights", "0.6,0.4")
    _run("merge-adapter", place / "small", place / "ours")
    return place


@pytest.mark.parametrize("method", ["linear", "task_arithmetic", "dare_linear"])
def test_its_merges_of_our_checkpoints_and_adapters_are_ours(base, merged, method):
    parameters = {"density": 1.0} if method == "dare_linear" else {}  # below 1 it leaves out numbers by chance
    ours = _weights(merged / "ours")
    change = max((ours[name] - weight).abs().max() for name, weight in _weights(base).items())
    for form in ("w", "a"):
        names = [str(merged / f"w{n}") if form == "w" else f"{base}+{merged / f'a{n}'}" for n in range(2)]
        asked = {
            "models": [
                {"model": name, "parameters": {"weight": share} | parameters}
                for name, share in zip(names, SHARES, strict=True)
            ],
            "merge_method": method,
            "dtype": "float32",
        } | ({} if method == "linear" else {"base_model": str(base)})
        (merged / "asked.yaml").write_text(json.dumps(asked))
        out = merged / f"{method}-{form}"
        words = [str(MERGEKIT), "asked.yaml", str(out), "--lora-merge-cache", str(merged / "cache")]
        alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(words, cwd=merged, env=alone, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        theirs = _weights(out)
        assert set(theirs) == set(ours)
        assert max((ours[name] - theirs[name]).abs().max() for name in ours) < 1e-6 * change


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: weight.float() for file in folder.glob("*.safetensors") for name, weight in load_file(file).items()}


def _run(*words: object) -> None:
    answer = CliRunner().invoke(main, ["model", *map(str, words)])
    assert answer.exit_code == 0, answer.output
