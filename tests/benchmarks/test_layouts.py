"""The planner of layouts against published runs: the table of docs/layouts.md."""

import pytest

from trainrig.scaling.layout.published import read_published_runs, table_rows


@pytest.mark.bench
def test_published_runs() -> None:
    rows = list(table_rows(list(read_published_runs())))
    for row in rows:
        print(row)
    assert len(rows) > 20
