"""The table that `flywheel query` prints."""

import pyarrow as pa

from flywheel.store.catalog.database import render_result


def test_a_row_stays_on_its_line_whatever_separators_it_holds():
    text = render_result(pa.table({"text": ["Price\u2028list\x85\x0b", "plain"], "n": [1, 2]}), "table")
    assert [line.split() for line in text.splitlines()[1:]] == [["Price\\u2028list\\x85\\x0b", "1"], ["plain", "2"]]
