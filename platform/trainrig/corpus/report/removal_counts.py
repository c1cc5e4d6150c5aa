"""Counts and samples of spans removed from documents, for the report."""

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainrig import manifest, storage
from trainrig.corpus.decontaminate import contamination_report
from trainrig.corpus.repeated_text.exact_substrings import RepeatedText
from trainrig.corpus.repeated_text.site_lines import SiteExample
from trainrig.corpus.report.curation_tallies import TALLIES
from trainrig.manifest import FileSum

MOST = 10  # passages shown per kind


@dataclass(frozen=True)
class CutRow:
    """Counts of what one step removed from one source's documents that reached it."""

    step: str
    source: str
    documents: int
    documents_cut: int
    unit: str  # unit of the sizes: "characters" or "bytes"
    size: int  # total size of the texts before the step
    size_cut: int

    @classmethod
    def of(cls, step: str, source: str, counts: Mapping[str, Any]) -> "CutRow":
        """Build the row from a step's counts, summed over the splits of a source."""
        unit = "bytes" if "bytes" in counts else "characters"
        return cls(
            step,
            source,
            counts["documents"],
            counts.get("documents_cut", counts.get("contaminated_cut", 0)),
            unit,
            counts[unit],
            counts[f"{unit}_cut"],
        )


@dataclass(frozen=True)
class RemovalCounts:
    """The data about removed spans in a report; empty if a run removes none."""

    rows: tuple[CutRow, ...] = ()
    repeated_texts: Mapping[str, Sequence[RepeatedText]] = dataclasses.field(default_factory=dict)
    contamination: contamination_report.ContaminationTallies | None = None
    # Lines of the sites with most pages; None: the run has no table `[site_lines]`.
    site_lines: Sequence[SiteExample] | None = None

    def save(self, folder: str) -> dict[str, FileSum]:
        """Write the data below `folder`, if there are any; return file sums by relative name."""
        if not self.rows:
            return {}
        below = f"{TALLIES}/cut.json"
        path = storage.join(folder, below)
        data = dataclasses.asdict(self)
        if self.site_lines is None:
            del data["site_lines"]  # keeps the bytes of runs without the table
        storage.write(path, json.dumps(data, indent=1).encode())
        return {below: manifest.compute_file_sum(path)}

    def compute_counts(self) -> dict[str, dict[str, int]]:
        """Return the counts for the manifest; empty if there are none."""
        if not self.rows:
            return {}
        cut: Counter[str] = Counter()
        for row in self.rows:
            cut[f"{row.step}_documents"] += row.documents_cut
            cut[f"{row.step}_{row.unit}"] += row.size_cut
        of_benchmarks = self.contamination.benchmarks if self.contamination else ()
        found = {row.benchmark: row.documents for row in of_benchmarks if row.documents}
        return {"cut": dict(cut), **({"contaminated_by": found} if self.contamination else {})}
