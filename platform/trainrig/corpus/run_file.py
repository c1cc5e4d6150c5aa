"""The run file of `trainrig curate`."""

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from trainrig.config import (
    EXTENDABLE,
    NOT_IDENTITY,
    OUTPUT,
    ProgressUnit,
    ResourceRequest,
    RunFile,
    Settings,
    suggest_choice,
)
from trainrig.corpus.datatrove_signals.names import DATATROVE_SIGNALS
from trainrig.corpus.decontaminate import Decontamination
from trainrig.corpus.dedup import MinHash, NearDuplicates
from trainrig.corpus.dedup.decisions.keep import KeepRule, Longest, SourcePriority
from trainrig.corpus.dedup.lines import CommonLines
from trainrig.corpus.dedup.pairs.verify import Verification
from trainrig.corpus.dedup.substrings import ExactSubstrings
from trainrig.corpus.extract import Extractor, MainContent
from trainrig.corpus.filters import (
    Filters,
    GopherQuality,
    GopherRepetition,
    Language,
    Length,
    RepeatedLines,
    Symbols,
    list_read_columns,
    need_datatrove,
)
from trainrig.corpus.models import BadWords, Scorer
from trainrig.corpus.read import ReadSettings
from trainrig.corpus.rewrite import C4Lines, RefinedWebLines, Rewrite
from trainrig.corpus.rewrite.pii import PII
from trainrig.corpus.signals import SIGNALS
from trainrig.corpus.urls.blocklist import URL_COLUMNS, UrlLists

# Columns of numbers that every document has.
MEASURED = (*SIGNALS, "language", "language_score", "extracted_share", "bytes", "pii_finds")

# What documents of prose are held to unless a run file says otherwise.
PROSE: Filters = (
    Length(),
    Language(),
    GopherRepetition(),
    GopherQuality(),
    Symbols(),
    RepeatedLines(),
)


def _suggest_measure(column: str) -> str:
    """What to write for a column that not every run has; "" for one that no run has."""
    if column in URL_COLUMNS:
        return "; name lists of domains and words in [urls]"
    if column == BadWords.model_fields["column"].default:
        return '; add [[scorers]] with kind = "BadWords" and the path of your list'
    return "".join(
        f'; add {{ kind = "{kind.__name__}" }} to its rewrites'
        for kind in (C4Lines, RefinedWebLines)
        if column in kind.columns
    )


class WipeOut(Settings):
    """When a step takes so much of a source that the run stops and says so.

    Unverified copies once took 859,092 documents to 2; a threshold in percent where a share was
    meant does as much. Nothing is lost by stopping: what was read stays, and the run goes on under
    other rules.
    """

    # Largest share of the documents that reach a step which it may drop.
    max_share: float = Field(default=0.9, gt=0, le=1)
    # Documents below which a step is not judged: a few say nothing.
    min_documents: int = Field(default=100, ge=1)


class Buckets(Settings):
    """Names each document "head", "middle" or "tail" by where a column stands in its language.

    CCNet's (Wenzek et al. 2019, arXiv:1911.00359): the lowest 30% of perplexities, the next 30%,
    the rest. All documents read count, dropped ones as well.
    """

    signal: str = "perplexity"  # column to divide documents by
    # Share of documents, from the lowest values, up to which "head" and "middle" reach.
    shares: tuple[float, float] = (0.3, 0.6)

    @model_validator(mode="after")
    def _shares_rise(self) -> Self:
        if not 0 < self.shares[0] < self.shares[1] < 1:
            raise ValueError(f"shares: {self.shares[0]}, {self.shares[1]} do not rise from 0 to 1")
        return self


class CurationSource(Settings):
    """One domain of the mixture: where its pages are, and what they are held to."""

    # Name of the source in the mixture: letters, digits, "_" and "-".
    name: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    # Files, folders and patterns (* and ? are wildcards) to read, on disk or in buckets.
    paths: Annotated[tuple[str, ...], NOT_IDENTITY] = Field(min_length=1)
    reading: ReadSettings = ReadSettings()  # how its files are split into pages
    extractor: Extractor = MainContent()  # how the text of a page is found
    # Changes made to each text, in this order, before personal data are masked.
    rewrites: tuple[Rewrite, ...] = ()
    # Rules that a document must meet; those of prose (`PROSE`) unless told otherwise.
    filters: Annotated[Filters, EXTENDABLE] = PROSE
    # When to stop because a step drops nearly everything.
    wipe_out: Annotated[WipeOut, EXTENDABLE] = WipeOut()

    def check_rules(self, measured: Iterable[str]) -> None:
        """Raise ValueError for a rule about what is neither `measured` nor counted by a rewrite."""
        there = {*measured, *(name for each in self.rewrites for name in each.columns)}
        for column, rule in list_read_columns(self.filters).items():
            if column not in there:
                raise ValueError(
                    f"{rule} bounds '{column}', which nothing measures in source '{self.name}'"
                    f"{_suggest_measure(column) or suggest_choice(column, sorted(there))}"
                )


_SIMILARITIES = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9)


