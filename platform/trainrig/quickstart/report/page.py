"""The quickstart's report page: what was shown, in the order in which it convinces.

Verdict, stages, planted faults and what became of them, the loss through a killed worker, scores
before and after tuning, generations, next commands.
"""

import math
from statistics import median
from typing import Literal

from trainrig import report
from trainrig.quickstart.report import charts
from trainrig.quickstart.report.law_section import law_section
from trainrig.quickstart.report.results import Story
from trainrig.report import Details, Section, Table, Text

_NUMERALS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")
_EXCERPT = 400  # characters of a dropped text: enough to see why it fell
_EXAMPLES = 3  # texts shown for each reason


def quickstart_page(story: Story) -> str:
    """The page as HTML text, a pure function of `story`."""
    page = report.Page(
        title="trainrig quickstart: raw pages to a tuned model on this machine",
        verdict=_verdict(story),
        figures=_key_figures(story),
        steps=tuple(
            report.Step(stage.name, report.short(stage.count), stage.unit, stage.seconds)
            for stage in story.stages
        ),
        sections=(
            _pages(story),
            _documents(story),
            _tokens(story),
            _model(story),
            _tuned(story),
            _scores(story),
            _generations(story),
            *((law_section(story.scaling),) if story.scaling else ()),
        ),
        commands=tuple(report.Command(line, purpose) for purpose, line in story.commands),
        provenance={
            "Machine": {"ran on": story.machine},
            "Versions": story.versions,
            "Manifests (SHA-256)": story.manifests,
        },
    )
    return page.html()


def _verdict(story: Story) -> report.Verdict:
    seconds = sum(stage.seconds for stage in story.stages)
    astray = story.samples_lost + story.samples_repeated
    samples = (
        f"{_count(story.samples_lost, 'sample')} lost and {story.samples_repeated:,} repeated"
        if astray
        else "0 samples lost or repeated"
    )
    sentence = (
        f"{_count(len(story.stages), 'stage')}, {report.duration(seconds)}, "
        f"{_count(len(story.restarts), 'worker').lower()} killed, {samples}."
    )
    warnings = []
    if astray:
        warnings.append(
            f"Of {story.samples_checked:,} samples, {astray:,} were not trained on exactly once."
        )
    if not story.restarts:
        warnings.append("No worker was killed, so this run does not show that training recovers.")
    _, difference = charts.repeated_steps(story)
    if difference:
        warnings.append(
            f"Steps computed twice differ by up to {difference:.2g} nats per token: on this "
            "machine, training was not exact."
        )
    state: Literal["done", "warning", "failed"]
    state = "failed" if astray else "warning" if warnings else "done"
    return report.Verdict(sentence, state, tuple(warnings))


def _key_figures(story: Story) -> tuple[report.KeyFigure, ...]:
    planted = sum(kind.planted for kind in story.planted)
    caught = sum(kind.caught for kind in story.planted)
    missed = sum(kind.missed for kind in story.planted)
    first, last = story.held_out[0], story.held_out[-1]
    speeds = [point.tokens_per_second for point in story.speed]
    return (
        report.KeyFigure(
            "Documents kept",
            f"{story.documents_kept:,}",
            "documents",
            f"{report.percent(story.documents_kept, story.documents_in)} "
            f"of {story.documents_in:,} read",
        ),
        report.KeyFigure(
            "Planted faults caught",
            f"{caught:,}",
            f"of {planted:,}",
            f"{missed:,} missed, {planted - caught - missed:,} gone with their page earlier",
        ),
        report.KeyFigure(
            "Tokens to train on",
            report.short(sum(story.tokens_by_source.values())),
            "tokens",
            f"from a vocabulary of {story.vocabulary:,}",
        ),
        report.KeyFigure(
            "Held-out loss",
            f"{last.loss:.2f}",
            "nats per token",
            f"{first.loss:.2f} at step {first.step:,}; "
            f"guessing at random gives {math.log(story.vocabulary):.2f}",
        ),
        report.KeyFigure(
            "Lost to the killed worker" if len(story.restarts) == 1 else "Lost to killed workers",
            report.duration(sum(restart.seconds for restart in story.restarts)),
            "",
            f"{sum(r.killed_at - r.resumed_from for r in story.restarts):,} steps done again, "
            f"of {story.loss[-1].step:,}",
        ),
        report.KeyFigure(
            "Training speed",
            report.short(median(speeds)),
            "tokens/s",
            f"median of {len(speeds):,} steps, {report.short(story.parameters)} parameters",
        ),
    )


