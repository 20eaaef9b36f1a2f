from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flywheel.training.merge_methods import METHODS, Cut, MergeMethod, draw_mask, mix_task_vectors
from flywheel.utils.errors import BadInput

# Few different magnitudes, so that many are equal.
numbers = st.lists(st.sampled_from([0.0, -0.0, 1e-30, 0.5, -0.5, 1.0, -1.0, 3e38]), min_size=1, max_size=40)


@given(values=numbers, density=st.floats(0.01, 1), chunk=st.integers(1, 9))
def test_a_cut_keeps_the_largest_and_of_equal_ones_the_first(values, density, chunk):
    whole = torch.tensor(values, dtype=torch.float64)
    count = max(1, int(density * len(values)))
    order = whole.abs().sort(descending=True, stable=True).indices[:count]
    expected = torch.zeros_like(whole)
    expected[order] = whole[order]
    cut = Cut(lambda: iter(whole.split(chunk)), len(whole), density)
    assert torch.equal(torch.cat([cut.keep(part) for part in whole.split(chunk)]), expected)


def test_signs_are_elected_by_weight():
    """The papers' example: of each number, those of the other sign are left out of the mean."""
    deltas = [torch.tensor([3.0, -1.0, 0.0, 2.0]), torch.tensor([1.0, 4.0, 0.0, -2.0])]
    mixed = mix_task_vectors([one.double() for one in deltas], [0.5, 0.5], elect=True)
    assert mixed.tolist() == [2.0, 4.0, 0.0, 2.0]
    assert mix_task_vectors([one.double() for one in deltas], [0.5, 0.5], elect=False).tolist() == [2.0, 1.5, 0.0, 0.0]


def test_what_is_dropped_is_a_function_of_its_source():
    one = draw_mask(1000, 0.5, 7, "w", 0)
    assert set(one.tolist()) == {0.0, 1.0}
    assert torch.equal(one, draw_mask(1000, 0.5, 7, "w", 0))
    assert not torch.equal(one, draw_mask(1000, 0.5, 7, "v", 0))


@pytest.mark.parametrize(
    ("chosen", "named"),
    [
        ({"name": "slerp"}, "no method"),
        ({"name": "ties"}, "needs the base"),
        ({"name": "linear", "base": Path("b")}, "neither a base"),
        ({"name": "linear", "scaling": 2.0}, "neither a base"),
        ({"name": "ties", "base": Path("b"), "density": 0.0}, "density"),
        ({"name": "ties", "base": Path("b"), "density": float("nan")}, "density"),
        ({"name": "ties", "base": Path("b"), "scaling": -1.0}, "scaling"),
        ({"name": "task_arithmetic", "base": Path("b"), "density": 0.5}, "keeps all numbers"),
    ],
)
def test_what_a_method_does_not_take_is_refused(chosen, named):
    with pytest.raises(BadInput, match=named):
        MergeMethod(**chosen)


@pytest.mark.parametrize("name", METHODS[1:])
def test_every_method_takes_a_base(name):
    assert MergeMethod(name, Path("b"), 0.5).base == Path("b")
