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


# method -> what both are told beside shares: density, lambda, and whether signs are weighed as ours always are.
WHOLE = {
    "linear": {},
    "task_arithmetic": {"lambda": 1.5},
    "ties": {"density": 0.3, "lambda": 0.7},
    "dare_linear": {"lambda": 0.5},
    "dare_ties": {"lambda": 0.5, "normalize": True},
}


@pytest.mark.parametrize("method", WHOLE)
def test_its_merges_of_whole_weights_are_ours_to_the_last_bit(base, merged, method):
    """Both compute in float64 and store float32. mergekit's dare drops numbers of its own choice, so all are kept."""
    told = WHOLE[method]
    ours = merged / f"our-{method}"
    words = ["--method", method, "--scaling", told.get("lambda", 1.0), "--density", told.get("density", 1.0)]
    _run(
        "merge", merged / "w0", merged / "w1", ours, "--weights", "0.6,0.4",
        *([*words, "--base", base] if method != "linear" else []),
    )  # fmt: skip
    models = [
        {"model": str(merged / f"w{n}"), "parameters": {"weight": share, "density": told.get("density", 1.0)}}
        for n, share in enumerate(SHARES)
    ]
    theirs = _mergekit(base, merged, f"their-{method}", method, models, told)
    mine = _weights(ours)
    assert set(theirs) == set(mine)
    apart = {name: (weight - theirs[name]).abs().max().item() for name, weight in mine.items()}
    assert not any(apart.values()), {name: value for name, value in apart.items() if value}
    changed = _weights(base)
    assert any(not torch.equal(weight, changed[name]) for name, weight in mine.items())


def test_its_dare_keeps_the_sum_of_magnitudes_and_ours_the_expected_value(base, merged):
    """What is left of a task vector is scaled by the sums of magnitudes in mergekit 0.1.5, by 1 / density in the
    paper."""
    density, start, whole = 0.25, _weights(base), _weights(merged / "w0")
    name = max(whole, key=lambda one: (whole[one] - start[one]).count_nonzero().item())
    change = (whole[name] - start[name]).double()
    models = [{"model": str(merged / "w0"), "parameters": {"weight": 1.0, "density": density}}]
    theirs = _mergekit(base, merged, "their-dropped", "dare_linear", models, {})[name].double() - start[name].double()
    ours = merged / "our-dropped"
    _run("merge", merged / "w0", ours, "--method", "dare_linear", "--base", base, "--density", density)
    mine = _weights(ours)[name].double() - start[name].double()
    kept = mine != 0
    torch.testing.assert_close(mine[kept], change[kept] / density, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(theirs.abs().sum(), change.abs().sum(), rtol=1e-4, atol=0)
    assert abs(mine.abs().sum() / change.abs().sum() - 1) > 1e-4


def _mergekit(base: Path, folder: Path, name: str, method: str, models: list, told: dict) -> dict[str, torch.Tensor]:
    """Merge by mergekit in float64 into `folder/name`; return what it stored."""
    asked = {"models": models, "merge_method": method, "dtype": "float64", "out_dtype": "float32"}
    if method != "linear":
        shared = {key: value for key, value in told.items() if key in ("lambda", "normalize")}
        asked |= {"base_model": str(base), "parameters": shared}
    (folder / f"{name}.yaml").write_text(json.dumps(asked))
    alone = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    words = [str(MERGEKIT), f"{name}.yaml", str(folder / name)]
    done = subprocess.run(words, cwd=folder, env=alone, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return _weights(folder / name)
