"""Counts and samples of spans removed from documents, and their sections of the report."""

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainrig import manifest, report, storage
from trainrig.corpus.decontaminate import contamination_report
from trainrig.corpus.repeated_text.exact_substrings import RepeatedText
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

    def save(self, folder: str) -> dict[str, FileSum]:
        """Write the data below `folder`, if there are any; return file sums by relative name."""
        if not self.rows:
            return {}
        below = f"{TALLIES}/cut.json"
        path = storage.join(folder, below)
        storage.write(path, json.dumps(dataclasses.asdict(self), indent=1).encode())
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

    def build_sections(self) -> tuple[report.Section, ...]:
        """Build the sections of the report."""
        found = []
        if self.rows:
            found.append(report.Section("cut", "Text removed from documents", self._build_blocks()))
        if self.contamination:
            found.append(contamination_report.build_contamination_section(self.contamination))
        return tuple(found)

    def _build_blocks(self) -> tuple[report.ReportTable | report.Details | report.Text, ...]:
        table = report.ReportTable(
            "Documents that reached each step, and the text that it removed. The column `cut` of "
            "a kept document has the removed text",
            ("step", "source", "documents", "cut", "unit", "size", "size removed", "share removed"),
            tuple(
                (
                    row.step,
                    row.source,
                    row.documents,
                    row.documents_cut,
                    row.unit,
                    row.size,
                    row.size_cut,
                    report.format_percent(row.size_cut, row.size),
                )
                for row in self.rows
            ),
        )
        titles = {
            "frequent": "Most frequently removed passages",
            "long": "Longest removed passages",
        }
        return table, *(
            report.Details(
                titles[kind], (report.SampleGroup(tuple(map(_show_repeated_text, repeated_texts))),)
            )
            for kind, repeated_texts in self.repeated_texts.items()
            if repeated_texts
        )


def _show_repeated_text(repeated_text: RepeatedText) -> report.TextSample:
    times = "once" if repeated_text.copies == 1 else f"{repeated_text.copies:,} times"
    return report.TextSample(
        f"{repeated_text.length:,} bytes", repeated_text.excerpt, f"removed {times}"
    )
