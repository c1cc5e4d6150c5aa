"""Estimates of a run's cost, and checks of its run file, before the run starts."""

from typing import Any

from trainrig import config
from trainrig.config import RunFile
from trainrig.errors import ConfigError
from trainrig.estimate.cost_estimate import DeviceChoice
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.verbs import load_named


def describe(
    run: RunFile, machine: DeviceChoice | None = None, preset: str | None = None
) -> dict[str, Any]:
    """Return facts about `run` by name, as its verb estimates them for `machine`.

    For training: parameters, positions of its rows, FLOPs, memory, hours, money and energy. For
    reinforcement learning: parameters and memory. For a sweep: the models that it will train. For
    curation: the probability that near-duplicates are compared. `preset` names the model to assume
    for a checkpoint that does not exist yet.

    Raises InputError if settings contradict each other or the inputs. An input that an earlier
    stage has not made yet is no error; facts that depend on that input are left out.
    """
    machine = machine or DeviceChoice()
    machine.check()
    if preset is not None and run.verb != "posttrain":
        raise ConfigError(
            f"--preset: `{run.verb}` tunes no checkpoint; leave the option out, or name a run file "
            "of `posttrain`"
        )
    if not run.estimate:
        return {}
    given: list[Any] = [run, machine]
    if preset is not None:
        given.append(config.build(DecoderConfig, {"preset": preset}, "--preset"))
    facts: dict[str, Any] = load_named(run.estimate)(*given)
    return facts
