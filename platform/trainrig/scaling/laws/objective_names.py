"""How tables and laws say which objective runs were trained for."""

import json

from trainrig import config
from trainrig.config import Settings
from trainrig.errors import ConfigError, DataError
from trainrig.objectives import CausalLM, PretrainingObjective

NEXT_TOKEN = ""  # what tables of next-token prediction say, those of others too


class _Written(Settings):
    """An objective as a table of a run file."""

    objective: PretrainingObjective


def serialise_objective(objective: CausalLM) -> str:
    """`objective` with all its settings, as JSON; NEXT_TOKEN for plain next-token prediction."""
    if objective == CausalLM():
        return NEXT_TOKEN
    return json.dumps(objective.model_dump(mode="json"), sort_keys=True)


def read(text: str) -> CausalLM:
    """The objective that `serialise_objective` wrote. Raises DataError if there is none such."""
    if text == NEXT_TOKEN:
        return CausalLM()
    try:
        return config.build(_Written, {"objective": json.loads(text)}, "runs").objective
    except (ConfigError, ValueError) as error:
        raise DataError(f"objective {text}: {error}") from None


def name_objective(text: str) -> str:
    """What `text` is called where people read it: its kind, and the settings that differ from their
    defaults, those that are lists by name alone. Raises DataError as `read` does."""
    objective = read(text)
    settings = []
    for name, field in type(objective).model_fields.items():
        value = getattr(objective, name)
        if name != "kind" and value != field.default:
            settings.append(name if isinstance(value, tuple) else f"{name} {value}")
    return f"{objective.kind} ({', '.join(settings)})" if settings else objective.kind
