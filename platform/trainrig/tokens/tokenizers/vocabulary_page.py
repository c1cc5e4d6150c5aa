"""The HTML page of a tokenizer's report, made from the report alone.

It shows bytes per token on text that training did not see, by source; other vocabularies with the
cost of their embeddings; tokens per word by language; the entries by kind; and a text cut into
tokens. Findings are worded from the numbers, so a worse tokenizer gets worse titles.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from trainrig.report import page_rendering, plots
from trainrig.report.number_formats import format_count
from trainrig.report.plots import BarPart, BarRow, ChartFacts
from trainrig.tokens.tokenizers.vocabulary_measures import (
    Amount,
    EntryGroup,
    MeasuredVocabulary,
    Rival,
    TokenizerReport,
)

MOST_ROWS = 12  # rows in a chart; its table has all
LONGEST_DRAWN = 16  # bytes; longer entries share one bar
USE = (BarPart("used"), BarPart("not used here", "c2", hatched=True))


def render_vocabulary_page(results: TokenizerReport) -> str:
    """Return the report's page as HTML."""
    vocabulary = results.vocabulary
    wrong = len(vocabulary.not_given_back)
    warnings = []
    if wrong:
        listed = ", ".join(vocabulary.not_given_back[:5])
        warnings.append(f"Not decoded to the same text: {listed}.")
    if not results.held_out:
        warnings.append(
            "No document was held out, so all figures are measured on the text that the "
            "tokenizer was trained on. Raise report.held_out, or give more documents."
        )
    return page_rendering.render_page(
        __name__,
        results=results,
        warnings=warnings,
        state="failed" if wrong else "warning" if warnings else "done",
        wrong=wrong,
        sources=_draw_amounts(vocabulary.sources, "source", "bytes_per_token"),
        languages=_draw_amounts(
            {name or "not known": amount for name, amount in vocabulary.languages.items()},
            "language",
            "tokens_per_word",
        ),
        rivals=_draw_rivals(results.rivals),
        lengths=draw_lengths(vocabulary),
        scripts=_draw_scripts(vocabulary),
        ranks=_draw_ranks(vocabulary),
    )


def _draw_amounts(amounts: Mapping[str, Amount], kind: str, measure: str) -> ChartFacts:
    """Draw a measure of each of `amounts` as bars."""
    values = {name: getattr(amount, measure) for name, amount in amounts.items()}
    rows = [BarRow(name, (value,), f"{value:.2f}") for name, value in values.items()]
    columns = [
        *("documents", "bytes", "tokens", "bytes per token", "tokens per word"),
        "tokens per character",
    ]
    fields = [column.replace(" ", "_") for column in columns]
    return {
        "plot": plots.Bars(rows[:MOST_ROWS], plots.Axis(measure.replace("_", " "))),
        "columns": (kind, *columns),
        "rows": [(n, *(getattr(amount, f) for f in fields)) for n, amount in amounts.items()],
        "rest": _describe_rest(len(rows), kind),
    }


def _describe_rest(groups: int, kind: str) -> str:
    left_out = groups - MOST_ROWS
    if left_out <= 0:
        return ""
    return f"The {MOST_ROWS} largest; {format_count(left_out, kind)} more are not shown."


def _draw_rivals(rivals: Sequence[Rival]) -> ChartFacts:
    """Draw bytes per token against embedding parameters, as one named point a vocabulary."""
    middle = float(np.median([rival.embedding_parameters for rival in rivals]))
    marks: list[plots.Mark] = []
    for index, rival in enumerate(rivals):
        x = rival.embedding_parameters
        y = rival.amount.bytes_per_token
        first = index == 0
        colour: plots.Colour = "c1" if first else "c2"
        marks.append(plots.Line([x], [y], colour=colour, style="o", size=9 if first else 7))
        to_left = plots.Note(x, y, rival.name, dx=-10, align="right")
        marks.append(to_left if x > middle else plots.Note(x, y, rival.name, dx=10))
    axes = (plots.Axis("embedding parameters", "short"), plots.Axis("bytes per token"))
    columns = ("vocabulary", "entries", "tokens", "bytes per token", "embedding parameters")
    return {
        "plot": plots.Plot(marks, *axes, height=250),
        "columns": columns,
        "rows": [
            (r.name, r.entries, r.amount.tokens, r.amount.bytes_per_token, r.embedding_parameters)
            for r in rivals
        ],
        "fewest": min(rivals, key=lambda rival: rival.amount.tokens),
    }


def draw_lengths(vocabulary: MeasuredVocabulary) -> ChartFacts:
    """Draw entries by length as stacked bars: used entries below, unused ones hatched above.

    Those beyond LONGEST_DRAWN share one bar.
    """
    groups = [g for g in vocabulary.lengths if int(g.name) <= LONGEST_DRAWN]
    if beyond := [g for g in vocabulary.lengths if int(g.name) > LONGEST_DRAWN]:
        entries, used = (sum(getattr(g, name) for g in beyond) for name in ("entries", "used"))
        groups.append(EntryGroup(f">{LONGEST_DRAWN}", entries, used))
    bars = plots.Columns([[g.used for g in groups], [g.entries - g.used for g in groups]], USE)
    x = plots.Axis("length (bytes)", names=tuple(group.name for group in groups))
    return {
        "plot": plots.Plot([bars], x, plots.Axis("entries", "short")),
        "columns": ("bytes", "entries", "used"),
        "rows": [(group.name, group.entries, group.used) for group in vocabulary.lengths],
    }


def _draw_scripts(vocabulary: MeasuredVocabulary) -> ChartFacts:
    """Draw entries by script as bars."""
    rows = [
        BarRow(group.name, (group.used, group.entries - group.used), f"{group.entries:,}")
        for group in vocabulary.scripts[:MOST_ROWS]
    ]
    return {
        "plot": plots.Bars(rows, plots.Axis("entries"), USE),
        "columns": ("script", "entries", "used"),
        "rows": [(group.name, group.entries, group.used) for group in vocabulary.scripts],
        "rest": _describe_rest(len(vocabulary.scripts), "kind"),
    }


def _draw_ranks(vocabulary: MeasuredVocabulary) -> ChartFacts:
    """Draw occurrences against rank; a straight line is Zipf's law."""
    points = vocabulary.frequencies
    ranks, counts = zip(*points, strict=True) if points else ((), ())
    x = plots.Axis("rank of the entry", log=True)
    y = plots.Axis("occurrences", log=True)
    line = plots.Line(ranks, counts, width=2)
    return {"plot": plots.Plot([line], x, y), "columns": ("rank", "occurrences"), "rows": points}
