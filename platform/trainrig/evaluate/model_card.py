"""The sections of a model card on scores, training and data, in Markdown."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from trainrig import storage
from trainrig.errors import ConfigError, DataError
from trainrig.evaluate.data_lineage import find_run_folder, render_card_section, trace_lineage
from trainrig.evaluate.scorecards import Scorecard, TaskScore, read_scorecard
from trainrig.manifest import read_claim
from trainrig.train import checkpoint
from trainrig.train.checkpoint.model_parents import PARENTS

TASK_COLUMNS = ("task", "metric", "score", "95% interval", "rows", "few-shot", "chance", "seen")
TEXT_COLUMNS = ("source", "bits per byte", "perplexity", "tokens")


def describe_checkpoint(path: str, evaluations: Sequence[str] = ()) -> str:
    """Return the sections of a model card for the newest checkpoint at `path`.

    They have the scores in the folders `evaluations`, the settings of the run that made the
    checkpoint, and the data of this run and of those before it, as far as the folders beside them
    show. Raises ConfigError for scores of another checkpoint, and DataError for a folder without
    scores.
    """
    resolved = checkpoint.resolve(path)
    sections = list[str]()
    for folder in evaluations:
        card = read_scorecard(folder)
        if _make_absolute(card.checkpoint) != _make_absolute(resolved):
            raise ConfigError(
                f"--scores {folder}: this evaluation is of {card.checkpoint}, not of {resolved}; "
                f"evaluate {resolved}"
            )
        sections += _describe_scores(card)
    return "\n".join([*sections, *_describe_training(resolved)])


def _describe_scores(card: Scorecard) -> list[str]:
    lines = list[str]()
    if card.tasks:
        rows = (_format_task_row(name, score) for name, score in card.tasks.items())
        lines += ["## Scores", "", *_format_table(TASK_COLUMNS, rows), ""]
        lines += [
            "± is the standard error. `seen` is the number of rows found in the training data, of",
            "those long enough to search for, if the evaluation searched.",
            "",
        ]
    if card.scores:
        sources = (
            (name, f"{score.bits_per_byte:.4f}", f"{score.perplexity:.4g}", f"{score.tokens:,}")
            for name, score in card.scores.items()
        )
        lines += ["## Held-out text", "", *_format_table(TEXT_COLUMNS, sources), ""]
    return lines


def _format_task_row(name: str, score: TaskScore) -> tuple[str, ...]:
    headline = score.headline
    error = "" if headline.error is None else f" ± {headline.error:.4f}"
    bounds = "–" if headline.low is None else f"{headline.low:.4f} to {headline.high:.4f}"
    seen = score.contamination
    return (
        name,
        score.metric,
        f"{headline.value:.4f}{error}",
        bounds,
        f"{score.rows:,}",
        str(score.few_shot),
        "–" if score.chance is None else f"{score.chance:.4f}",
        "–" if seen is None else f"{seen.seen:,} of {seen.looked_for:,}",
    )


def _describe_training(resolved: str) -> list[str]:
    """Return the lines on the training run, or on the parents of a model that no run made.

    Returns [] for a model that was imported from elsewhere.
    """
    try:  # the claim records the run's settings and inputs
        claim = read_claim(find_run_folder(resolved))
    except DataError:
        return []
    if claim is None:
        return _describe_data(resolved) if storage.exists(_name_parents(resolved)) else []
    inputs = [(role, f"`{content[:16]}`") for role, content in sorted(claim.inputs.items())]
    settings = json.dumps(claim.config, indent=2, ensure_ascii=False)
    return [
        "## Training",
        "",
        f"Made by `trainrig {claim.stage}`, from inputs with these fingerprints:",
        "",
        *_format_table(("input", "fingerprint"), inputs),
        "",
        "and these settings:",
        "",
        "```json",
        settings,
        "```",
        "",
        *_describe_data(resolved),
    ]


def _name_parents(resolved: str) -> str:
    return storage.join(find_run_folder(resolved), PARENTS)


def _describe_data(resolved: str) -> list[str]:
    """Return the section on data; it says so if damage hides the inputs of the checkpoint."""
    try:
        return render_card_section(trace_lineage(resolved))
    except DataError as error:
        return ["## Data", "", f"The inputs were not found: {error}.", ""]


def _format_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [_format_row(columns), _format_row(["---"] * len(columns)), *map(_format_row, rows)]


def _format_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _make_absolute(path: str) -> str:
    return path if storage.is_remote(path) else str(Path(path).resolve())
