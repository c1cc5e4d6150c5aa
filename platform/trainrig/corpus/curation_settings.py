"""The run file of `trainrig curate`."""

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from trainrig import config
from trainrig.config.field_marks import ADDED_LATER
from trainrig.corpus.decontaminate import Decontamination
from trainrig.corpus.dedup import MinHash, NearDuplicates
from trainrig.corpus.dedup.keep_rules import KeepRule, Longest, SourcePriority
from trainrig.corpus.extract import Extractor, MainContent, finds_page_kind, reads_permissions
from trainrig.corpus.filters.filters import (
    TEXT_COLUMNS,
    Filters,
    GopherQuality,
    GopherRepetition,
    Language,
    Length,
    RepeatedLines,
    Symbols,
    find_bounded_text,
    list_read_columns,
    need_datatrove,
)
from trainrig.corpus.filters.general_rules import PERMISSION_COLUMNS
from trainrig.corpus.filters.published_rules import load_datatrove
from trainrig.corpus.limits import LANGUAGE_SHARE, PAGE_KIND
from trainrig.corpus.models.language_id import LanguageModel
from trainrig.corpus.models.scorers import BadWords, Scorer
from trainrig.corpus.read import ReadSettings
from trainrig.corpus.repeated_text.common_lines import CommonLines
from trainrig.corpus.repeated_text.exact_substrings import ExactSubstrings
from trainrig.corpus.repeated_text.site_lines import SiteLines
from trainrig.corpus.rewrite import C4Lines, RefinedWebLines, Rewrite
from trainrig.corpus.rewrite.pii_mask import PII
from trainrig.corpus.signals.text_signals import SIGNALS
from trainrig.corpus.signatures.shingle_similarity import Verification
from trainrig.corpus.url_blocklist import URL_COLUMNS, UrlLists

# Numeric columns that every document has.
MEASURED = (*SIGNALS, "language", "language_score", "extracted_share", "bytes", "pii_finds")

# Default filters of a source, for prose.
PROSE: Filters = (
    Length(),
    Language(),
    GopherRepetition(),
    GopherQuality(),
    Symbols(),
    RepeatedLines(),
)


def _suggest_measure(column: str) -> str:
    """Suggest how to get a column that only some runs have; "" for one that no run has."""
    if column in URL_COLUMNS:
        return "; name lists of domains and words in [urls]"
    if column in PERMISSION_COLUMNS:
        return "; set permissions = true in its extractor"
    if column == LANGUAGE_SHARE:
        return "; set paragraphs = true in [language]"
    if column == PAGE_KIND:
        return "; set page_kind = true in its extractor"
    if column == BadWords.model_fields["column"].default:
        return '; add [[scorers]] with kind = "BadWords" and the path of a word list'
    return "".join(
        f'; add {{ kind = "{kind.__name__}" }} to its rewrites'
        for kind in (C4Lines, RefinedWebLines)
        if column in kind.columns
    )


class WipeOut(config.Settings):
    """Limits at which the run stops because a step drops too much of a source.

    Unverified near-duplicates once reduced 859,092 documents to 2, and a percentage in place of a
    share does similar harm. Stopping loses nothing: the pages read are stored, and the run
    continues with other rules.
    """

    # Largest share of the documents reaching a step that the step may drop.
    max_share: float = Field(default=0.9, gt=0, le=1)
    # Steps that fewer documents reach are not checked, as a share of few documents means little.
    min_documents: int = Field(default=100, ge=1)


class Buckets(config.Settings):
    """Labels each document "head", "middle" or "tail" by the rank of a column in its language.

    As in CCNet (Wenzek et al. 2019, arXiv:1911.00359): the lowest 30% of perplexities, the next
    30%, and the rest. All documents read count, including dropped ones.
    """

    signal: str = "perplexity"  # column to rank documents by
    # Shares of documents, from the lowest value, at which "head" and "middle" end.
    shares: tuple[float, float] = (0.3, 0.6)

    @model_validator(mode="after")
    def _check_shares(self) -> Self:
        if not 0 < self.shares[0] < self.shares[1] < 1:
            raise ValueError(
                f"shares ({self.shares[0]}, {self.shares[1]}) must increase between 0 and 1"
            )
        return self


class LanguageSettings(config.Settings):
    """Models and columns of the languages of texts."""

    # "blend": fastText's lid.176, and n-grams of bytes as well for texts of up to 2,000 characters.
    # "lid.176": fastText's model alone.
    model: LanguageModel = "blend"
    # Whether to add the column `language_share`, the share of a text's long lines that are in its
    # language. The lines are identified one by one, in about 0.2 ms a page.
    paragraphs: bool = False


