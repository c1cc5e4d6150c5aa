"""Estimates of a run's cost, and checks of its run file, before the run starts."""

from typing import Any

from trainrig.config import RunFile
from trainrig.estimate.run_cost import DeviceChoice
from trainrig.verbs import load_named


def describe(run: RunFile, machine: DeviceChoice | None = None) -> dict[str, Any]:
    """Return facts about `run` by name, as its verb estimates them for `machine`.

    For training: parameters, positions of its rows, FLOPs, memory, hours, money and energy. For
    fine-tuning: parameters and memory. For a sweep: the models that it will train. For curation:
    the probability that near-duplicates are compared.

    Raises InputError if settings contradict each other or the inputs. An input that an earlier
    stage has not made yet is no error; facts that depend on that input are left out.
    """
    machine = machine or DeviceChoice()
    machine.check()
    if not run.estimate:
        return {}
    facts: dict[str, Any] = load_named(run.estimate)(run, machine)
    return facts
