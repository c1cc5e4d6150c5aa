"""Curation: turns pages into documents, with a reason for each dropped document.

    OUTPUT/  kept/SPLIT.parquet  dropped/SPLIT.parquet  quarantine/SPLIT.jsonl  manifest.json
             tallies/*.parquet  report.html  copies/ (dedup/decisions)

Curation runs passes over splits. *read* extracts and measures pages; no other pass reads them.
*judge* applies the rules to the stored columns. *sign* computes digests of the texts that passed.
The passes of `dedup.search` find duplicates from digests and shingles alone. *write* writes each
document to its folder. Texts are never sent between workers.

All passes but *read* depend only on what reading stored. So a finished curation that is run again
with other rules starts at *judge*, from the documents that it kept and dropped.
"""

import contextlib
import dataclasses
import functools
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow.parquet as pq

from trainrig import manifest, storage
from trainrig.config import extract_identity
from trainrig.corpus.curation_settings import Curation as Curation
from trainrig.corpus.decontaminate import check_examples, fingerprint
from trainrig.corpus.dedup.dedup_decisions import COPIES
from trainrig.corpus.dedup.document_refs import SplitIndex
from trainrig.corpus.dedup.duplicate_search import DuplicateSearch
from trainrig.corpus.dedup.search_passes import (
    DuplicatesFound,
    find_duplicates,
    find_step_number,
    list_steps,
)
from trainrig.corpus.documents import DROPPED as DROPPED
from trainrig.corpus.documents import KEPT as KEPT
from trainrig.corpus.documents import DecidedDocuments, MeasuredDocuments, Parts, Replacement
from trainrig.corpus.report import closing_lines
from trainrig.corpus.report.curation_tallies import CurationTallies
from trainrig.corpus.report.host_tallies import describe_doubtful
from trainrig.corpus.report.removal_counts import RemovalCounts
from trainrig.corpus.stages import apply_rules, near_duplicates, tally_sums, write_documents
from trainrig.corpus.stages.near_duplicates import (
    build_paths,
    check_earlier,
    forget_torn,
    list_earlier_split_indexes,
    pairs_are_known,
    read_known_splits,
    search_for,
)
from trainrig.corpus.stages.read_pages import plan_splits, read_all_pages
from trainrig.corpus.stages.span_removal import SpanRemoval, list_removal_passes
from trainrig.corpus.stages.surviving_documents import SurvivingDocuments, list_removal_steps
from trainrig.errors import DataError
from trainrig.manifest import Manifest, Stage
from trainrig.ray_runtime.ray_session import connect
from trainrig.ray_runtime.split_processing import Progress, map_splits
from trainrig.splits import PLAIN_WORKER, Phase, Split, Work, sum_counts
from trainrig.storage.concurrent_requests import map_concurrently

log = logging.getLogger(__name__)

REPORT_PAGE = "report.html"
# Version of the files that passes after *read* leave for each other; increase it when they change.
# A run that another version began then continues from the pages read.
PASSES_FORMAT = 6
# Version of the pages and signals that *read* leaves; increase it when they change. A run that
# another version began then reads its pages again, so that an output has pages of one version.
READ_FORMAT = 4
READ = "read"  # folder of the first pass's records; other passes' records belong to a decision
TITLES = {READ: "read pages", "judge": "apply rules", "write": "write documents"}

# splits; up to this many, rules are applied in this process, as workers take time to start
JUDGED_HERE = 500


