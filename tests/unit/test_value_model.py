"""V reads hidden states, and what the environment tells of a state beside them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from flywheel.config import RlSettings
from flywheel.training.rl.losses import explained_variance
from flywheel.training.rl.trainer import ValueFeatures, ValueModel

WIDTH = 48


def value_model() -> ValueModel:
    torch.manual_seed(0)
    return ValueModel(SimpleNamespace(get_output_embeddings=lambda: nn.Linear(WIDTH, 8)))


def steps(count: int, seed: int, *, tell: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """What V reads of steps whose hidden states say nothing, four tokens each, and what is to come: the more, the more
    steps are left and the less is done."""
    rng = np.random.default_rng(seed)
    read, returns = [], []
    for _ in range(count):
        score, left = rng.random(2)
        hidden = torch.from_numpy(rng.normal(size=(4, WIDTH))).float()
        read.append((ValueFeatures(score, left) if tell else ValueFeatures()).append_to(hidden))
        returns += [left * (1 - score)] * 4
    return torch.cat(read), torch.tensor(returns).float()


@pytest.mark.parametrize(("tell", "least", "most"), [(True, 0.4, 1.0), (False, -1.0, 0.05)])
def test_a_hundred_steps_of_pretraining_learn_of_what_is_told(tell, least, most):
    model, (read, returns) = value_model(), steps(150, 1, tell=tell)
    assert np.abs(model.evaluate(read)).max() == 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=RlSettings().critic_lr)
    for _ in range(RlSettings().value_pretraining_steps):
        optimizer.zero_grad()
        ((model(read) - returns).square().mean() / 2).backward()
        optimizer.step()
    others, theirs = steps(150, 2, tell=tell)
    assert least <= explained_variance(model.evaluate(others), theirs.numpy()) <= most


def test_what_is_not_known_counts_as_nothing():
    model, hidden = value_model(), torch.ones(3, WIDTH)
    with torch.no_grad():
        model.head[-1].weight.fill_(1.0)
        unknown = model(ValueFeatures().append_to(hidden)).double().numpy()
        model.head[0].weight[:, WIDTH:] = 7.0  # what is read of the two numbers
    assert np.array_equal(unknown, model.evaluate(ValueFeatures().append_to(hidden)))
    assert not np.array_equal(unknown, model.evaluate(ValueFeatures(score=0.0).append_to(hidden)))
