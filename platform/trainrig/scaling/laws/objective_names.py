"""Names of training objectives in tables of runs and in laws."""

import json

from trainrig import config
from trainrig.config import Settings
from trainrig.errors import ConfigError, DataError
from trainrig.objectives import CausalLM, PretrainingObjective

NEXT_TOKEN = ""  # the value for next-token prediction, also in tables from elsewhere


class _Written(Settings):
    """An objective as a table in a run file."""

    objective: PretrainingObjective


def serialise_objective(objective: CausalLM) -> str:
    """Return `objective` with all settings as JSON, or NEXT_TOKEN for next-token prediction."""
    if objective == CausalLM():
        return NEXT_TOKEN
    return json.dumps(objective.model_dump(mode="json"), sort_keys=True)


def read(text: str) -> CausalLM:
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
    objective = read(text)
    settings = []
    for name, field in type(objective).model_fields.items():
        value = getattr(objective, name)
        if name != "kind" and value != field.default:
            settings.append(name if isinstance(value, tuple) else f"{name} {value}")
    return f"{objective.kind} ({', '.join(settings)})" if settings else objective.kind
