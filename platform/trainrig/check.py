"""Estimates what a run takes, and checks its run file, before the run starts."""

from typing import Any

from trainrig.config import RunFile
from trainrig.estimate.device_choice import DeviceChoice
from trainrig.verbs import load_named


def describe(run: RunFile, machine: DeviceChoice | None = None) -> dict[str, Any]:
    """Facts about `run`, as its verb estimates them: for a sweep, what it will train; for training,
    its parameters, the positions of its rows, its operations, and what it takes of `machine`:
    memory, hours, money, energy; for tuning, parameters and memory; for curation, how likely its
    near-duplicates are to be compared.

    Raises InputError if its parts do not fit each other or its inputs. An input that an earlier
    stage has still to make is no error; what depends on it is left out.
    """
    machine = machine or DeviceChoice()
    machine.check()
    if not run.estimate:
        return {}
    facts: dict[str, Any] = load_named(run.estimate)(run, machine)
    return facts
