"""Charts of a tokenizer's report; each has a drawing, a table, and a finding as its title.

Titles are worded from the numbers, so a worse tokenizer gets a worse title.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, MaxNLocator, NullFormatter

from trainrig import figures
from trainrig.figures import C1, C2, MUTED, BarPart, BarRow
from trainrig.report import Chart, ReportTable, format_percent, format_short
from trainrig.tokens.tokenizers import vocabulary_measures

MOST_ROWS = 12  # rows in a chart; its table has all
LONGEST_DRAWN = 16  # bytes; longer entries share one bar


def build_compression_chart(results: vocabulary_measures.TokenizerReport) -> Chart:
    """Build the chart of bytes per token by source."""
    sources = results.vocabulary.sources
    best = max(sources, key=lambda name: sources[name].bytes_per_token)
    worst = min(sources, key=lambda name: sources[name].bytes_per_token)
    title = f"A token of {best} is {sources[best].bytes_per_token:.2f} bytes"
    if worst != best:
        title += f", of {worst} {sources[worst].bytes_per_token:.2f}"
    rows = [
        BarRow(name, (amount.bytes_per_token,), f"{amount.bytes_per_token:.2f}")
        for name, amount in _select_first(sources)
    ]
    return Chart(
        title,
        _draw_bars(rows, "bytes per token"),
        label="Bars of bytes per token by source.",
        caption=f"n = {format_count(results.vocabulary.total.documents, 'document')}, "
        f"{format_short(results.vocabulary.total.bytes)} bytes. {_describe_texts(results)} "
        f"{_describe_rest(sources, 'source')}",
        table=_build_amounts_table("Text and tokens by source", "source", sources),
    )


def _describe_texts(results: vocabulary_measures.TokenizerReport) -> str:
    if results.held_out:
        return "Documents held out by the hash of their URL, which training did not see."
    return (
        "Measured on the text that the tokenizer was trained on, because no documents were "
        "held out."
    )


def build_rivals_chart(results: vocabulary_measures.TokenizerReport) -> Chart:
    """Build the chart of bytes per token of several vocabularies against embedding parameters."""
    rivals = results.rivals
    fewest = min(rivals, key=lambda one: one.amount.tokens)
    title = (
        f"{fewest.name[0].upper()}{fewest.name[1:]} needs the fewest tokens: "
        f"{format_short(fewest.amount.tokens)}"
    )
    formula = "entries × channels" + ("" if results.tied else " × 2, embedding and head")
    return Chart(
        title,
        figures.draw(partial(_plot_rivals, rivals=rivals), 250),
        label="Points of bytes per token against embedding parameters, one for each vocabulary.",
        caption=f"n = {format_count(rivals[0].amount.documents, 'document')}, the same for "
        f"each vocabulary. Parameters: {formula}, at {results.channels:,} channels.",
        table=ReportTable(
            "Vocabularies on the same text",
            ("vocabulary", "entries", "tokens", "bytes per token", "embedding parameters"),
            tuple(
                (
                    one.name,
                    one.entries,
                    one.amount.tokens,
                    one.amount.bytes_per_token,
                    one.embedding_parameters,
                )
                for one in rivals
            ),
        ),
    )


def _plot_rivals(ax: Axes, rivals: Sequence[vocabulary_measures.Rival]) -> Axes:
    """Plot bytes per token against embedding parameters, as one named point a vocabulary."""
    for index, one in enumerate(rivals):
        point = (float(one.embedding_parameters), one.amount.bytes_per_token)
        ax.plot(*point, "o", markersize=9 if index == 0 else 7, color=C1 if index == 0 else C2)
    middle = float(np.median([one.embedding_parameters for one in rivals]))
    for one in rivals:
        is_right = one.embedding_parameters > middle
        ax.annotate(
            one.name,
            (one.embedding_parameters, one.amount.bytes_per_token),
            (-10 if is_right else 10, 0),
            textcoords="offset points",
            ha="right" if is_right else "left",
            va="center",
            color=MUTED,
            fontsize=11,
        )
    ax.margins(0.12)
    ax.xaxis.set_major_formatter(EngFormatter(sep=" "))
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.set(xlabel="embedding parameters", ylabel="bytes per token")
    return ax


def build_languages_chart(vocabulary: vocabulary_measures.MeasuredVocabulary) -> Chart:
    """Build the chart of tokens per word by language."""
    languages = {name or "not known": amount for name, amount in vocabulary.languages.items()}
    rows = [
        BarRow(name, (amount.tokens_per_word,), f"{amount.tokens_per_word:.2f}")
        for name, amount in _select_first(languages)
    ]
    first, amount = next(iter(languages.items()))
    return Chart(
        f"A word of the most common language ({first}) takes {amount.tokens_per_word:.2f} tokens",
        _draw_bars(rows, "tokens per word"),
        label="Bars of tokens per word by language.",
        caption=(
            f"n = {format_short(vocabulary.total.words)} words. Words are separated by white "
            "space; for languages that write none, compare tokens per character in the table. "
        )
        + _describe_rest(languages, "language"),
        table=_build_amounts_table("Text and tokens by language", "language", languages),
    )


def build_lengths_chart(vocabulary: vocabulary_measures.MeasuredVocabulary) -> Chart:
    """Build the chart of entries by length in bytes."""
    lengths = _group_lengths(vocabulary.lengths)
    return Chart(
        f"{format_percent(vocabulary.unused, vocabulary.entries)} of the entries are not used "
        "in the measured text",
        figures.draw(partial(_plot_lengths, lengths=lengths), 240),
        label="Bars of entries by their length in bytes, those not used hatched.",
        caption=f"n = {vocabulary.entries - len(vocabulary.special):,} entries, without "
        "special tokens. Hatched: in no token of the measured text.",
        table=_build_groups_table("Entries by length", "bytes", vocabulary.lengths),
    )


def _plot_lengths(ax: Axes, lengths: Sequence[vocabulary_measures.EntryGroup]) -> Axes:
    """Plot entries by length as stacked bars: used entries below, unused ones hatched above."""
    x = np.arange(len(lengths))
    used = np.array([group.used for group in lengths])
    unused = np.array([group.entries - group.used for group in lengths])
    parts = (BarPart("used", C1), BarPart("not used here", C2, hatched=True))
    ax.bar(x, used, 0.7, label=parts[0].name, **parts[0].fill())
    ax.bar(x, unused, 0.7, bottom=used, label=parts[1].name, **parts[1].fill())
    ax.set_xticks(x, [group.name for group in lengths])
    ax.yaxis.set_major_formatter(EngFormatter(sep=" "))
    ax.grid(visible=False, axis="x")
    ax.set(xlabel="length (bytes)", ylabel="entries")
    ax.legend(loc="upper right")
    return ax


def _group_lengths(
    lengths: Sequence[vocabulary_measures.EntryGroup],
) -> list[vocabulary_measures.EntryGroup]:
    """Return one group for each length, with those beyond `LONGEST_DRAWN` in one group."""
    beyond = [group for group in lengths if int(group.name) > LONGEST_DRAWN]
    rest = [group for group in lengths if int(group.name) <= LONGEST_DRAWN]
    if not beyond:
        return rest
    entries, used = (sum(getattr(g, name) for g in beyond) for name in ("entries", "used"))
    return [*rest, vocabulary_measures.EntryGroup(f">{LONGEST_DRAWN}", entries, used)]


def build_scripts_chart(vocabulary: vocabulary_measures.MeasuredVocabulary) -> Chart:
    """Build the chart of entries by script."""
    largest = vocabulary.scripts[0]
    rows = [
        BarRow(group.name, (group.used, group.entries - group.used), f"{group.entries:,}")
        for group in vocabulary.scripts[:MOST_ROWS]
    ]
    return Chart(
        f"{format_percent(largest.entries, vocabulary.entries)} of the entries are {largest.name}",
        _draw_bars(
            rows, "entries", (BarPart("used", C1), BarPart("not used here", C2, hatched=True))
        ),
        label="Bars of entries by script, those not used hatched.",
        caption="By the script of an entry's letters; entries without letters, by what "
        f"they contain. {_describe_rest(vocabulary.scripts, 'kind')}",
        table=_build_groups_table("Entries by script", "script", vocabulary.scripts),
    )


def build_ranks_chart(vocabulary: vocabulary_measures.MeasuredVocabulary) -> Chart:
    """Build the chart of occurrences by rank."""
    points = vocabulary.frequencies
    tokens = vocabulary.total.tokens
    return Chart(
        f"The most common entry is {format_percent(points[0][1], tokens)} of all tokens"
        if points
        else "The measured text has no tokens",
        figures.draw(partial(_plot_ranks, points=points), 240),
        label="Line of occurrences against rank, both axes logarithmic.",
        caption=f"n = {tokens:,} tokens, at {len(points)} ranks.",
        table=ReportTable("Occurrences by rank", ("rank", "occurrences"), tuple(points)),
    )


def _plot_ranks(ax: Axes, points: Sequence[tuple[int, int]]) -> Axes:
    """Plot occurrences against rank on logarithmic axes; a straight line is Zipf's law."""
    if points:
        ax.plot(*zip(*points, strict=True), color=C1, linewidth=2)
    ax.set(xscale="log", yscale="log", xlabel="rank of the entry", ylabel="occurrences")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(EngFormatter(sep=" "))
        axis.set_minor_formatter(NullFormatter())
    return ax


