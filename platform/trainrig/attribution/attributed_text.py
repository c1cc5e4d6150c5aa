"""A text with the pages that its parts stand in: collected here, shown by a terminal or a page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.text import Text

from trainrig.attribution.corpus_index import CorpusIndex, Occurrence
from trainrig.attribution.learned_steps import LearnedSteps, LearningRun
from trainrig.attribution.page_signals import CorpusRow, read_signals
from trainrig.attribution.verbatim_spans import (
    VerbatimSpan,
    count_covered,
    decode_with_places,
    find_spans,
)
from trainrig.config import Field, Settings
from trainrig.errors import ConfigError
from trainrig.report.number_formats import escape_invisible, format_count
from trainrig.tokens.document_formats import name_place

COLOURS = ("cyan", "yellow", "green", "magenta")  # spans use them in rotation
# Signals in the terminal; JSON and the page have all.
SHOWN = ("language", "language_score", "words", "stop_words", "duplicate_lines")
# Occurrences of a span whose steps are looked up, for each document that is shown.
CANDIDATES = 8
SHOWN_STEPS = 8  # steps of a run in the terminal; JSON and the page have all


class AttributionLimits(Settings):
    """Limits on the spans and pages that are shown for a text."""

    minimum: int = Field(ge=1)  # tokens of the shortest span
    spans: int = Field(ge=1)  # most spans, the rarest ones
    documents: int = Field(ge=0)  # most documents of a span
    context: int = Field(ge=0)  # tokens shown before and after a span in a document


@dataclass(frozen=True)
class SourceDocument:
    """A document in which a span stands, with its origin and the text around the span."""

    source: str
    url: str
    id: str
    corpus_file: str
    corpus_row: int
    begin: int  # first token of the span in the document
    before: str
    after: str
    steps: tuple[LearnedSteps, ...] = ()  # one entry for each run of the checkpoint's family
    signals: Mapping[str, Any] | None = None  # None: the curated corpus was not named

    @property
    def title(self) -> str:
        """The URL of the page, or the id of a document that has none."""
        return self.url or self.id

    @property
    def place(self) -> str:
        """The file of the corpus, and the row or byte of the document in it."""
        return name_place(self.corpus_file, self.corpus_row)


@dataclass(frozen=True)
class AttributedSpan:
    """A part of the text that stands verbatim in the corpus."""

    number: int  # rank by rarity; 1 is the rarest
    text: str
    begin: int  # first character in the text
    end: int
    tokens: int
    rarity: float  # log10 of the product of the tokens' shares in the corpus
    count: int  # places in the corpus
    documents: tuple[SourceDocument, ...]


@dataclass(frozen=True)
class AttributedText:
    """A text with its rarest verbatim spans."""

    text: str
    index: str
    tokens: int
    covered: int  # tokens in a span of the least length, also in those that are not shown
    found: int  # number of spans of the least length
    minimum: int
    spans: tuple[AttributedSpan, ...]  # the rarest first

    def to_json(self) -> dict[str, Any]:
        """Return the text and its spans as a JSON object."""
        return asdict(self)

    @property
    def verdict(self) -> str:
        """Summary in one sentence."""
        if not self.found:
            return (
                f"No part of {format_count(self.minimum, 'token')} or more stands verbatim in the "
                "training documents."
            )
        return (
            f"{self.covered:,} of {format_count(self.tokens, 'token')} stand verbatim in the "
            f"training documents, in {format_count(self.found, 'span')} of at least "
            f"{format_count(self.minimum, 'token')}."
        )

    def cut_segments(self) -> list[tuple[str, AttributedSpan | None]]:
        """Return the text in adjacent segments, each with the rarest span that it is in, if any."""
        owners: list[AttributedSpan | None] = [None] * len(self.text)
        for span in reversed(self.spans):
            owners[span.begin : span.end] = [span] * (span.end - span.begin)
        segments: list[tuple[str, AttributedSpan | None]] = []
        begin = 0
        for place in range(1, len(owners) + 1):
            if place == len(owners) or owners[place] is not owners[begin]:
                segments.append((self.text[begin:place], owners[begin]))
                begin = place
        return segments

    def render(self) -> Iterator[Text]:
        """Yield the marked text, then each span with its documents, for a terminal."""
        yield self.render_marked()
        for span in self.spans:
            head = (
                f"[{span.number}] {format_count(span.tokens, 'token')}, "
                f"{format_count(span.count, 'place')}"
            )
            yield Text(head, style=f"bold {choose_colour(span.number)}")
            for document in span.documents:
                yield _render_document(document, span)
        yield Text(self.verdict)

    def render_marked(self) -> Text:
        """Return the text with its spans in colours, each with its number in brackets."""
        marked = Text()
        for text, span in self.cut_segments():
            if span is None:
                marked.append(escape_invisible(text))
            else:
                shown = f"⟦{escape_invisible(text)}⟧{span.number}"
                marked.append(shown, style=f"underline {choose_colour(span.number)}")
        return marked


def choose_colour(number: int) -> str:
    """Return the terminal colour of the span `number`."""
    return COLOURS[(number - 1) % len(COLOURS)]


def _render_document(document: SourceDocument, span: AttributedSpan) -> Text:
    shown = Text("    ")
    shown.append(escape_invisible(document.title), style="bold")
    shown.append(f" · {escape_invisible(document.source)} · {escape_invisible(document.place)}\n")
    shown.append("      ")
    for text, style in ((document.before, "dim"), (span.text, "bold"), (document.after, "dim")):
        shown.append(escape_invisible(text).replace("\n", " "), style=style)
    for learned in document.steps:
        shown.append(f"\n      learned by {learned.run}: {describe_steps(learned, SHOWN_STEPS)}")
    if document.signals:
        told = {name: document.signals[name] for name in SHOWN if name in document.signals}
        values = ", ".join(f"{name} {value}" for name, value in told.items())
        shown.append(f"\n      {escape_invisible(values)}")
    return shown


def describe_steps(learned: LearnedSteps, most: int) -> str:
    """Return the steps in words, at most `most` of them."""
    if not learned.steps:
        return "no step up to the checkpoint"
    listed = ", ".join(f"{step:,}" for step in learned.steps[:most])
    more = f", and {len(learned.steps) - most:,} more" if len(learned.steps) > most else ""
    return f"step {listed}{more}" if len(learned.steps) == 1 else f"steps {listed}{more}"


def attribute_text(
    index: CorpusIndex,
    text: str,
    limits: AttributionLimits,
    runs: Sequence[LearningRun] = (),
    corpus: str | None = None,
) -> AttributedText:
    """Find the parts of `text` that stand in the corpus, with their documents.

    `runs` are the runs whose steps are named; see `open_family`. `corpus` is the folder that
    `curate` wrote, whose signals are added. Raises ConfigError for a text without tokens, and
    DataError if the documents cannot be read.
    """
    return attribute_ids(index, index.encode(text), limits, runs, corpus)


def attribute_ids(
    index: CorpusIndex,
    ids: Sequence[int],
    limits: AttributionLimits,
    runs: Sequence[LearningRun] = (),
    corpus: str | None = None,
) -> AttributedText:
    """Find the parts of the text of `ids` that stand in the corpus, as `attribute_text` does."""
    if not len(ids):
        raise ConfigError("the text is empty, so no part of it can be found; give some text")
    found = find_spans(index, ids, limits.minimum)
    shown = found[: limits.spans]
    text, places = decode_with_places(index.encoder, ids)
    spans = [
        AttributedSpan(
            number=number,
            text=text[places[span.begin] : places[span.end]],
            begin=places[span.begin],
            end=places[span.end],
            tokens=span.end - span.begin,
            rarity=round(span.rarity, 4),
            count=index.count(ids[span.begin : span.end]),
            documents=documents,
        )
        for number, (span, documents) in enumerate(
            zip(shown, _read_sources(index, ids, shown, limits, runs, corpus), strict=True), 1
        )
    ]
    return AttributedText(
        text=text,
        index=index.folder,
        tokens=len(ids),
        covered=count_covered(found),
        found=len(found),
        minimum=limits.minimum,
        spans=tuple(spans),
    )


def _read_sources(
    index: CorpusIndex,
    ids: Sequence[int],
    spans: Sequence[VerbatimSpan],
    limits: AttributionLimits,
    runs: Sequence[LearningRun],
    corpus: str | None,
) -> list[tuple[SourceDocument, ...]]:
    """Return the documents of each span, those that a run learned from first."""
    most = limits.documents * (CANDIDATES if runs else 1)
    found = [
        (number, occurrence)
        for number, span in enumerate(spans if most else ())
        for occurrence in index.find(ids[span.begin : span.end], most)
    ]
    occurrences = [occurrence for _, occurrence in found]
    by_run = [(run.token_set, run.find_steps(index, occurrences)) for run in runs]
    steps = [
        tuple(own[place] for token_set, own in by_run if token_set == occurrence.token_set)
        for place, occurrence in enumerate(occurrences)
    ]
    chosen: list[tuple[int, SourceDocument]] = []
    for number in range(len(spans)):
        places = [place for place, (owner, _) in enumerate(found) if owner == number]
        places.sort(key=lambda place: not any(learned.steps for learned in steps[place]))
        for place in places[: limits.documents]:
            document = _read_document(index, occurrences[place], limits.context)
            chosen.append((number, replace(document, steps=steps[place])))
    if corpus is not None:
        rows = [
            CorpusRow(document.corpus_file, document.corpus_row, document.id)
            for _, document in chosen
        ]
        chosen = [
            (number, replace(document, signals=own))
            for (number, document), own in zip(chosen, read_signals(corpus, rows), strict=True)
        ]
    return [tuple(d for owner, d in chosen if owner == number) for number in range(len(spans))]


def _read_document(index: CorpusIndex, found: Occurrence, context: int) -> SourceDocument:
    entry, ids = index.read_document(found)
    special = set(index.encoder.special_ids.values())

    def decode(begin: int, end: int) -> str:
        return index.encoder.decode(token for token in ids[begin:end] if token not in special)

    return SourceDocument(
        source=found.source,
        url=entry.url,
        id=entry.id,
        corpus_file=entry.corpus_file,
        corpus_row=entry.corpus_row,
        begin=found.begin,
        before=decode(max(0, found.begin - context), found.begin),
        after=decode(found.end, found.end + context),
    )