def curate(run: Curation, progress: Progress | None = None) -> Manifest:
    """Curate as `run` says, resuming an earlier call; return the manifest of the output.

    The output is bit-identical at any number of workers. Raises DataError if inputs are missing or
    of an unknown format, if a step drops nearly all of a source, or if nothing is kept.
    """
    Replacement(run.output).go_on()
    plan = plan_splits(run)
    inputs = plan.inputs | check_earlier(run)
    benchmarks = {"benchmarks": fingerprint(run.decontamination)} if run.decontamination else {}
    stage = manifest.claim(run.output, run, inputs, extendable_inputs=benchmarks)
    if stage.finished:
        return stage.finished
    if stage.before:
        _check_texts_were_kept(run, stage.before)
    passes = _Passes(run, stage, plan.splits, progress, plan.passed_over)
    with stage.undo_if_refused():
        if run.decontamination:
            check_examples(run.decontamination)
        if run.workers:
            connect(run.workers, "workers")
        pool, cost = _read_finished(run, stage.before) if stage.before else passes.read()
    passes = dataclasses.replace(passes, splits=pool.add_to_tasks(plan.splits))
    passes.check_columns(pool)
    passes.judge(pool)
    search, found = passes.find_duplicates(pool)
    cut = passes.remove_spans(pool, search)
    return passes.write(pool, search, found, cut, cost)


def _read_finished(run: Curation, before: Manifest) -> tuple[MeasuredDocuments, dict[str, float]]:
    """Return the documents of a finished curation, and the cost of reading them."""
    return DecidedDocuments(run.output), before.cost


def _check_texts_were_kept(run: Curation, before: Manifest) -> None:
    kept = f'keep_dropped = "{before.config["keep_dropped"]}"'
    if before.config["keep_dropped"] != "text":
        raise DataError(
            f"{run.output}: other rules cannot be applied, because this output does not store "
            f"the texts of dropped documents ({kept}); choose another `output`"
        )