class CurationSource(config.Settings):
    """One source of the mixture: its pages and the rules for them."""

    # Name of the source in the mixture: letters, digits, "_" and "-".
    name: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    # Files, folders and patterns (with the wildcards * and ?) to read, on disk or in buckets.
    paths: Annotated[tuple[str, ...], config.NOT_IDENTITY] = Field(min_length=1)
    reading: ReadSettings = ReadSettings()  # how the files are split into pages
    extractor: Extractor = MainContent()  # how the text of a page is extracted
    # Changes to each text, in this order, before personal data are masked.
    rewrites: tuple[Rewrite, ...] = ()
    # Rules that a document must fulfil to be kept. The default is the rules for prose (`PROSE`).
    filters: Annotated[Filters, config.EXTENDABLE] = PROSE
    # When to stop because a step drops nearly everything.
    wipe_out: Annotated[WipeOut, config.EXTENDABLE] = WipeOut()

    @property
    def reads_permissions(self) -> bool:
        """True if the extractor also reads what pages allow."""
        return reads_permissions(self.extractor)

    @property
    def finds_page_kind(self) -> bool:
        """True if the extractor also finds the kind of each page."""
        return finds_page_kind(self.extractor)

    def check_rules(self, measured: Iterable[str]) -> None:
        """Raise ValueError if a rule needs a column neither `measured` nor counted by a rewrite."""
        there = {*measured, *(name for rewrite in self.rewrites for name in rewrite.columns)}
        if self.reads_permissions:
            there |= PERMISSION_COLUMNS
        if self.finds_page_kind:
            there.add(PAGE_KIND)
        for column, rule in list_read_columns(self.filters).items():
            if column not in there:
                raise ValueError(
                    f"{rule} '{column}', but source '{self.name}' does not measure "
                    f"it{_suggest_measure(column) or config.suggest_choice(column, sorted(there))}"
                )
        if bounded := find_bounded_text(self.filters):
            rule, column = bounded
            raise ValueError(
                f"{rule} bounds '{column}' by a number, but it holds text; use a filter of kind "
                f"'{TEXT_COLUMNS[column]}'"
            )


_SIMILARITIES = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9)


