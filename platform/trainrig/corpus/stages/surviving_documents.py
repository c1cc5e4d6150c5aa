"""Documents that passed the rules and deduplication, and the spans that later steps remove."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from trainrig.corpus.array_files import load_arrays
from trainrig.corpus.array_types import Int64s
from trainrig.corpus.curation_settings import Curation
from trainrig.corpus.decontaminate import CONTAMINATED
from trainrig.corpus.dedup.dedup_decisions import KEPT, DedupDecisions
from trainrig.corpus.documents import MeasuredDocuments
from trainrig.corpus.removed_spans import Removed, RemovedSpan, map_to_original, remove_spans
from trainrig.corpus.repeated_text.common_lines import COMMON_LINES
from trainrig.corpus.repeated_text.exact_substrings import EXACT_SUBSTRINGS
from trainrig.corpus.repeated_text.record_files import load_spans
from trainrig.corpus.repeated_text.site_lines import SITE_LINES
from trainrig.corpus.stages.apply_rules import PathBuilder, read_verdicts
from trainrig.splits import Task

# Removal steps, in order.
CUT_STEPS = (SITE_LINES, COMMON_LINES, EXACT_SUBSTRINGS, CONTAMINATED)


def list_removal_steps(run: Curation) -> tuple[str, ...]:
    """Return the removal steps that `run` has sections for, in order."""
    sections = (run.site_lines, run.common_lines, run.exact_substrings, run.decontamination)
    return tuple(
        step for step, section in zip(CUT_STEPS, sections, strict=True) if section is not None
    )


@dataclass(frozen=True)
class SurvivingDocuments:
    """The surviving documents of each split, and the files of the spans removed from them."""

    pool: MeasuredDocuments
    path_of: PathBuilder
    steps: tuple[str, ...]

    def select(self, task: Task) -> "SurvivingDocuments":
        """Return the surviving documents of the split of `task`."""
        return dataclasses.replace(self, pool=self.pool.select(task))

    def iterate_rows(self, split: str, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the surviving rows of a split, in chunks."""
        survives = DedupDecisions.load(self.path_of("decided", f"{split}.npz")).kinds == KEPT
        at = 0
        for rows, first in read_verdicts(self.pool, self.path_of, split, columns):
            passed = rows.filter(pa.array(first < 0))
            yield passed.filter(pa.array(survives[at : at + len(passed)]))
            at += len(passed)

    def iterate_rows_before(
        self, step: str, split: str, columns: Sequence[str] = ()
    ) -> Iterator[tuple[pa.Table, list[str]]]:
        """Yield chunks of rows with `columns`, and texts as left by the steps before `step`."""
        cutter = SpanRemover.of(self, split, self.steps[: self.steps.index(step)])
        for rows in self.iterate_rows(split, ["text", *columns]):
            yield rows, [cutter.remove_next(text)[0] for text in rows["text"].to_pylist()]

    def iterate_texts_before(self, step: str, split: str) -> Iterator[list[str]]:
        """Yield chunks of texts as left by the steps before `step`."""
        return (texts for _, texts in self.iterate_rows_before(step, split))

    def read_numbered(self, step: str, split: str) -> Iterator[tuple[list[str], Int64s]]:
        """Yield chunks of texts, and each document's position in the keep order of the corpus."""
        numbers = load_arrays(self.path_of("numbers", f"{split}.npz"))["numbers"]
        at = 0
        for texts in self.iterate_texts_before(step, split):
            yield texts, numbers[at : at + len(texts)]
            at += len(texts)

    def name_spans_file(self, step: str, split: str) -> str:
        """Return the path of the spans that `step` removes from a split."""
        return self.path_of(step, f"{split}.cuts")

    def name_marks_file(self, split: str) -> str:
        """Return the path of the boilerplate spans of a split, also of those that stay."""
        return self.path_of(SITE_LINES, f"{split}.marks")

    def name_fallen_file(self, split: str) -> str:
        """Return the path of the documents of a split that decontamination drops."""
        return self.path_of(CONTAMINATED, f"{split}.npz")


class SpanRemover:
    """Remover of spans from the texts of one split, which must be given in order."""

    def __init__(
        self, cuts: Mapping[str, dict[int, list[RemovedSpan]]], fallen: frozenset[int]
    ) -> None:
        self._cuts = cuts
        self._fallen = fallen
        self._document = 0

    @classmethod
    def of(cls, surviving: SurvivingDocuments, split: str, steps: Sequence[str]) -> "SpanRemover":
        """Build the remover of all spans that `steps` found in a split."""
        cuts = {step: load_spans(surviving.name_spans_file(step, split), step) for step in steps}
        fallen: list[int] = []
        if CONTAMINATED in steps:
            fallen = load_arrays(surviving.name_fallen_file(split))["fallen"].tolist()
        return cls(cuts, frozenset(fallen))

    def remove_next(self, text: str) -> tuple[str, list[Removed], str | None]:
        """Process the next document: return its new text, the removed spans, and any dropping step.

        Positions are those in `text`. The step is None if the document is kept. A document of which
        nothing is left is dropped by the last step that cut it.
        """
        document = self._document
        self._document = self._document + 1
        left = text
        removed = list[Removed]()
        all_spans = list[RemovedSpan]()
        last = None
        for step, cuts in self._cuts.items():
            if document in cuts:
                all_spans += map_to_original(cuts[document], removed)
                left, removed = remove_spans(text, all_spans)
                last = step
        if document in self._fallen:
            return left, removed, CONTAMINATED
        return left, removed, last if last and not left.strip() else None


class SiteLinesShares:
    """Shares of boilerplate in the texts of one split, which must be given in order."""

    def __init__(self, marks: Mapping[int, Sequence[RemovedSpan]]) -> None:
        self._marks = marks
        self._document = 0

    @classmethod
    def of(cls, surviving: SurvivingDocuments, split: str) -> "SiteLinesShares":
        """Read the boilerplate spans of a split."""
        return cls(load_spans(surviving.name_marks_file(split), SITE_LINES))

    def measure_next(self, text: str) -> float:
        """Return the share of the next document's characters that are in marked spans."""
        spans = self._marks.get(self._document, ())
        self._document += 1
        return sum(span.end - span.start for span in spans) / max(1, len(text))
