"""The HTML page of a tokenizer's report, made from the report alone.

It shows bytes per token on text that training did not see, by source; other vocabularies with the
cost of their embeddings; tokens per word by language; the entries by kind; and a text cut into
tokens.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

from trainrig import report
from trainrig.report import (
    Details,
    ReportTable,
    Section,
    Text,
    TextSample,
    format_percent,
    format_short,
)
from trainrig.tokens.tokenizers import vocabulary_charts
from trainrig.tokens.tokenizers.vocabulary_measures import MeasuredVocabulary, TokenizerReport

BORDER = "│"  # between two tokens


def render_vocabulary_page(results: TokenizerReport) -> str:
    """Return the report's page as HTML."""
    vocabulary = results.vocabulary
    page = report.ReportPage(
        title=f"Tokenizer: {results.kind} of {vocabulary.entries:,} entries",
        verdict=_build_verdict(results),
        figures=_build_key_figures(results),
        sections=(
            Section(
                "bytes-per-token",
                "How much text a token holds",
                (vocabulary_charts.build_compression_chart(results),),
            ),
            _build_rivals_section(results),
            Section(
                "languages",
                "What a word costs",
                (vocabulary_charts.build_languages_chart(vocabulary),),
            ),
            _build_entries_section(vocabulary),
            _show_cut_document(vocabulary),
        ),
        commands=(
            report.PageCommand("trainrig tokenize RUN.toml", "Encode the documents with it"),
            report.PageCommand(
                "trainrig tokenizer RUN.toml --set tokenizer.vocabulary=N --set output=FOLDER",
                "Train a tokenizer of another size",
            ),
        ),
        provenance={
            "Files": {
                "tokenizer.json": f"{vocabulary.fingerprint} (SHA-256, keys sorted)",
                "report.json": "all numbers of this page",
            },
            "Trained on": {
                name: f"{count:,} bytes" for name, count in results.sampled_bytes_of.items()
            },
            "Special tokens": {name: str(number) for name, number in vocabulary.special.items()},
            "Encodes with": {
                "engine": vocabulary.engine,
                **({"why": vocabulary.why_not_fast} if vocabulary.why_not_fast else {}),
            },
        },
    )
    return page.render_html()


def _build_verdict(results: TokenizerReport) -> report.Verdict:
    vocabulary = results.vocabulary
    kind = "held-out" if results.held_out else "training"
    sentence = (
        f"{vocabulary.total.bytes_per_token:.2f} bytes per token on "
        f"{vocabulary_charts.format_count(vocabulary.total.documents, f'{kind} document')}"
    )
    wrong = len(vocabulary.not_given_back)
    if wrong:
        sentence += f"; {wrong:,} {'does' if wrong == 1 else 'do'} not decode to the same text."
    else:
        sentence += "; every document decodes to the same text."
    warnings = []
    if wrong:
        warnings.append(
            f"Not decoded to the same text: {', '.join(vocabulary.not_given_back[:5])}."
        )
    if not results.held_out:
        warnings.append(
            "No document was held out, so all figures are measured on the text that the "
            "tokenizer was trained on. Raise report.held_out, or give more documents."
        )
    state: Literal["done", "warning", "failed"]
    state = "failed" if wrong else "warning" if warnings else "done"
    return report.Verdict(sentence, state, tuple(warnings))


def _build_key_figures(results: TokenizerReport) -> tuple[report.KeyFigure, ...]:
    vocabulary = results.vocabulary
    total = results.vocabulary.total
    sampled = sum(results.sampled_bytes_of.values())
    embedding = results.rivals[0].embedding_parameters
    return (
        report.KeyFigure(
            "Bytes per token",
            f"{total.bytes_per_token:.2f}",
            "bytes",
            f"{format_short(total.tokens)} tokens of {format_short(total.bytes)} bytes; "
            "single bytes give 1",
        ),
        report.KeyFigure(
            "Tokens per word",
            f"{total.tokens_per_word:.2f}",
            "tokens",
            f"{format_short(total.words)} words between white space",
        ),
        report.KeyFigure(
            "Trained on",
            format_short(sampled),
            "bytes",
            f"{vocabulary_charts.format_count(results.sampled_documents, 'document')} of "
            f"{vocabulary_charts.format_count(len(results.sampled_bytes_of), 'source')}",
        ),
        report.KeyFigure(
            "Never seen",
            f"{vocabulary.never_seen:,}",
            "entries",
            f"{format_percent(vocabulary.never_seen, vocabulary.entries)} of the entries are in "
            "no token of the training text",
        ),
        report.KeyFigure(
            "Embedding",
            format_short(embedding),
            "parameters",
            f"{vocabulary.entries:,} entries × {results.channels:,} channels"
            + ("" if results.tied else " × 2, for the head"),
        ),
        report.KeyFigure(
            "Special tokens",
            f"{len(vocabulary.special):,}",
            "entries",
            "no text is encoded with them",
        ),
    )


def _build_rivals_section(results: TokenizerReport) -> Section:
    chart = vocabulary_charts.build_rivals_chart(results)
    note = Text(
        "A smaller byte-pair encoding is the first entries of a larger one: each merge "
        "depends only on the merges before it."
    )
    inside = (chart, note) if any("first" in one.name for one in results.rivals) else (chart,)
    return Section("vocabularies", "What another vocabulary would cost", inside)


def _build_entries_section(vocabulary: MeasuredVocabulary) -> Section:
    charts = (
        vocabulary_charts.build_lengths_chart(vocabulary),
        vocabulary_charts.build_scripts_chart(vocabulary),
        vocabulary_charts.build_ranks_chart(vocabulary),
    )
    return Section("entries", "Kinds of entries", (*charts, *_build_examples(vocabulary)))


def _build_examples(vocabulary: MeasuredVocabulary) -> Iterable[Details]:
    counts = ReportTable(
        "Tokens of the measured text", ("entry", "tokens"), tuple(vocabulary.commonest)
    )
    yield Details("The most common entries", (counts,))
    yield Details("The longest entries", (_list_entries("by bytes", vocabulary.longest),))
    for where, count, examples in (
        ("not used in the measured text", vocabulary.unused, vocabulary.unused_examples),
        ("never seen in training", vocabulary.never_seen, vocabulary.never_seen_examples),
    ):
        if count:
            first = _list_entries(f"the {len(examples)} of the lowest ids", examples)
            yield Details(f"{vocabulary_charts.format_count(count, 'entry')} {where}", (first,))


def _list_entries(label: str, entries: Sequence[str]) -> TextSample:
    return TextSample(label, "  ".join(entries), "␣ is a space, ⏎ a line break, ⇥ a tab")


def _show_cut_document(vocabulary: MeasuredVocabulary) -> Section:
    sample = TextSample(
        f"document {vocabulary.cut_id}",
        BORDER.join(vocabulary.cut),
        f"the first {len(vocabulary.cut)} tokens; {BORDER} stands between two",
    )
    return Section("cut", "A text, token by token", (sample,))