class Curation(config.RunFile):
    """`trainrig curate`: turns pages into documents.

    Keys marked EXTENDABLE can be changed later without reading pages again.
    """

    verb: ClassVar[str] = "curate"
    resumes: ClassVar[bool] = True
    extends_finished: ClassVar[bool] = True
    progress: ClassVar[config.ProgressUnit] = "splits"
    estimate: ClassVar[str] = "trainrig.corpus.curation_settings:odds_of_comparison"
    output_format: ClassVar[int] = 4  # 4: two models identify the language of short texts

    stage: Literal["curate"] = "curate"
    output: Annotated[str, config.OUTPUT]  # folder to write to, on disk or in a bucket
    # Number of worker processes; 0: work in this process, without Ray.
    workers: Annotated[int, config.NOT_IDENTITY] = Field(default=2, ge=0)
    # The sources of the mixture, each a `[[sources]]` table.
    sources: tuple[CurationSource, ...] = Field(min_length=1)
    pii: PII = PII()  # kinds of personal data to mask
    urls: UrlLists = UrlLists()  # lists of domains and words that filters of URLs use
    language: LanguageSettings = LanguageSettings()  # how languages are identified
    # Models that score each text; each writes a column that rules may bound.
    scorers: tuple[Scorer, ...] = ()
    # How to fill the column `bucket`; None: the column stays empty.
    buckets: Annotated[Buckets | None, config.EXTENDABLE] = None
    # Whether to keep only one document of each URL.
    url_duplicates: Annotated[bool, config.EXTENDABLE] = False
    # How near-duplicates are found.
    near_duplicates: Annotated[NearDuplicates, config.EXTENDABLE] = MinHash()
    # How candidate pairs are compared before one of a pair is dropped.
    verification: Annotated[Verification, config.EXTENDABLE] = Verification()
    # Which of several near-duplicates is kept.
    keep_rule: Annotated[KeepRule, config.EXTENDABLE] = Field(
        default=Longest(), discriminator="kind"
    )
    # How many of several equal or similar texts are kept: one, which `keep_rule` chooses, or none.
    # Documents of equal URLs always keep one.
    keep_copies: Annotated[Literal["one", "none"], config.EXTENDABLE, ADDED_LATER] = "one"
    # Outputs of earlier crawls, made with `index = true`. Documents that duplicate one of theirs
    # are dropped.
    against: Annotated[tuple[str, ...], config.NOT_IDENTITY] = ()
    # Whether to write an index that later crawls can name in `against`. The index takes 0.7 bytes
    # per byte of text.
    index: Annotated[bool, config.EXTENDABLE] = False
    # Memory in MiB that a worker may use to find duplicates.
    memory: Annotated[int, config.NOT_IDENTITY] = Field(default=2048, ge=384)
    # Settings to remove lines that many pages of one site share; None: none are removed.
    site_lines: Annotated[SiteLines | None, config.EXTENDABLE, ADDED_LATER] = None
    # Settings to remove lines that many documents share; None: none are removed.
    common_lines: Annotated[CommonLines | None, config.EXTENDABLE] = None
    # Settings to remove spans that occur more than once; None: none are removed.
    exact_substrings: Annotated[ExactSubstrings | None, config.EXTENDABLE] = None
    # Settings to remove or drop text that benchmarks contain; None: nothing is removed.
    decontamination: Annotated[Decontamination | None, config.EXTENDABLE] = None
    # What to store of dropped documents: everything ("text"), everything but the text ("signals"),
    # or nothing ("none").
    keep_dropped: Annotated[Literal["text", "signals", "none"], config.EXTENDABLE] = "text"

    @model_validator(mode="after")
    def _check_source_names(self) -> Self:
        name, number = Counter(source.name for source in self.sources).most_common(1)[0]
        if number > 1:
            raise ValueError(
                f"{number} sources have the name '{name}'; give each source a different name"
            )
        return self

    @model_validator(mode="after")
    def _check_line_sources(self) -> Self:
        there = [source.name for source in self.sources]
        for key, lines in (("site_lines", self.site_lines), ("common_lines", self.common_lines)):
            for name in (lines and lines.sources) or ():
                if name not in there:
                    raise ValueError(
                        f"{key}.sources: the run file has no source "
                        f"'{name}'{config.suggest_choice(name, there)}"
                    )
        return self

    @model_validator(mode="after")
    def _check_rule_columns(self) -> Self:
        for source in self.sources:
            source.check_rules(self.measured)
        if self.buckets and self.buckets.signal not in self.measured:
            hint = config.suggest_choice(self.buckets.signal, self.measured)
            raise ValueError(f"buckets: this run does not measure '{self.buckets.signal}'{hint}")
        return self

    @model_validator(mode="after")
    def _check_evidence_floor(self) -> Self:
        floor = self.verification.evidence_floor
        threshold = self.near_duplicates.threshold
        if floor > threshold:
            raise ValueError(
                f"verification.evidence_floor ({floor}) is above near_duplicates.threshold "
                f"({threshold}), so dropped documents would have no evidence; lower evidence_floor"
            )
        return self

    @model_validator(mode="after")
    def _check_keep_rule(self) -> Self:
        for column in self.keep_rule.columns:
            if column not in (*self.measured, "date"):
                hint = config.suggest_choice(column, self.measured)
                raise ValueError(f"keep_rule: this run does not measure '{column}'{hint}")
        there = [source.name for source in self.sources]
        if isinstance(self.keep_rule, SourcePriority) and not self.against:
            for name in self.keep_rule.sources:
                if name not in there:
                    raise ValueError(
                        "keep_rule: the run file has no source "
                        f"'{name}'{config.suggest_choice(name, there)}"
                    )
        return self

    @model_validator(mode="after")
    def _check_scorer_columns(self) -> Self:
        number = Counter((*self.measured, *(scorer.column for scorer in self.scorers)))
        for scorer in self.scorers:
            if number[scorer.column] > 2:
                raise ValueError(
                    f"scorers: the column '{scorer.column}' exists already; set another `column`"
                )
        return self

    def request_resources(self, there_are_gpus: bool) -> config.ResourceRequest:
        """Request a core for each worker."""
        return config.ResourceRequest.on_cores(self.workers)

    @property
    def needs_datatrove(self) -> bool:
        """True if a rule uses datatrove's signals."""
        return any(need_datatrove(source.filters) for source in self.sources)

    @property
    def measured(self) -> tuple[str, ...]:
        """Numeric columns of every source, without its rewrites' columns."""
        return (
            *MEASURED,
            *(load_datatrove().DATATROVE_SIGNALS if self.needs_datatrove else ()),
            *((LANGUAGE_SHARE,) if self.language.paragraphs else ()),
            *(URL_COLUMNS if self.urls != UrlLists() else ()),
            *(scorer.column for scorer in self.scorers),
        )


def odds_of_comparison(run: Curation, _: object) -> dict[str, float]:
    """Compute the probability that near-duplicates are compared, at several similarities s.

    The probability is 1 - (1 - s^rows)^bands.
    """
    near = run.near_duplicates
    found = {
        f"compared at similarity {similarity}": round(
            near.compute_candidate_probability(similarity), 4
        )
        for similarity in sorted({*_SIMILARITIES, near.threshold})
    }
    return {"near_duplicates.bands": near.bands, "near_duplicates.rows": near.rows, **found}