@dataclass(frozen=True)
class _Passes:
    """The passes of one run, and the work of the driver between them."""

    run: Curation
    stage: Stage
    splits: Sequence[Split]
    progress: Progress | None
    passed_over: Mapping[str, Any] = field(default_factory=dict)  # files that are not read
    seconds: dict[str, float] = field(default_factory=dict)  # seconds of this process, by phase

    @contextlib.contextmanager
    def _time_phase(self, phase: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            name = f"seconds_{phase}"
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - began

    @functools.cached_property
    def decision(self) -> str:
        """The folder of all that depends on the rules; other rules give another folder."""
        follows_from = [extract_identity(self.run), self.stage.claim.inputs, PASSES_FORMAT]
        return f"decision-{manifest.digest(follows_from)[:16]}"

    @functools.cached_property
    def path_of(self) -> apply_rules.PathBuilder:
        """Builder of paths to intermediate files of this decision."""
        folder = storage.join(self.run.output, manifest.SCRATCH, self.decision)
        return functools.partial(storage.join, folder)

    @functools.cached_property
    def pairs_are_known(self) -> bool:
        """True if a finished output holds the pairs of near-duplicates that the run needs."""
        return self.stage.before is not None and pairs_are_known(self.run)

    @functools.cached_property
    def searched(self) -> str:
        """The folder of the files of the search for duplicates."""
        if self.pairs_are_known:
            return storage.join(self.run.output, near_duplicates.FOLDER)
        return self.path_of()

    def read(self) -> tuple[MeasuredDocuments, dict[str, float]]:
        """Read pages into measured documents; return these and the cost of reading."""
        work = functools.partial(read_all_pages, self.run)
        with self._time_phase("read"):
            phase = self._map(READ, work, self.splits, before=0)
        parts = dict[str, int]()
        peak = 0
        for record in phase.iterate_results(self.splits):
            parts[record.name] = record.counts["parts"]
            peak = max(peak, record.counts["peak_bytes"])
        results = functools.partial(phase.iterate_results, self.splits)
        counts = sum_counts(record.counts["found"] for record in results())
        if not counts["documents"]:
            raise DataError(f"{self.run.output}: nothing to curate; {explain_nothing_read(counts)}")
        cost = {
            **sum_counts(record.counts["cost"] for record in results()),
            "peak_bytes": peak,
        }
        return Parts(self.run.output, parts), cost

    def check_columns(self, pool: MeasuredDocuments) -> None:
        """Raise DataError if a rule needs a column that was not measured when pages were read.

        Columns that no rule needs may be missing, such as signals of newer versions.
        """
        names = [split.name for split in self.splits]
        there = set().union(*map_concurrently(pool.list_columns, names))
        missing = sorted(apply_rules.list_deciding_columns(self.run) - there)
        if missing:
            raise DataError(
                f"{self.run.output}: these rules need "
                f"{', '.join(missing[:3])}{', …' if len(missing) > 3 else ''}, which were not "
                "measured when the documents were read; choose another `output`"
            )

    def judge(self, pool: MeasuredDocuments) -> None:
        """Apply the rules to all documents. Raises DataError if a rule wipes out a source."""
        for name, find in (
            ("cuts.json", apply_rules.find_thresholds),
            ("bucket_cuts.json", apply_rules.find_bucket_thresholds),
        ):
            if not storage.exists(self.path_of(name)):
                found = find(self.run, pool, self.splits)
                storage.write(self.path_of(name), json.dumps(found).encode())
        shared = pool.without_splits()
        work = functools.partial(apply_rules.apply_rules_to_split, self.run, shared, self.path_of)
        here = len(self.splits) <= JUDGED_HERE
        workers = 0 if here else self.run.workers
        with self._time_phase("judge"):
            phase = self._map("judge", work, self.splits, len(self.splits), workers)
            counts = sum_counts(record.counts for record in phase.iterate_results(self.splits))
        storage.write(self.path_of(tally_sums.RULES_TALLY), json.dumps(counts).encode())
        apply_rules.refuse_rules_that_wipe_out(self.run, counts["tally"])

    def find_duplicates(self, pool: MeasuredDocuments) -> tuple[DuplicateSearch, DuplicatesFound]:
        """Find duplicates among the documents that passed; return the search and its result."""
        known = self.pairs_are_known
        if known:
            counts = read_known_splits(self.run)
            self._report_progress(3 * len(self.splits))
        else:
            with self._time_phase("sign"):
                counts = self._sign(pool)
        own = [
            SplitIndex(
                name,
                len(self.run.against),
                False,
                **build_paths(self.searched, name),
                count=n,
                shingles=m,
            )
            for name, (n, m) in counts.items()
        ]
        split_indexes = [*own, *list_earlier_split_indexes(self.run)]
        search = search_for(self.run, split_indexes, self.path_of, self.run.near_duplicates.bands)
        with self._time_phase("search"):
            step = functools.partial(self._step, search.plan.bytes)
            found = find_duplicates(search, step, known)
        if known:
            found = near_duplicates.with_known_pairs(self.run, found)
        for number, source in enumerate(self.run.sources):
            of_source = [n for n, split in enumerate(self.splits) if split.task["source"] == number]
            passed = sum(own[n].count for n in of_source)
            fell = sum_counts(found.by_split[n] for n in of_source)
            in_order = {step: fell.get(step, 0) for step in COPIES}
            apply_rules.refuse_wiped_out(self.run, source.name, in_order, passed)
        return search, found

    def _sign(self, pool: MeasuredDocuments) -> dict[str, tuple[int, int]]:
        """Sign the texts that passed; return the numbers of documents and shingles by split."""
        shared = pool.without_splits()
        work = functools.partial(write_documents.write_signatures, self.run, shared, self.path_of)
        before = 2 * len(self.splits)
        phase = Phase(_name_done_folder(self.run, self.decision, "sign"), work)
        forget_torn(phase, self.splits, self.path_of())
        records = self._map("sign", work, self.splits, before).iterate_results(self.splits)
        return {
            record.name: (record.counts["documents"], record.counts["shingles"])
            for record in records
        }

    def _step(
        self, memory: int, name: str, make_work: Callable[[], Work], tasks: Sequence[Split]
    ) -> Phase:
        """Run one pass of the search for duplicates; each pass counts as one split of progress.

        `memory`: bytes that the search plans for one worker.
        """
        done = _name_done_folder(self.run, self.decision, name)
        phase = Phase(done, make_work, title=_title(name), memory=max(PLAIN_WORKER, memory))
        map_splits(phase, tasks, self.run.workers if len(tasks) > 1 else 0, brief=True)
        number = find_step_number(name, self.run.url_duplicates)
        self._report_progress(3 * len(self.splits) + number)
        return phase

    def remove_spans(self, pool: MeasuredDocuments, search: DuplicateSearch) -> RemovalCounts:
        """Find the spans to remove from the surviving documents; return their counts."""
        own = [split_index for split_index in search.split_indexes if not split_index.earlier]
        steps = list_removal_steps(self.run)
        surviving = SurvivingDocuments(pool.without_splits(), self.path_of, steps)
        with self._time_phase("cut"):
            counts = SpanRemoval(
                self.run, surviving, self.splits, self._run_removal_pass
            ).find_spans(own)
        apply_rules.refuse_cut_away(self.run, counts.rows)
        return counts

    def _run_removal_pass(
        self, name: str, make_work: Callable[[], Work], tasks: Sequence[Split]
    ) -> Phase:
        """Run one pass of span removal; each pass counts as one split of progress."""
        done = _name_done_folder(self.run, self.decision, name)
        phase = Phase(done, make_work, title=_title(name))
        map_splits(phase, tasks, self.run.workers if len(tasks) > 1 else 0, brief=True)
        number = list_removal_passes(self.run).index(name.rstrip("-0123456789")) + 1
        self._report_progress(
            3 * len(self.splits) + len(list_steps(self.run.url_duplicates)) + number
        )
        return phase

    def write(
        self,
        pool: MeasuredDocuments,
        search: DuplicateSearch,
        found: DuplicatesFound,
        cut: RemovalCounts,
        cost: Mapping[str, float],
    ) -> Manifest:
        """Write each document to its folder; return the manifest."""
        # A finished output stays complete until all of its replacement is written.
        folder = self.path_of("new") if self.stage.before else self.run.output
        shared = pool.without_splits()
        work = functools.partial(
            write_documents.write_split, self.run, shared, self.path_of, folder, self.searched
        )
        passes = len(list_steps(self.run.url_duplicates)) + len(list_removal_passes(self.run))
        before = 3 * len(self.splits) + passes
        with self._time_phase("write"):
            phase = self._map("write", work, self.splits, before)
        written = sum_counts(record.counts for record in phase.iterate_results(self.splits))
        counts = written | cut.compute_counts()
        counts["pairs"] = {
            "compared": found.candidates,
            "verified": found.verified,
            "clusters": found.clusters,
        }
        if self.passed_over:
            counts["files_passed_over"] = dict(self.passed_over)
        if not counts["documents_kept"]:
            raise DataError(f"{self.run.output}: nothing was kept; {explain_nothing_kept(counts)}")
        files = {
            name: entry
            for record in phase.iterate_results(self.splits)
            for name, entry in record.files.items()
        }
        files |= near_duplicates.write_index(self.run, folder, search, found)
        tallies = self._sum_tallies()
        if thin := describe_doubtful(tallies.hosts):
            log.warning("%s: %s", self.run.output, thin)
        files |= tallies.save(folder)
        files |= cut.save(folder)
        rules = {
            source.name: apply_rules.list_source_rules(self.run, source)
            for source in self.run.sources
        }
        near = self.run.near_duplicates
        cost = {**cost, **{name: round(took, 3) for name, took in self.seconds.items()}}
        # Imported here because workers and `check` import this module and would load matplotlib.
        from trainrig.corpus.report.curation_page import render_curation_page

        page = render_curation_page(
            tallies, counts, rules, cost, self._describe_provenance(), near, cut
        )
        storage.write(storage.join(folder, REPORT_PAGE), page.encode())
        self._describe_result(tallies, counts)
        if self.stage.before:
            replacement = Replacement(self.run.output)
            replacement.begin(self.stage.build_manifest(counts, files, cost), folder, [REPORT_PAGE])
            return manifest.read_manifest(self.run.output)
        return self.stage.finish(counts, files, cost)

    def _sum_tallies(self) -> CurationTallies:
        """Add up the tallies of all splits by tasks; return the sum."""
        workers = self.run.workers if len(self.splits) > tally_sums.FAN_IN else 0

        def run_tasks(level: int, tasks: Sequence[Split]) -> None:
            done = _name_done_folder(self.run, self.decision, "tallies", str(level))
            work = functools.partial(tally_sums.sum_tallies, self.path_of, level)
            map_splits(Phase(done, work, title=_title("tallies")), tasks, workers, brief=True)

        with self._time_phase("write"):
            summed = tally_sums.add_up([split.name for split in self.splits], run_tasks)
            return tally_sums.read_tallies(self.run, self.path_of, *summed)

    def _describe_result(self, tallies: CurationTallies, counts: Mapping[str, Any]) -> None:
        """Log what was dropped most and where to read more, and warn of sources that lost most."""
        for line in closing_lines.describe_drops(tallies):
            log.info("%s", line)
        if lost := closing_lines.explain_lost_records(counts["quarantined"]):
            log.warning("%s: %s", self.run.output, lost)
        for line in closing_lines.warn_of_thin_sources(tallies):
            log.warning("%s", line)
        log.info("report: %s", storage.join(self.run.output, REPORT_PAGE))

    def _describe_provenance(self) -> dict[str, dict[str, str]]:
        claim = self.stage.claim
        return {
            "Inputs": {name: f"{sum_} (SHA-256)" for name, sum_ in claim.inputs.items()},
            "Made with": claim.environment,
        }

    def _map(
        self,
        name: str,
        make_work: Callable[[], Work],
        splits: Sequence[Split],
        before: int,
        workers: int | None = None,
    ) -> Phase:
        """Run one pass, reporting its progress as a part of the whole; None: with all workers."""
        records = (f"{READ}-{READ_FORMAT}",) if name == READ else (self.decision, name)
        done = _name_done_folder(self.run, *records)
        phase = Phase(done, make_work, name == READ, _title(TITLES.get(name, name)))
        workers = self.run.workers if workers is None else workers
        map_splits(phase, splits, workers, lambda done, _: self._report_progress(before + done))
        return phase

    def _report_progress(self, done: int) -> None:
        if self.progress:
            passes = len(list_steps(self.run.url_duplicates)) + len(list_removal_passes(self.run))
            self.progress(done, 4 * len(self.splits) + passes)


def _title(name: str) -> str:
    """Return the name of a pass as Ray shows it."""
    return f"curate: {name.replace('-', ' ')}"


def _name_done_folder(run: Curation, *names: str) -> str:
    """Return the folder of a pass's records."""
    return storage.join(run.output, manifest.SCRATCH, "done", *names)


def read_rows(output: str, folder: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the documents in one folder (KEPT or DROPPED) of a curated output, file by file."""
    for path in storage.list_files(storage.join(output, folder), ".parquet"):
        yield from pq.read_table(storage.fetch_local_path(path), columns=list(columns)).to_pylist()


def explain_nothing_read(counts: Mapping[str, Any]) -> str:
    """Explain why none of the records gave a document; `counts` are from the reading."""
    reasons = Counter(counts["quarantined"])
    if not reasons:
        return "the inputs contain no page"
    return (
        f"no record gave a document, of {reasons.total():,} read "
        f"({_format_most_common(reasons)}); "
        + (
            closing_lines.TEXT_HINT
            if closing_lines.NO_TEXT in reasons
            else "name other files in `paths`, or set another `extractor`"
        )
    )


def explain_nothing_kept(counts: Mapping[str, Any]) -> str:
    """Explain which steps dropped all documents; `counts` are from the manifest."""
    reasons = Counter(counts["dropped_by"])
    documents = counts["documents_extracted"]
    return (
        f"documents ({documents:,}) were dropped mostly by {_format_most_common(reasons)}; relax "
        "`filters`"
    )


def _format_most_common(reasons: Counter[str]) -> str:
    return ", ".join(f"{reason} {number:,}" for reason, number in reasons.most_common(3))
