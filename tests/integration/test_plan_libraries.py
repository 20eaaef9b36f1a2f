"""What `flywheel plan` knows of models, against the library that makes them, and what it imports."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from flywheel.training.memory_plan import ModelShape


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_the_parameters_are_those_that_the_library_makes(family):
    text = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    text |= {"num_hidden_layers": 3, "vocab_size": 512} | ({"head_dim": 32} if family == "qwen3_vl" else {})
    vision = {"depth": 2, "num_heads": 4}
    vision |= {"embed_dim": 64, "hidden_size": 64} if family == "qwen2_vl" else {"hidden_size": 32}
    if family != "qwen2_vl":
        vision |= {"intermediate_size": 48, "out_hidden_size": 64}
    config = AutoConfig.for_model(family, text_config=text, vision_config=vision, tie_word_embeddings=True)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    read = ModelShape.read(json.loads(config.to_json_string(use_diff=False)))
    assert read.parameters == sum(weight.numel() for weight in model.parameters())
    assert read.vision.parameters == sum(weight.numel() for weight in model.base_model.visual.parameters())


def test_a_plan_imports_neither_torch_nor_transformers(project):
    code = (
        "import sys; from flywheel.cli import main\n"
        f"try: main(['plan', '-w', {str(project)!r}, '--device-memory', '80GiB'])\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
