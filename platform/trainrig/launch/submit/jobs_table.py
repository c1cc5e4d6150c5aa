"""Table of all runs of a home, read from storage alone, without asking a cluster."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trainrig import config, storage
from trainrig.errors import TrainrigError
from trainrig.launch.supervise.metered_cost import UNKNOWN, Spent
from trainrig.launch.supervise.run_progress import trains
from trainrig.launch.supervise.run_record import DONE, Home, RunRecord, RunStatus
from trainrig.manifest import SCRATCH
from trainrig.report.number_formats import format_duration


@dataclass(frozen=True)
class JobRow:
    """One run; None stands for an unknown value, or one that the verb does not have."""

    verb: str
    id: str
    state: str
    step: int | None  # updates made; None for verbs without steps
    steps: int | None  # planned in all
    splits: int | None  # done so far; None for verbs without splits
    goodput: float | None  # share of the supervised time that made progress
    usd: float | None  # total of all attempts so far
    usd_at_least: float  # lower bound if a price is missing
    usd_at_most: float | None  # upper bound; None: unknown
    age: float  # seconds since the first submission
    attempts: int
    output: str

    @property
    def progress(self) -> str:
        """Progress as text, such as `120 of 1,000 steps`."""
        if self.step is not None and self.steps:
            return f"{self.step:,} of {self.steps:,} steps"
        if self.state == DONE:
            return "all"
        return (
            f"{self.splits:,} {'split' if self.splits == 1 else 'splits'} done"
            if self.splits
            else ""
        )


def build_rows(home: Home) -> list[JobRow]:
    """Return the rows of all runs of `home`, newest first."""
    return sorted((build_row(record) for record in home.list()), key=lambda row: row.age)


def build_row(record: RunRecord) -> JobRow:
    """Build the row of one run; what cannot be read of its output is None."""
    about = record.read_description()
    status = record.read_status()
    verb = str(about["verb"])
    output = str(about["output"])
    step = None
    steps = None
    share = None
    cost = sum_spent(record, status)
    if trains(verb):
        step, steps, share = _read_training(record, output)
    return JobRow(
        verb=verb,
        id=record.id,
        state=status.state,
        step=step,
        steps=steps,
        splits=_count_splits(output) if not trains(verb) and status.state != DONE else None,
        goodput=share,
        usd=cost.usd,
        usd_at_least=cost.at_least,
        usd_at_most=cost.at_most,
        age=time.time() - float(about["created"]),
        attempts=status.attempt.number if status.attempt else 0,
        output=output,
    )


def sum_spent(record: RunRecord, status: RunStatus) -> Spent:
    """Return the cost of all attempts, from their ends and the newest heartbeat."""
    took: dict[int, Spent] = {}
    if status.attempt and "usd" in status.heartbeat:
        took[status.attempt.number] = Spent.from_json(status.heartbeat)
    for event in record.read_events():
        if "usd" in event:
            took[event["attempt"]] = Spent.from_json(event)
    return sum(took.values(), Spent()) if took else UNKNOWN


def _read_training(record: RunRecord, output: str) -> tuple[int | None, int | None, float | None]:
    from trainrig.train.run.progress import ProgressFollower, measure_goodput

    try:
        text = config.read_text(record.run_file)
        steps = int(config.parse(text, record.run_file)["training"]["steps"])
        progress = ProgressFollower(output, steps).look()
        share = measure_goodput(output).share if progress else None
    except (TrainrigError, OSError, KeyError):
        return None, None, None
    return progress.step if progress else 0, steps, share


def _count_splits(output: str) -> int | None:
    try:
        return len(storage.list_files(storage.join(output, SCRATCH), ".json"))
    except (TrainrigError, OSError):
        return None


def to_text(row: JobRow) -> Mapping[str, str]:
    """Return the row as text, keyed by column."""
    return {
        "verb": row.verb,
        "run": row.id,
        "state": row.state,
        "progress": row.progress,
        "goodput": "" if row.goodput is None else f"{row.goodput:.0%}",
        "cost": _format_cost(row),
        "age": format_duration(row.age),
    }


def format_lines(found: Sequence[JobRow]) -> Iterator[str]:
    """Yield the lines of the table. No cell is cut, so that ids can be copied."""
    texts = [to_text(row) for row in found]
    heads = list(texts[0]) if texts else []
    widths = {head: max(len(head), *(len(text[head]) for text in texts)) for head in heads}
    for text in [dict(zip(heads, heads, strict=True)), *texts] if texts else ():
        yield "  ".join(text[head].ljust(widths[head]) for head in heads).rstrip()


def _format_cost(row: JobRow) -> str:
    if row.usd is not None:
        return f"{row.usd:,.2f} USD"
    if row.usd_at_most is not None:
        return f"{row.usd_at_least:,.2f} to {row.usd_at_most:,.2f} USD"
    return f"over {row.usd_at_least:,.2f} USD" if row.usd_at_least else ""