class Curation(RunFile):
    """`trainrig curate`: pages to documents.

    What is marked EXTENDABLE can be changed and decided again without a page being read.
    """

    verb: ClassVar[str] = "curate"
    resumes: ClassVar[bool] = True
    extends_finished: ClassVar[bool] = True
    progress: ClassVar[ProgressUnit] = "splits"
    estimate: ClassVar[str] = "trainrig.corpus.run_file:odds_of_comparison"
    output_format: ClassVar[int] = 2

    stage: Literal["curate"] = "curate"
    output: Annotated[str, OUTPUT]  # folder to write, on disk or s3://
    # Worker processes; 0: work in this process, without Ray.
    workers: Annotated[int, NOT_IDENTITY] = Field(default=2, ge=0)
    # The domains of the mixture, each a `[[sources]]` table.
    sources: tuple[CurationSource, ...] = Field(min_length=1)
    pii: PII = PII()  # which personal data to mask
    urls: UrlLists = UrlLists()  # lists of domains and words to judge URLs by
    # Models that score each text, each into a column that rules may bound.
    scorers: tuple[Scorer, ...] = ()
    # How to fill the column `bucket`; None: it stays empty.
    buckets: Annotated[Buckets | None, EXTENDABLE] = None
    # Whether to drop all but one document of the same URL.
    url_duplicates: Annotated[bool, EXTENDABLE] = False
    # How documents that resemble each other are found.
    near_duplicates: Annotated[NearDuplicates, EXTENDABLE] = MinHash()
    # How a pair that was found is compared before one of it is dropped.
    verification: Annotated[Verification, EXTENDABLE] = Verification()
    # Which of several near-duplicates stays.
    keep_rule: Annotated[KeepRule, EXTENDABLE] = Field(default=Longest(), discriminator="kind")
    # Outputs of earlier crawls made with `index = true`; documents that repeat one of theirs are
    # dropped.
    against: Annotated[tuple[str, ...], NOT_IDENTITY] = ()
    # Whether to write an index that later crawls can name in `against`: 0.7 bytes for each byte of
    # text.
    index: Annotated[bool, EXTENDABLE] = False
    # MiB that a worker may use to find duplicates.
    memory: Annotated[int, NOT_IDENTITY] = Field(default=2048, ge=384)
    # Cut lines that many documents share; None: cut none.
    common_lines: Annotated[CommonLines | None, EXTENDABLE] = None
    # Cut spans that occur more than once; None: cut none.
    exact_substrings: Annotated[ExactSubstrings | None, EXTENDABLE] = None
    # Cut or drop what benchmarks contain; None: nothing.
    decontamination: Annotated[Decontamination | None, EXTENDABLE] = None
    # What to keep of dropped documents: everything, everything but the text, or nothing.
    keep_dropped: Annotated[Literal["text", "signals", "none"], EXTENDABLE] = "text"

    @model_validator(mode="after")
    def _no_two_sources_share_a_name(self) -> Self:
        name, number = Counter(source.name for source in self.sources).most_common(1)[0]
        if number > 1:
            raise ValueError(f"{number} sources are named '{name}'; give each a name of its own")
        return self

    @model_validator(mode="after")
    def _rules_speak_of_what_is_measured(self) -> Self:
        for source in self.sources:
            source.check_rules(self.measured)
        if self.buckets and self.buckets.signal not in self.measured:
            hint = suggest_choice(self.buckets.signal, self.measured)
            raise ValueError(f"buckets: nothing measures '{self.buckets.signal}'{hint}")
        return self

    @model_validator(mode="after")
    def _evidence_reaches_down_to_the_threshold(self) -> Self:
        floor, threshold = self.verification.evidence_floor, self.near_duplicates.threshold
        if floor > threshold:
            raise ValueError(
                f"verification.evidence_floor ({floor}) is above near_duplicates.threshold "
                f"({threshold}), so what falls would have no evidence; lower it"
            )
        return self

    @model_validator(mode="after")
    def _the_keep_rule_speaks_of_what_there_is(self) -> Self:
        for column in self.keep_rule.columns:
            if column not in (*self.measured, "date"):
                hint = suggest_choice(column, self.measured)
                raise ValueError(f"keep_rule: nothing measures '{column}'{hint}")
        there = [source.name for source in self.sources]
        if isinstance(self.keep_rule, SourcePriority) and not self.against:
            for name in self.keep_rule.sources:
                if name not in there:
                    raise ValueError(f"keep_rule: no source '{name}'{suggest_choice(name, there)}")
        return self

    @model_validator(mode="after")
    def _no_two_columns_share_a_name(self) -> Self:
        number = Counter((*self.measured, *(each.column for each in self.scorers)))
        for each in self.scorers:
            if number[each.column] > 2:
                raise ValueError(
                    f"scorers: the column '{each.column}' is there already; set another `column`"
                )
        return self

    def request_resources(self, there_are_gpus: bool) -> ResourceRequest:
        """Its workers, on cores."""
        return ResourceRequest.on_cores(self.workers)

    @property
    def needs_datatrove(self) -> bool:
        """Whether a rule goes by that library's words."""
        return any(need_datatrove(source.filters) for source in self.sources)

    @property
    def measured(self) -> tuple[str, ...]:
        """The columns of numbers that each source has, whatever rewrites it has besides."""
        return (
            *MEASURED,
            *(DATATROVE_SIGNALS if self.needs_datatrove else ()),
            *(URL_COLUMNS if self.urls != UrlLists() else ()),
            *(each.column for each in self.scorers),
        )


def odds_of_comparison(run: Curation, _: object) -> dict[str, float]:
    """How likely near-duplicates are to be compared, 1 - (1 - s^rows)^bands, at a few similarities
    s."""
    near = run.near_duplicates
    found = {
        f"compared at similarity {similarity}": round(
            near.compute_candidate_probability(similarity), 4
        )
        for similarity in sorted({*_SIMILARITIES, near.threshold})
    }
    return {"near_duplicates.bands": near.bands, "near_duplicates.rows": near.rows, **found}
