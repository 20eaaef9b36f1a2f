"""`scripts/gpu-check`: its arithmetic against answers worked out by hand, its lines on a CPU, what it says with no GPU.

No figure of speed is asserted.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from processes import PATIENCE_S

from flywheel.cli import bench
from flywheel.config.params_file import parse_settings
from flywheel.training.modeling.policy_forward import TokenSequence, pack_sequences

sys.path.insert(0, str(bench.BENCHMARKS_FOLDER))
try:
    import gpu
    import gpu_training
    import gpu_work
    from gpu_limits import Limits, Timed
    from gpu_shape import SHAPES, configuration, contexts, new_encoder
finally:
    sys.path.remove(str(bench.BENCHMARKS_FOLDER))

PROJECT = Path(__file__).resolve().parents[2]
SEVEN = SHAPES["qwen2.5-vl-7b"]


@pytest.fixture(scope="module")
def seven():
    return configuration(SEVEN, 28)


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"} | variables
    command = [str(PROJECT / "scripts/gpu-check"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_the_shape_is_that_of_qwen2_5_vl_7b(seven):
    """8,292,166,656 parameters, as the hub says of Qwen2.5-VL-7B-Instruct; a layer has 233,057,792 of them."""
    found = gpu_work.Parameters.of(seven)
    assert found.tower + found.rest + 28 * found.layer == 8_292_166_656
    assert found.layer == 233_057_792
    assert gpu_work.Parameters.of(configuration(SEVEN, 3)) == found


def test_operations_of_a_token(seven):
    # q and o 3584 x 3584 each, k and v 3584 x 512 each, three of 3584 x 18944
    assert gpu_work.layer_products(seven) == 233_046_016
    # 28 layers x 2 x 233,046,016, and 4 x 3584 for each of 1000 seen tokens and layer, and 2 x 3584 x 152,064
    assert gpu_work.language(seven, 1, 1000, 1) == 13_050_576_896 + 401_408_000 + 1_089_994_752
    assert gpu_work.causal_pairs([1, 4]) == 1 + 10


def test_operations_of_a_screen(seven):
    """8 x 12 patches: windows of 8 x 8 and 8 x 4 patches in 28 layers, all at once in 4."""
    products = 96 * (588 * 1280 + 32 * (4 * 1280**2 + 3 * 1280 * 3420) + (5120 * 5120 + 5120 * 3584) // 4)
    pairs = 4 * 96**2 + 28 * (64**2 + 32**2)
    assert gpu_work.tower(seven, 8, 12) == 2 * products + 4 * 1280 * pairs


def test_bytes_of_a_decoding_step(seven):
    """Weights in two bytes, and of each of 3000 seen tokens 28 layers x 2 x 4 heads of 128 numbers."""
    weights = 28 * 233_046_016 + 3584 * 152_064
    assert gpu_work.decode(seven, [1000, 2000]).bytes == 2 * (weights + 3000 * 28 * 2 * 512)
    assert gpu_work.prefill(seven, [5], [], passes=2).bytes == 2 * 2 * weights


def test_operations_of_packs_count_what_is_shared_once(seven):
    def line(ids):
        keys = torch.tensor(ids).numpy()
        return TokenSequence(keys, keys[None].repeat(3, axis=0), keys, (), keys[-2:])

    parts = pack_sequences([line([*range(20), 1, 2]), line([*range(20), 3, 4, 5])], 100)
    # 20 tokens in common, then 2 and 3: each sees what is before it in its own sample
    pairs = sum(range(1, 21)) + (21 + 22) + (21 + 22 + 23)
    once = gpu_work.language(seven, 25, pairs, 4)
    # The last layer: 21 tokens less through its 3 x 3584 x 18,944, and four that ask.
    once -= 2 * 3 * 3584 * 18_944 * 21 + 4 * 3584 * (pairs - (21 + 22) - (22 + 23))
    assert gpu_work.packs(seven, parts, backward=False, freeze_vision=True) == once
    assert gpu_work.packs(seven, parts, backward=True, freeze_vision=False) == 3 * once


def test_bytes_of_a_gradient_step():
    """Two passes: 10 trained numbers read twice and their gradients written in each, 3 frozen ones read once in each;
    AdamW reads four and writes three numbers for each trained one."""
    assert gpu_work.step_bytes(10, 3, 2) == 4 * (2 * (20 + 10 + 3) + 70)


@pytest.mark.parametrize(("memory", "layers"), [(80e9, 12), (141e9, 24), (1e12, 28), (1e9, 1)])
def test_layers_that_fit(seven, memory, layers):
    """SFT of 1300 tokens: 0.9 of the memory, less 4 x 676,550,144 bytes of the tower and 16 x 1,089,998,336 of
    embeddings and head, which makes 51.85 GB of 80; a layer takes 16 x 233,057,792 and, for the gradient, 1300 x 4 x
    (10 x 3584 + 4 x 18,944), which makes 4.31 GB: 12.03 layers of 80 GB, 24.8 of 141."""
    assert gpu_work.layers_that_fit(seven, memory, 1300, 4784, freeze_vision=True) == layers
    assert gpu_work.layers_that_fit(seven, memory, 1300, 4784, freeze_vision=False) <= layers


def test_fewer_layers_where_memory_runs_out(capsys):
    tried = []

    def train(layers):
        tried.append(layers)
        if layers > 5:
            raise torch.OutOfMemoryError("no room")
        return {"layers": layers}

    assert gpu_training.with_fewer(10, train) == {"layers": 5}
    assert tried == [10, 7, 5]
    assert capsys.readouterr().err == "10 layers do not fit; trying fewer\n7 layers do not fit; trying fewer\n"


def test_not_even_one_layer_is_an_error():
    def train(layers):
        raise torch.OutOfMemoryError("no room")

    with pytest.raises(torch.OutOfMemoryError):
        gpu_training.with_fewer(2, train)


def test_shares_of_the_limits():
    limits = Limits({"bfloat16": 1000.0, "float32": 200.0}, 50.0)
    line = limits.line("sft", "float32", 30, gpu_work.Work(800.0, 40.0), Timed(2.0, 1.5), layers=3)
    assert (line["mfu"], line["mfu_own"], line["mbu"]) == (0.4, 2.0, 0.4)
    assert (line["tokens_per_second"], line["peak_gpu_memory_gib"], line["layers"]) == (15.0, 1.5, 3)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    out = tmp_path_factory.mktemp("gpu") / "results" / "tiny.json"
    done = run("--shape", "tiny", "--device", "cpu", "--layers", "1", "--out", str(out))
    assert done.returncode == 0, done.stderr[-2000:]
    return out, [json.loads(line) for line in done.stdout.splitlines()]


def test_every_measurement_is_a_line_with_exact_tokens(tiny):
    lines = {line["name"]: line for line in tiny[1] if line["name"] != "limit_matmul"}
    trained = ["sft", "rl", "sft_adapter", "rl_adapter", "sft_adapter_nf4", "sft_zero3"]
    assert list(lines) == ["limit_copy", "prefill", "decode", "answers", *trained]
    shape = SHAPES["tiny"]
    prompts = [len(new_encoder().encode(context)) for context in contexts(shape, shape.batch)]
    assert lines["prefill"]["tokens"] == sum(prompts)
    assert lines["decode"]["tokens"] == shape.batch * (shape.new_tokens - 1)
    assert lines["answers"]["tokens"] == shape.batch * shape.new_tokens
    trained = sum(prompts[: shape.samples]) + shape.samples * (shape.new_tokens - 1)  # nothing follows the last token
    for name in ("sft", "rl"):
        assert lines[name]["sequence_tokens"] == lines[name]["tokens"] == trained
        assert lines[name]["response_tokens"] == shape.samples * shape.new_tokens
        assert (lines[name]["passes"], lines[name]["dtype"]) == (shape.samples, "float32")
    assert (lines["sft"]["frozen"], lines["rl"]["frozen"]) == ("vision tower", None)
    assert "8 and 4 bits need a GPU" in lines["sft_adapter_nf4"]["skipped"]
    assert all(line["layers"] == 1 and line["layers_of"] == 2 for line in lines.values() if "layers" in line)


def test_operations_of_the_lines_are_those_of_the_shape(tiny):
    lines = {line["name"]: line for line in tiny[1]}
    config, shape = configuration(SHAPES["tiny"], 1), SHAPES["tiny"]
    encoder = new_encoder()
    lengths = [len(encoder.encode(context)) for context in contexts(shape, shape.batch)]
    screen = gpu_work.tower(config, 8, 10)  # 140 x 112 pixels
    expected = gpu_work.language(config, sum(lengths), gpu_work.causal_pairs(lengths), 3) + 3 * screen
    assert lines["prefill"]["flops"] == pytest.approx(expected, rel=1e-3)
    samples = [length + shape.new_tokens - 1 for length in lengths[: shape.samples]]
    pass_ = gpu_work.language(config, sum(samples), gpu_work.causal_pairs(samples), 2 * shape.new_tokens)
    before = [length - shape.new_tokens for length in samples]  # tokens that the last layer leaves out
    text = config.text_config
    pass_ -= 6 * text.hidden_size * text.intermediate_size * sum(before)
    pass_ -= 4 * text.hidden_size * gpu_work.causal_pairs(before)
    assert lines["sft"]["flops"] == pytest.approx(3 * pass_ + 2 * screen, rel=1e-3)
    assert lines["rl"]["flops"] == pytest.approx(4 * (pass_ + 2 * screen), rel=1e-3)
    assert lines["sft_adapter"]["flops"] == pytest.approx(2 * pass_ + 2 * screen, rel=1e-3)
    assert lines["rl_adapter"]["flops"] == pytest.approx(3 * pass_ + 4 * screen, rel=1e-3)
    assert {lines[name]["frozen"] for name in ("sft_adapter", "rl_adapter")} == {"base"}


def test_each_line_stands_beside_the_limits(tiny):
    limits = {line.get("dtype"): line for line in tiny[1] if line["name"].startswith("limit")}
    for line in tiny[1]:
        if "tokens" in line:
            assert line["limit_flops_per_second"] == limits["bfloat16"]["flops_per_second"]
            assert line["limit_bytes_per_second"] == limits[None]["bytes_per_second"]
            assert line["mfu"] == pytest.approx(
                line["flops"] / line["seconds"] / line["limit_flops_per_second"], rel=1e-2
            )
            assert line["mbu"] == pytest.approx(
                line["bytes"] / line["seconds"] / line["limit_bytes_per_second"], rel=1e-2
            )
            assert line["tokens_per_second"] == pytest.approx(line["tokens"] / line["seconds"], rel=1e-2)
            assert line["peak_gpu_memory_gib"] is None  # a CPU


def test_a_run_is_added_to_a_file(tiny, tmp_path):
    out, lines = tiny
    (record,) = json.loads(out.read_text())
    assert record["measurements"] == lines
    assert (record["device"], record["driver"], record["shape"]) == ("cpu", None, "tiny")
    assert record["versions"]["torch"] == torch.__version__
    assert record["date"].endswith("+00:00")
    gpu.keep(out, {"a": 1})
    assert json.loads(out.read_text()) == [record, {"a": 1}]


def test_without_a_gpu_it_says_what_is_missing_and_ends_with_1():
    done = run(CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("no CUDA device: nothing was measured; ")
    assert line.endswith("scripts/gpu-check --shape tiny --device cpu")
    assert ("nvidia-smi" if torch.version.cuda else "pip install torch==") in line


def test_a_torch_for_cuda_without_a_gpu_is_told_of_the_driver(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "`nvidia-smi` must list a GPU, with a driver for CUDA 13.0" in gpu.missing()


def test_before_the_project_is_set_up_it_says_what_to_type(tmp_path):
    done = run(PYTHON=str(tmp_path / "none"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "type make setup" in done.stderr


@pytest.mark.parametrize("column", [1, 2, 3])
def test_the_settings_of_the_page_on_scaling_are_ones_that_there_are(column):
    page = (PROJECT / "docs" / "scaling.md").read_text(encoding="utf-8").partition("| parameter |")[2]
    raw: dict[str, dict] = {}
    for line in page.splitlines():
        if line.startswith("| `"):
            cells = [re.findall(r"`([^`]*)`", cell) for cell in line.strip("|").split("|")]
            for block, _, field in (name.partition(".") for name in cells[0]):
                raw.setdefault(block, {})[field] = yaml.safe_load(cells[column][0])
    assert len(raw["policy"]) == 11
    found = parse_settings(raw, where="docs/scaling.md")
    assert found.policy.backend == ("transformers" if column == 1 else "openai")
    if column == 1:
        assert found == parse_settings({}, where="the defaults")