def _pages(story: Story) -> Section:
    planted = sum(kind.planted for kind in story.planted)
    missed = sum(kind.missed for kind in story.planted)
    blocks: tuple[report.Block, ...] = (
        Text(
            f"Before anything else, {planted:,} faults were planted in the pages: copies, near "
            "copies, foreign languages, invented personal data. Some were made hard to find on "
            "purpose, so a few misses are expected."
        ),
        charts.caught_chart(story),
    )
    if story.near_duplicates:
        pairs = tuple((pair.url, pair.kept_url, pair.jaccard) for pair in story.near_duplicates)
        table = Table(
            f"{_count(len(pairs), 'dropped page')} beside the kept page that each repeats",
            ("dropped", "kept", "Jaccard"),
            pairs,
        )
        blocks += (Details("Near duplicates: who matched whom", (table,)),)
    missing = f"{missed:,} of them missed" if missed else "none of them missed"
    return Section("pages", f"Pages: {planted:,} planted faults, {missing}", blocks)


def _documents(story: Story) -> Section:
    folds = tuple(
        Details(
            f"{dropped.reason}: {_count(dropped.documents, 'document')}",
            tuple(
                report.Sample(f"Example {index}", _excerpt(example))
                for index, example in enumerate(dropped.examples[:_EXAMPLES], 1)
            ),
        )
        for dropped in story.dropped
        if dropped.examples
    )
    intro = Text("Examples of what fell, by reason. Personal data in them is masked.")
    shown: tuple[report.Block, ...] = (intro, *folds) if folds else ()
    share = report.percent(story.documents_kept, story.documents_in)
    return Section(
        "documents",
        f"Documents: {share} of the pages were kept",
        (charts.funnel_chart(story), *shown),
    )


def _tokens(story: Story) -> Section:
    total = report.short(sum(story.tokens_by_source.values()))
    sources = _count(len(story.tokens_by_source), "source").lower()
    title = f"Tokens: {total} from {sources}"
    return Section("tokens", title, (charts.sources_chart(story),))


def _model(story: Story) -> Section:
    restarts = Table(
        "What happened to the workers",
        ("no.", "process", "killed after step", "resumed from step", "seconds lost"),
        tuple(
            (number, str(restart.pid), restart.killed_at, restart.resumed_from, restart.seconds)
            for number, restart in enumerate(story.restarts, 1)
        ),
    )
    again, difference = charts.repeated_steps(story)
    findings = []
    if not story.samples_lost + story.samples_repeated:
        findings.append(f"Each of {story.samples_checked:,} samples was trained on once.")
    if again:
        same = f"differ by up to {difference:.2g}" if difference else "are equal to the last digit"
        findings.append(f"{_count(again, 'step')} were computed twice; the two losses {same}.")
    return Section(
        "model",
        f"Model: {report.short(story.parameters)} parameters, "
        f"{report.short(story.loss[-1].tokens)} training tokens",
        (
            charts.loss_chart(story),
            *((Text(" ".join(findings)),) if findings else ()),
            *((Details("Restarts", (restarts,)),) if story.restarts else ()),
            Details("Speed", (charts.speed_chart(story),)),
        ),
    )


def _tuned(story: Story) -> Section:
    title = f"Tuned: {_count(len(story.tuning), 'step').lower()} on questions and answers"
    return Section("tuned", title, (charts.tuning_chart(story),))


def _scores(story: Story) -> Section:
    return Section("scores", "Scores: before and after tuning", (charts.scores_chart(story),))


def _generations(story: Story) -> Section:
    tokens = story.loss[-1].tokens
    size = Text(
        f"Judge these by form, not by truth. A model of {report.short(story.parameters)} "
        f"parameters that has read {report.short(tokens)} tokens can learn the look of its pages "
        "and, from tuning, to answer briefly and stop; it is far too small to know things."
    )
    groups = tuple(
        report.Group(
            (
                report.Sample("Prompt", generation.prompt),
                report.Sample(
                    "Pretrained", generation.before, f"stopped: {generation.stop_before}"
                ),
                report.Sample("Tuned", generation.after, f"stopped: {generation.stop_after}"),
            )
        )
        for generation in story.generations
    )
    title = f"{_count(len(groups), 'generation')}, as they came"
    return Section("generations", title, (size, *groups))


def _count(number: int, noun: str) -> str:
    """`Six stages`, `One worker`, `1,204 samples`: words up to ten."""
    numeral = _NUMERALS[number] if number < len(_NUMERALS) else f"{number:,}"
    return f"{numeral} {noun}{'' if number == 1 else 's'}"


def _excerpt(text: str) -> str:
    return text if len(text) <= _EXCERPT else text[:_EXCERPT].rstrip() + " …"
