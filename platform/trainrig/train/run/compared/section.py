"""The report's section on forgetting, answers and their length, before and after training."""

from collections.abc import Sequence
from functools import partial

from trainrig import figures, report
from trainrig.figures import BeforeAfter
from trainrig.report import Block, Chart, ReportTable, Section, Text
from trainrig.train.evaluations.comparison import GivenAnswer, ModelView


def build_comparison_section(views: Sequence[ModelView]) -> Section | None:
    """Build the section that compares the model before the first step and after the last.

    Returns None unless both were recorded.
    """
    if len(views) < 2:
        return None
    before = views[0]
    after = views[-1]
    blocks: list[Block] = []
    if shared := [source for source in before.losses if source in after.losses]:
        blocks.append(_build_forgetting_chart(before, after, shared))
    if before.answers and after.answers:
        blocks.append(_describe_lengths(before, after))
        for first, last in zip(before.answers, after.answers, strict=True):
            samples = (
                report.TextSample("Prompt", first.prompt),
                report.TextSample("Before", first.text, _describe_end(first)),
                report.TextSample("After", last.text, _describe_end(last)),
            )
            blocks.append(report.SampleGroup(samples))
    return Section("comparison", "Before and after", tuple(blocks)) if blocks else None


def _build_forgetting_chart(before: ModelView, after: ModelView, sources: Sequence[str]) -> Chart:
    """Plot the loss on held-out pretraining text before and after training, by source."""
    pairs = [BeforeAfter(name, before.losses[name], after.losses[name]) for name in sources]
    worst = max(pairs, key=lambda pair: pair.after - pair.before)
    rise = worst.after - worst.before
    what = f"{abs(rise):.3f} nats per token {'more' if rise > 0 else 'less'}"
    plot = partial(figures.plot_pairs, pairs=pairs, x_label="nats per token")
    return Chart(
        f"Held-out text of '{report.escape_invisible(worst.name)}' costs {what} than before"
        + (", and no other source rose more" if len(pairs) > 1 else ""),
        figures.draw(plot, 90 + 42 * len(pairs)),
        label="Paired dots by source: the loss on held-out text before and after.",
        caption=(
            f"n = {len(pairs)} pretraining sources, the same rows before and after. A higher "
            "loss afterwards means forgetting."
        ),
        table=ReportTable(
            "Loss on held-out text",
            ("source", "before", "after"),
            tuple((pair.name, pair.before, pair.after) for pair in pairs),
        ),
    )


def _describe_lengths(before: ModelView, after: ModelView) -> Text:
    first, last = (sum(a.tokens for a in v.answers) / len(v.answers) for v in (before, after))
    ended = sum(answer.stopped == "end" for answer in after.answers)
    return Text(
        f"Answers to {len(after.answers)} held-out prompts, always with the most likely "
        f"token: {first:.1f} tokens on average before, {last:.1f} after, of which {ended} "
        "ended by themselves."
    )


def _describe_end(answer: GivenAnswer) -> str:
    return f"{answer.tokens} tokens, ended by: {answer.stopped}"
