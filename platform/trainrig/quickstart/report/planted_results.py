"""The outcome of each injected fault, read from the curated output."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from trainrig.corpus.curate import DROPPED, KEPT, read_rows
from trainrig.corpus.dedup.documents import (
    EXACT,
    NEAR,
)
from trainrig.quickstart.site.planted import Plant

PlantedOutcome = Literal["caught", "missed", "gone"]
DUPLICATES = ("exact_duplicate", "near_duplicate")


@dataclass(frozen=True)
class CuratedRow:
    """The text of a curated document and the rule that dropped it."""

    text: str
    dropped_by: str | None


def find_outcomes(plants: Sequence[Plant], documents: str) -> dict[Plant, PlantedOutcome]:
    """Return the outcome of each injected fault in the curated folder `documents`.

    A copy is caught if it or its original was dropped as a duplicate, and gone if one of them was
    dropped for another reason. A foreign page is caught if the language rule dropped it. Personal
    data are caught if their value appears nowhere in their page, kept or dropped.
    """
    columns = ["url", "text", "dropped_by"]
    rows = {
        row["url"]: CuratedRow(row["text"], row["dropped_by"])
        for folder in (KEPT, DROPPED)
        for row in read_rows(documents, folder, columns)
    }
    return {plant: _find_outcome(plant, rows) for plant in plants}


def _find_outcome(plant: Plant, rows: Mapping[str, CuratedRow]) -> PlantedOutcome:
    row = rows.get(plant.url)
    if row is None:
        return "gone"
    if plant.kind == "personal_data":
        assert plant.value is not None
        return "missed" if plant.value in row.text else "caught"
    if plant.kind == "foreign_language":
        if row.dropped_by is None:
            return "missed"
        return "caught" if row.dropped_by.startswith("Language.") else "gone"
    original = rows.get(plant.original_url or "")
    reasons = [row.dropped_by, original.dropped_by if original else "absent"]
    if any(reason in (EXACT, NEAR) for reason in reasons):
        return "caught"
    return "missed" if reasons == [None, None] else "gone"


def tally(
    found: Mapping[Plant, PlantedOutcome], wanted: Iterable[str]
) -> dict[PlantedOutcome, int]:
    """Return the number of faults of the kinds `wanted` with each outcome."""
    counts: dict[PlantedOutcome, int] = {"caught": 0, "missed": 0, "gone": 0}
    kinds = set(wanted)
    for plant, outcome in found.items():
        if plant.kind in kinds:
            counts[outcome] += 1
    return counts


def count_by_kind(found: Mapping[Plant, PlantedOutcome]) -> dict[str, dict[PlantedOutcome, int]]:
    """Return the number of faults with each outcome, by kind.

    Personal data are counted by their type, such as EMAIL.
    """
    counts: defaultdict[str, dict[PlantedOutcome, int]] = defaultdict(
        lambda: {"caught": 0, "missed": 0, "gone": 0}
    )
    for plant, outcome in found.items():
        counts[plant.what or plant.kind][outcome] += 1
    return dict(counts)
