"""Converting rows of earlier versions to the present columns."""

import pyarrow as pa
import pytest

from flywheel.store.renamed_tables import rename_rows
from flywheel.utils.errors import DataError


def test_a_column_under_old_and_new_name_is_refused():
    rows = pa.table({"v": [True], "success": [True]})
    with pytest.raises(DataError, match="scores have a column twice"):
        rename_rows("scores", rows, "part.parquet")
