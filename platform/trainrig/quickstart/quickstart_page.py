"""The quickstart's report page.

Its order: verdict, stages, injected faults and their outcomes, the loss through a killed worker,
tuning, preferences, scores before and after both, generations, next commands.
"""

import math
from statistics import median
from typing import Literal

from trainrig import report
from trainrig.quickstart import quickstart_charts
from trainrig.quickstart.quickstart_law import build_law_section
from trainrig.quickstart.quickstart_results import MODELS, QuickstartResults
from trainrig.report import Details, ReportTable, Section, Text

_NUMERALS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")
_EXCERPT = 400  # Characters of a dropped text to show: enough to see why it was dropped.
_EXAMPLES = 3  # Texts to show for each reason.


def build_quickstart_page(results: QuickstartResults) -> str:
    """Render the page as HTML; the result depends on `results` alone."""
    page = report.ReportPage(
        title="trainrig quickstart: raw pages to an aligned model on this machine",
        verdict=_build_verdict(results),
        figures=_build_key_figures(results),
        steps=tuple(
            report.Step(stage.name, report.format_short(stage.count), stage.unit, stage.seconds)
            for stage in results.stages
        ),
        sections=(
            _show_pages(results),
            _show_documents(results),
            _show_tokens(results),
            _show_model(results),
            _show_tuning(results),
            _show_alignment(results),
            _show_scores(results),
            _show_generations(results),
            *((build_law_section(results.scaling),) if results.scaling else ()),
        ),
        commands=tuple(report.PageCommand(line, purpose) for purpose, line in results.commands),
        provenance={
            "Machine": {"ran on": results.machine},
            "Versions": results.versions,
            "Manifests (SHA-256)": results.manifests,
        },
    )
    return page.render_html()


def _build_verdict(results: QuickstartResults) -> report.Verdict:
    seconds = sum(stage.seconds for stage in results.stages)
    astray = results.samples_lost + results.samples_repeated
    samples = (
        f"{_count(results.samples_lost, 'sample')} lost and {results.samples_repeated:,} repeated"
        if astray
        else "0 samples lost or repeated"
    )
    sentence = (
        f"{_count(len(results.stages), 'stage')}, {report.format_duration(seconds)}, "
        f"{_count(len(results.restarts), 'worker').lower()} killed, {samples}."
    )
    warnings = []
    if astray:
        warnings.append(
            f"Of {results.samples_checked:,} samples, {astray:,} were not used for "
            "training exactly once."
        )
    if not results.restarts:
        warnings.append("No worker was killed, so this run does not show that training recovers.")
    _, difference = quickstart_charts.compare_repeated_steps(results)
    if difference:
        warnings.append(
            f"Losses of repeated steps differ by up to {difference:.2g} nats per token, "
            "so training was not bit-exact on this machine."
        )
    state: Literal["done", "warning", "failed"]
    state = "failed" if astray else "warning" if warnings else "done"
    return report.Verdict(sentence, state, tuple(warnings))


def _build_key_figures(results: QuickstartResults) -> tuple[report.KeyFigure, ...]:
    planted = sum(kind.planted for kind in results.planted)
    caught = sum(kind.caught for kind in results.planted)
    missed = sum(kind.missed for kind in results.planted)
    first = results.held_out[0]
    last = results.held_out[-1]
    speeds = [point.tokens_per_second for point in results.speed]
    return (
        report.KeyFigure(
            "Documents kept",
            f"{results.documents_kept:,}",
            "documents",
            f"{report.format_percent(results.documents_kept, results.documents_in)} "
            f"of {results.documents_in:,} read",
        ),
        report.KeyFigure(
            "Injected faults caught",
            f"{caught:,}",
            f"of {planted:,}",
            f"{missed:,} missed, {planted - caught - missed:,} dropped earlier with their page",
        ),
        report.KeyFigure(
            "Training tokens",
            report.format_short(sum(results.tokens_by_source.values())),
            "tokens",
            f"from a vocabulary of {results.vocabulary:,}",
        ),
        report.KeyFigure(
            "Held-out loss",
            f"{last.loss:.2f}",
            "nats per token",
            f"{first.loss:.2f} at step {first.step:,}; random guessing gives "
            f"{math.log(results.vocabulary):.2f}",
        ),
        report.KeyFigure(
            "Time lost to the killed worker"
            if len(results.restarts) == 1
            else "Time lost to killed workers",
            report.format_duration(sum(restart.seconds for restart in results.restarts)),
            "",
            f"{sum(r.killed_at - r.resumed_from for r in results.restarts):,} steps "
            f"repeated, of {results.loss[-1].step:,}",
        ),
        report.KeyFigure(
            "Training speed",
            report.format_short(median(speeds)),
            "tokens/s",
            f"median of {len(speeds):,} steps, "
            f"{report.format_short(results.parameters)} parameters",
        ),
    )


