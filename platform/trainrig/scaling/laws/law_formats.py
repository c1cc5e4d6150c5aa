"""Formats of the numbers of laws and plans, and names of training objectives.

The terminal and the HTML pages share them: two places that round the same number differently would
seem to show two numbers. Tables of runs and laws name an objective by its settings as JSON.
"""

import json

from trainrig import config
from trainrig.config import Settings
from trainrig.errors import ConfigError, DataError
from trainrig.objectives.next_token import CausalLM
from trainrig.objectives.objective_kinds import PretrainingObjective
from trainrig.report.number_formats import format_short
from trainrig.scaling.laws.law import Interval


def format_count(number: float) -> str:
    """Format a number of parameters or tokens as all pages do: `3.01B`, `512`."""
    return format_short(number)


def format_usd(amount: float) -> str:
    """Format US dollars to the cent, or with two digits below a cent: `9,999.92`, `0.0042`."""
    return f"{amount:,.2f}" if amount >= 0.01 or amount == 0 else f"{amount:.2g}"


def format_loss(nats: float) -> str:
    """Format a loss, or a difference of losses, in nats per token: `2.2361`."""
    return f"{nats:.4f}"


def format_flops(number: float) -> str:
    """Format a number of floating-point operations: `2.070e+21`."""
    return f"{number:.3e}"


def format_four_digits(number: float) -> str:
    """Format hours, days or kWh with four digits: `181.7`, `1,831`."""
    return f"{number:,.4g}"


def format_interval(found: Interval | None) -> str:
    """Format an interval as `[0.48, 0.55]`, naming open ends, or as `–` if there is none."""
    return "–" if found is None else str(found)


def format_loss_interval(interval: Interval) -> str:
    """Return an interval of losses as text with four decimals, such as `[4.5831, 4.6932]`."""
    return f"[{interval.low:.4f}, {interval.high:.4f}]"


NEXT_TOKEN = ""  # the value for next-token prediction, also in tables from elsewhere


class _Written(Settings):
    """An objective as a table in a run file."""

    objective: PretrainingObjective


def serialise_objective(objective: CausalLM) -> str:
    """Return `objective` with all settings as JSON, or NEXT_TOKEN for next-token prediction."""
    if objective == CausalLM():
        return NEXT_TOKEN
    return json.dumps(objective.model_dump(mode="json"), sort_keys=True)


def parse_objective(text: str) -> CausalLM:
    """Parse the text that `serialise_objective` writes. Raises DataError for anything else."""
    if text == NEXT_TOKEN:
        return CausalLM()
    try:
        return config.build(_Written, {"objective": json.loads(text)}, "runs").objective
    except (ConfigError, ValueError) as error:
        raise DataError(f"objective {text}: {error}") from None


def name_objective(text: str) -> str:
    """Return a readable name for the objective in `text`: its kind and its non-default settings.

    Settings that are lists appear by name, without their values. Raises DataError if `text` is
    invalid.
    """
    objective = parse_objective(text)
    settings = []
    for name, field in type(objective).model_fields.items():
        value = getattr(objective, name)
        if name != "kind" and value != field.default:
            settings.append(name if isinstance(value, tuple) else f"{name} {value}")
    return f"{objective.kind} ({', '.join(settings)})" if settings else objective.kind
