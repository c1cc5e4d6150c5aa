"""What a curation says at its end: rules that dropped most, lost rows, sources that lost most."""

import json
import logging
from pathlib import Path

import pytest

from trainrig.corpus.curate import Curation, curate
from trainrig.corpus.curation_settings import CurationSource
from trainrig.corpus.filters.general_rules import Length
from trainrig.errors import DataError
from trainrig.storage import join

LONG = "A lantern hung over the wharf, and the ferry came in with barley and copper. "


def curate_rows(folder: Path, rows: list[dict[str, str]]) -> str:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = CurationSource(
        name="own",
        paths=(str(folder / "rows.jsonl"),),
        filters=(Length(min_characters=60),),
    )
    output = str(folder / "out")
    curate(Curation(stage="curate", sources=(source,), output=output, workers=0))
    return output


def test_a_curation_ends_with_what_dropped_most_and_where_the_report_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trainrig")
    short = [{"url": f"http://a/{number}", "text": f"Kettle {number}."} for number in range(3)]
    same = [{"url": f"http://b/{number}", "text": LONG} for number in range(2)]
    output = curate_rows(tmp_path, [*short, *same, {"body": "The text is elsewhere."}])
    lines = caplog.messages
    shown = [line for line in lines if " dropped " in line]
    assert len(shown) == 2
    assert shown[0].startswith("Length.too_short dropped 3 documents, such as http://a/")
    assert "“Kettle " in shown[0]
    assert shown[1].startswith("exact_duplicate dropped 1 document, such as http://b/")
    assert lines[-1] == f"report: {join(output, 'report.html')}"
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert f"{output}: 1 row had no text: `reading.fields.text` of the source" in warnings[0]
    assert warnings[1].startswith("source own: only 1 of 5 documents (20%) were kept")


def test_rows_without_a_text_name_the_setting(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no_text 1.*`reading\.fields\.text` of the source names"):
        curate_rows(tmp_path, [{"body": "The text is elsewhere."}])
