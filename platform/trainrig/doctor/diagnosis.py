"""The result of one check, and the table of all results."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trainrig.errors import TrainrigError

Severity = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Diagnosis:
    """Result of one check, with advice for the user."""

    subject: str  # such as `torch`
    severity: Severity
    found: str
    advice: str = ""  # empty if there is nothing to do


Check = Callable[[], Diagnosis]


def run_check(subject: str, check: Check) -> Diagnosis:
    """Return the diagnosis of `check`; a check that fails is a problem with its error's text."""
    try:
        return check()
    except TrainrigError as error:
        return Diagnosis(subject, "problem", str(error))
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return Diagnosis(subject, "problem", f"{place}{error.strerror or error}")
    except ImportError as error:
        again = "install trainrig again: pip install -c constraints.txt -e ."
        return Diagnosis(subject, "problem", f"a module is missing or broken: {error}", again)


def format_table(diagnoses: Sequence[Diagnosis]) -> str:
    """Return one line for each diagnosis, with its advice in a second line, and a summary."""
    width = max((len(diagnosis.subject) for diagnosis in diagnoses), default=0)
    lines = list[str]()
    for diagnosis in diagnoses:
        lines.append(f"{diagnosis.severity:8}{diagnosis.subject:{width + 2}}{diagnosis.found}")
        if diagnosis.advice:
            lines.append(f"{'':{width + 10}}→ {diagnosis.advice}")
    problems = count_severity(diagnoses, "problem")
    warnings = count_severity(diagnoses, "warning")
    return "\n".join([*lines, f"problems: {problems}, warnings: {warnings}"])


def to_json(diagnoses: Sequence[Diagnosis]) -> dict[str, Any]:
    """Return the diagnoses and the numbers of problems and warnings as a JSON object."""
    return {
        "checks": [dataclasses.asdict(diagnosis) for diagnosis in diagnoses],
        "problems": count_severity(diagnoses, "problem"),
        "warnings": count_severity(diagnoses, "warning"),
    }


def count_severity(diagnoses: Sequence[Diagnosis], severity: Severity) -> int:
    """Return how many of `diagnoses` are of `severity`."""
    return sum(diagnosis.severity == severity for diagnosis in diagnoses)
