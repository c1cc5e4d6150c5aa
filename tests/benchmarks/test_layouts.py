"""The planner of layouts compared with published runs: the table of docs/evidence/layouts.md."""

import pytest
from support.published_layouts import format_table_rows, read_published_runs


@pytest.mark.bench
def test_published_runs() -> None:
    rows = list(format_table_rows(list(read_published_runs())))
    for row in rows:
        print(row)
    assert len(rows) > 20
