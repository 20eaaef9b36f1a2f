"""Numbers and ranges of iterations, as people type them."""

from __future__ import annotations

import pytest

from flywheel.maintenance.rescore import parse_iterations
from flywheel.utils.errors import BadInput


def test_numbers_and_ranges_come_in_order_each_once():
    assert parse_iterations("5, 1-3,2") == [1, 2, 3, 5]


@pytest.mark.parametrize("text", ["", "x", "3-1", "-2", "1-2-3", "1.5", "1,", "9" * 5000, "1-" + "9" * 5000, "2000000"])
def test_what_are_no_iterations_is_refused(text):
    with pytest.raises(BadInput, match=r"not iterations|no iteration"):
        parse_iterations(text)