def _show_pages(results: QuickstartResults) -> Section:
    planted = sum(kind.planted for kind in results.planted)
    missed = sum(kind.missed for kind in results.planted)
    blocks: tuple[report.Block, ...] = (
        Text(
            f"First of all, {planted:,} faults were injected into the pages: exact "
            "duplicates, near-duplicates, foreign languages and invented personal data. "
            "Some are deliberately hard to find."
        ),
        quickstart_charts.draw_caught_chart(results),
    )
    if results.near_duplicates:
        pairs = tuple((pair.url, pair.kept_url, pair.jaccard) for pair in results.near_duplicates)
        table = ReportTable(
            f"{_count(len(pairs), 'dropped page')} with the kept page that each one repeats",
            ("dropped", "kept", "Jaccard"),
            pairs,
        )
        blocks += (Details("Near-duplicates and the pages they match", (table,)),)
    missing = f"{missed:,} missed" if missed else "none missed"
    return Section("pages", f"Pages: {planted:,} injected faults, {missing}", blocks)


def _show_documents(results: QuickstartResults) -> Section:
    folds = tuple(
        Details(
            f"{dropped.reason}: {_count(dropped.documents, 'document')}",
            tuple(
                report.TextSample(f"Example {index}", _cut_excerpt(example))
                for index, example in enumerate(dropped.examples[:_EXAMPLES], 1)
            ),
        )
        for dropped in results.dropped
        if dropped.examples
    )
    intro = Text("Examples of dropped documents, by reason. Their personal data is masked.")
    shown: tuple[report.Block, ...] = (intro, *folds) if folds else ()
    share = report.format_percent(results.documents_kept, results.documents_in)
    return Section(
        "documents",
        f"Documents: {share} of the pages were kept",
        (quickstart_charts.draw_funnel_chart(results), *shown),
    )


def _show_tokens(results: QuickstartResults) -> Section:
    total = report.format_short(sum(results.tokens_by_source.values()))
    sources = _count(len(results.tokens_by_source), "source").lower()
    title = f"Tokens: {total} from {sources}"
    return Section("tokens", title, (quickstart_charts.draw_sources_chart(results),))


def _show_model(results: QuickstartResults) -> Section:
    restarts = ReportTable(
        "Restarts of workers",
        ("no.", "process", "killed after step", "resumed from step", "seconds lost"),
        tuple(
            (number, str(restart.pid), restart.killed_at, restart.resumed_from, restart.seconds)
            for number, restart in enumerate(results.restarts, 1)
        ),
    )
    again, difference = quickstart_charts.compare_repeated_steps(results)
    findings = []
    if not results.samples_lost + results.samples_repeated:
        findings.append(
            f"Each of the {results.samples_checked:,} samples was used for training once."
        )
    if again:
        same = f"differ by up to {difference:.2g}" if difference else "are bit-identical"
        findings.append(f"{_count(again, 'step')} ran twice; the two losses {same}.")
    return Section(
        "model",
        f"Model: {report.format_short(results.parameters)} parameters, "
        f"{report.format_short(results.loss[-1].tokens)} training tokens",
        (
            quickstart_charts.draw_loss_chart(results),
            *((Text(" ".join(findings)),) if findings else ()),
            *((Details("Restarts", (restarts,)),) if results.restarts else ()),
            Details("Speed", (quickstart_charts.draw_speed_chart(results),)),
        ),
    )


def _show_tuning(results: QuickstartResults) -> Section:
    title = f"Tuned: {_count(len(results.tuning), 'step').lower()} on questions and answers"
    return Section("tuned", title, (quickstart_charts.draw_tuning_chart(results),))


def _show_alignment(results: QuickstartResults) -> Section:
    steps = _count(len(results.preferences.steps), "step").lower()
    title = f"Aligned: {steps} on preference pairs"
    return Section("aligned", title, (quickstart_charts.draw_preferences_chart(results),))


def _show_scores(results: QuickstartResults) -> Section:
    title = "Scores: gains and losses by domain"
    return Section("scores", title, (quickstart_charts.draw_scores_chart(results),))


def _show_generations(results: QuickstartResults) -> Section:
    tokens = results.loss[-1].tokens
    size = Text(
        "Judge the form of these texts, not their truth. A model of "
        f"{report.format_short(results.parameters)} parameters, trained on "
        f"{report.format_short(tokens)} tokens, can learn the style of its pages and, "
        "from tuning, to answer briefly and stop. It is far too small to learn facts."
    )
    groups = tuple(
        report.SampleGroup(
            (
                report.TextSample("Prompt", generation.prompt),
                *(
                    report.TextSample(
                        model.capitalize(),
                        answer.text,
                        f"{_count(answer.tokens, 'token')}, stopped: {answer.stopped}",
                    )
                    for model, answer in zip(MODELS, generation.answers, strict=True)
                ),
            )
        )
        for generation in results.generations
    )
    title = f"{_count(len(groups), 'generation')}, unedited"
    return Section("generations", title, (size, *groups))


def _count(number: int, noun: str) -> str:
    """Format a number with its noun, in words up to ten: `Six stages`, `1,204 samples`."""
    numeral = _NUMERALS[number] if number < len(_NUMERALS) else f"{number:,}"
    return f"{numeral} {noun}{'' if number == 1 else 's'}"


def _cut_excerpt(text: str) -> str:
    return text if len(text) <= _EXCERPT else text[:_EXCERPT].rstrip() + " …"
