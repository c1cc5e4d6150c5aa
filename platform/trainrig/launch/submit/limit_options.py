"""Options of `submit` that limit a run: parsed, and compared to those of a run under way."""

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from trainrig import config
from trainrig.command_line import HardwareTable, option
from trainrig.errors import ConfigError
from trainrig.launch.supervise.attempt_ends import Limits

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
DURATIONS = ("deadline", "pending", "grace")


@dataclass(frozen=True)
class LimitOptions:
    """Options of `submit` that bound a run's cost, time and restarts."""

    max_cost: Annotated[
        float | None,
        option("USD", help="Stop the run before it costs more, in USD.  [default: no limit]"),
    ] = None
    hardware: HardwareTable = None
    deadline: Annotated[
        str | None,
        option(
            "TIME",
            help="Stop the run this long after submission, such as 90s, 15m, 12h or 2d.  "
            "[default: no limit]",
        ),
    ] = None
    pending: Annotated[
        str, option("TIME", help="Give up a job that has not started after this.")
    ] = "15m"
    grace: Annotated[str, option("TIME", help="Time for saving when the run is asked to stop.")] = (
        "2m"
    )
    retries: Annotated[
        list[str] | None,
        option(
            "CAUSE=N",
            help="Restart the run up to N times after a failure by this cause; repeatable.  "
            "[default: 'lost node=5', cluster=3, unknown=1, preempted=100]",
        ),
    ] = None
    notify: Annotated[
        str | None,
        option("CMD", help="Command to run on the head node at the end.  [default: none]"),
    ] = None

    def build(self) -> Limits:
        """Build the limits. Raises ConfigError for an invalid option."""
        durations = {
            name: _parse_duration(f"--{name}", getattr(self, name))
            for name in DURATIONS
            if getattr(self, name) is not None
        }
        retries = dict(_parse_retries(retry) for retry in self.retries or ())
        return config.build(Limits, {**asdict(self), **durations, "retries": retries}, "submit")


def read_submitted(
    record: Any, limits: Limits, environment: str, given: Collection[str]
) -> tuple[Limits, str]:
    """Return the limits and environment that a run under way was submitted with.

    Raises ConfigError if an option named in `given` asks for another value.
    """
    from trainrig.launch.supervise.run_record import PINNED

    attempt = record.read_status().attempt
    there = config.build(Limits, attempt.limits, f"{record.id}: limits")
    pinned = any(event["event"] == PINNED for event in record.read_events(attempt.number))
    held = {**dict(there), "environment": "pinned" if pinned else "cluster"}
    asked = {**dict(limits), "environment": environment}
    others = [n for n in held if n in given and _differs(n, held[n], asked[n])]
    if others:
        differing = ", ".join(
            f"--{name.replace('_', '-')} {_format_option(name, held[name])}, not "
            f"{_format_option(name, asked[name])}"
            for name in others
        )
        raise ConfigError(
            f"{record.id}: already running with {differing}; to change that, stop it "
            f"(`trainrig stop {record.id} --home {shlex.quote(record.home)}`) and submit "
            "it again"
        )
    return there, str(held["environment"])


def _differs(option: str, held: Any, asked: Any) -> bool:
    if option == "hardware" and held and asked:  # the one held is the record's copy of the table
        return config.read_text(held) != config.read_text(asked)
    return bool(held != asked)


def _format_option(option: str, value: Any) -> str:
    """Format the value of an option as on the command line."""
    if option in DURATIONS and value is not None:
        unit = next(unit for unit in reversed(UNITS) if value % UNITS[unit] == 0 or unit == "s")
        return f"{value / UNITS[unit]:g}{unit}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={count}" for name, count in value.items()) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value or "none")


def _parse_duration(option: str, text: str) -> float:
    """Parse `90s`, `15m`, `1.5h` or `2d` into seconds; a number without a unit is an error."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", text.strip())
    if not found:
        raise ConfigError(f"{option} {text}: not a duration; write it as 90s, 15m, 12h or 2d")
    if not found[2]:
        meant = ", ".join(f"{found[1]}{unit}" for unit in UNITS)
        raise ConfigError(f"{option} {text}: the unit is missing; write {meant}")
    return float(found[1]) * UNITS[found[2]]


def _parse_retries(text: str) -> tuple[str, int]:
    cause, equals, count = text.partition("=")
    if not equals or not count.strip().isdecimal():
        raise ConfigError(f"--retries {text}: write it as CAUSE=N, as in 'lost node=3'")
    return cause.strip(), int(count)
