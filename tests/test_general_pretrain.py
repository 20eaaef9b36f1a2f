"""Pretraining of the base: it runs on drawn screens, stops, resumes, and leaves a checkpoint that loads."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch

from flywheel.errors import TrainingError
from flywheel.policy.encoding import Encoder
from flywheel.policy.model import digest, load_model
from flywheel.synthesis import scenes
from flywheel.synthesis.scenes import Box
from flywheel.training import pretrain as module
from flywheel.training.packing import name_cells
from flywheel.training.pretrain import pretrain


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 16)
    monkeypatch.setattr(module, "BATCH", 4)
    monkeypatch.setattr(module, "QUESTIONS", 2)


def undrawn(curriculum, seed, first, coordinates):
    """Chunks whose screens are noise: no second process, no browser."""
    for number in range(first, 100):
        rng = random.Random(number)
        drawn = [scenes.draw(kind, level, rng, coordinates) for kind, level in curriculum.plan(module.CHUNK, rng)]
        pixels = np.random.default_rng(number).integers(0, 255, (len(drawn), 224, 224, 3), dtype=np.uint8)
        yield number, pixels, drawn


def test_it_trains_stops_resumes_and_leaves_a_checkpoint(tmp_path, monkeypatch):
    run = {"report_every": 1, "evaluate_every": 100, "held_out": 1}
    first = digest(pretrain(tmp_path, seed=3, steps=1, **run))
    monkeypatch.setattr(module, "_chunks", undrawn)
    folder = pretrain(tmp_path, seed=3, steps=5, **run)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4, 5]
    assert lines[-2]["loss"] < lines[0]["loss"]
    assert lines[-1]["evaluation"]["key"]["n"] >= 1
    assert digest(folder) != first
    assert load_model(folder).config.text_config.vocab_size == 1536
    assert Encoder.from_folder(folder).encode_text("click")


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_chunks", undrawn)
    monkeypatch.setattr(module, "_loss", lambda *_: (torch.tensor(float("nan")),) * 3)
    with pytest.raises(TrainingError, match="not finite"):
        pretrain(tmp_path, seed=3, steps=2)


def test_each_image_token_names_what_covers_it(project):
    encoder = Encoder.from_folder(project / "models" / "base")
    shown = [[("red star", Box(0, 0, 64, 32)), ("blue cup", Box(60, 0, 36, 32))], []]
    ids, weights = name_cells(encoder, shown, 224, 7)
    assert ids.shape[0] == weights.shape[0] == 2 * 49
    assert weights.sum().item() == pytest.approx(1)
    assert weights[:3].sum().item() == pytest.approx(0.5)  # the three cells that are not empty
    said = [encoder.decode(row[weight > 0].tolist()) for row, weight in zip(ids, weights, strict=True)]
    assert said[:4] == [" red star", " red star", " blue cup", " empty"]
    assert set(said[3:]) == {" empty"}