def _draw_bars(
    rows: Sequence[BarRow], x_label: str, parts: Sequence[BarPart] = (BarPart("all", C1),)
) -> str:
    def plot(ax: Axes) -> None:
        figures.plot_rows(ax, rows, parts, x_label)
        ax.xaxis.set_major_formatter("{x:,g}")  # writes 0.5, where the default writes 500 m

    return figures.draw(plot, 70 + 36 * len(rows) + 20 * (len(parts) > 1))


def _select_first(
    amounts: Mapping[str, vocabulary_measures.Amount],
) -> list[tuple[str, vocabulary_measures.Amount]]:
    return list(amounts.items())[:MOST_ROWS]


def _describe_rest(
    groups: Mapping[str, vocabulary_measures.Amount] | Sequence[vocabulary_measures.EntryGroup],
    kind: str,
) -> str:
    left_out = len(groups) - MOST_ROWS
    return (
        f"The {MOST_ROWS} largest; {format_count(left_out, kind)} more are not shown."
        if left_out > 0
        else ""
    )


def _build_amounts_table(
    caption: str, name: str, amounts: Mapping[str, vocabulary_measures.Amount]
) -> ReportTable:
    columns = (name, "documents", "bytes", "tokens", "bytes per token", "tokens per word")
    return ReportTable(
        caption,
        (*columns, "tokens per character"),
        tuple(
            (
                key,
                amount.documents,
                amount.bytes,
                amount.tokens,
                amount.bytes_per_token,
                amount.tokens_per_word,
                amount.tokens_per_character,
            )
            for key, amount in amounts.items()
        ),
    )


def _build_groups_table(
    caption: str, name: str, groups: Sequence[vocabulary_measures.EntryGroup]
) -> ReportTable:
    rows = tuple((group.name, group.entries, group.used) for group in groups)
    return ReportTable(caption, (name, "entries", "used"), rows)


def format_count(count: int, noun: str) -> str:
    """Return a count with its noun: `1 document`, `2 documents`, `3 entries`."""
    plural = f"{noun.removesuffix('y')}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"
