from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainrig.corpus.curate import DROPPED, KEPT
from trainrig.quickstart.injected_faults import DUPLICATES, count_by_kind, find_outcomes, tally
from trainrig.quickstart.site.site_plan import Plant

COPY = "http://a/copy"
ORIGINAL = "http://a/original"
PAGE = "http://a/page"
EXACT = Plant("exact_duplicate", COPY, original_url=ORIGINAL)
NEAR = Plant("near_duplicate", COPY, original_url=ORIGINAL, jaccard=0.9)
FOREIGN = Plant("foreign_language", PAGE, language="de")
MAIL = Plant("personal_data", PAGE, what="EMAIL", value="ann@example.com")
PHONE = Plant("personal_data", PAGE, what="PHONE", value="+49 30 901820", hard=True)


def write_rows(folder: Path, *rows: tuple[str, str | None, str]) -> str:
    """Write a curated folder of `(url, dropped_by, text)`, with two files of kept rows."""
    for name, chosen in {
        f"{KEPT}/a-00000": [row for row in rows[:1] if row[1] is None],
        f"{KEPT}/b-00000": [row for row in rows[1:] if row[1] is None],
        f"{DROPPED}/a-00000": [row for row in rows if row[1] is not None],
    }.items():
        path = folder / f"{name}.parquet"
        path.parent.mkdir(exist_ok=True)
        table: list[dict[str, Any]] = [
            {"url": url, "dropped_by": reason, "text": text} for url, reason, text in chosen
        ]
        columns = pa.schema([(name, pa.string()) for name in ("url", "dropped_by", "text")])
        pq.write_table(pa.Table.from_pylist(table, columns), path)
    return str(folder)


@pytest.mark.parametrize("plant", [EXACT, NEAR])
@pytest.mark.parametrize(
    ("copy", "original", "outcome"),
    [
        ("exact_duplicate", None, "caught"),
        ("near_duplicate", None, "caught"),
        (None, "near_duplicate", "caught"),
        (None, "exact_duplicate", "caught"),
        ("exact_duplicate", "Length.too_short", "caught"),
        (None, None, "missed"),
        ("Length.too_short", None, "gone"),
        (None, "Language.unsure", "gone"),
        ("Length.too_short", "Length.too_short", "gone"),
        ("unread", None, "gone"),
        (None, "unread", "gone"),
    ],
)
def test_a_duplicate_is_caught_if_either_copy_was_removed(
    tmp_path: Path, plant: Plant, copy: str | None, original: str | None, outcome: str
) -> None:
    rows = [(COPY, copy, "text"), (ORIGINAL, original, "text")]
    folder = write_rows(tmp_path, *(row for row in rows if row[1] != "unread"))
    assert find_outcomes([plant], folder) == {plant: outcome}


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("Language.not_allowed", "caught"),
        ("Language.unsure", "caught"),
        (None, "missed"),
        ("GopherQuality.stop_words", "gone"),
        ("exact_duplicate", "gone"),
    ],
)
def test_a_foreign_page_is_caught_by_its_language_alone(
    tmp_path: Path, reason: str | None, outcome: str
) -> None:
    assert find_outcomes([FOREIGN], write_rows(tmp_path, (PAGE, reason, "text"))) == {
        FOREIGN: outcome
    }


@pytest.mark.parametrize("reason", [None, "Length.too_short"])
def test_personal_data_are_caught_where_their_value_is_gone_from_the_text(
    tmp_path: Path, reason: str | None
) -> None:
    folder = write_rows(tmp_path, (PAGE, reason, "Write to <EMAIL>, or call +49 30 901820."))
    assert find_outcomes([MAIL, PHONE], folder) == {MAIL: "caught", PHONE: "missed"}


def test_an_unread_injected_page_is_gone(tmp_path: Path) -> None:
    plants = [EXACT, FOREIGN, MAIL]
    folder = write_rows(tmp_path, (ORIGINAL, None, "text"))
    assert find_outcomes(plants, folder) == dict.fromkeys(plants, "gone")


FOUND = {EXACT: "caught", NEAR: "missed", FOREIGN: "caught", MAIL: "caught", PHONE: "gone"}


def test_a_tally_counts_the_requested_kinds() -> None:
    assert tally(FOUND, DUPLICATES) == {"caught": 1, "missed": 1, "gone": 0}
    assert tally(FOUND, iter(["personal_data"])) == {"caught": 1, "missed": 0, "gone": 1}
    assert tally(FOUND, []) == {"caught": 0, "missed": 0, "gone": 0}


def test_outcomes_are_counted_by_kind_completely() -> None:
    kinds = count_by_kind(FOUND)
    assert kinds == {
        "exact_duplicate": {"caught": 1, "missed": 0, "gone": 0},
        "near_duplicate": {"caught": 0, "missed": 1, "gone": 0},
        "foreign_language": {"caught": 1, "missed": 0, "gone": 0},
        "EMAIL": {"caught": 1, "missed": 0, "gone": 0},
        "PHONE": {"caught": 0, "missed": 0, "gone": 1},
    }
    everything = [plant.kind for plant in FOUND]
    assert sum(tally(FOUND, everything).values()) == len(FOUND)
