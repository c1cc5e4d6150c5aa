"""What can be said of a run before it starts."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainrig import hardware, storage
from trainrig.config import RunFile
from trainrig.errors import ConfigError
from trainrig.manifest import MANIFEST

# What a run file of one stage needs is imported for that stage: all of it takes seconds, and none
# of it torch.
if TYPE_CHECKING:
    from trainrig.corpus.dedup.signatures.minhash import MinHash
    from trainrig.corpus.run_file import Curation
    from trainrig.estimate.cost import Assumptions, Cost
    from trainrig.models.decoder_config import DecoderConfig
    from trainrig.posttrain.run_file import FineTuning
    from trainrig.scaling.sweep.run_file import Sweep
    from trainrig.train.run_file import Pretraining

_SIMILARITIES = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9)


@dataclass(frozen=True)
class DeviceChoice:
    """What a run's time and cost are reckoned for."""

    device: str | None = None  # in the table; None: this machine's GPU if it is there, else a core
    table: str | None = None  # a file like hardware.toml; None: that one
    utilisation: float | None = None  # of the peak; None: what is usual

    def named(self, offers: hardware.Hardware) -> str:
        """The device. Raises ConfigError if the table has no such one."""
        if self.device is not None:
            offers.device(self.device)
            return self.device
        return hardware.local_device(offers)

    def check(self) -> None:
        """Raise ConfigError for what cannot be, also where nothing is reckoned for it."""
        self.named(hardware.load(self.table))
        _ = self.assumed

    @property
    def assumed(self) -> "Assumptions":
        """With the usual assumptions. Raises ConfigError for a share that is none."""
        from trainrig.estimate.cost import Assumptions

        if self.utilisation is None:
            return Assumptions()
        if not 0 < self.utilisation <= 1:
            raise ConfigError(f"--mfu {self.utilisation:g} is no share of a peak: 0 < share <= 1")
        return Assumptions(utilisation=self.utilisation)


def describe(run: RunFile, machine: DeviceChoice = DeviceChoice()) -> dict[str, Any]:
    """Facts about `run`: for a sweep, what it will train; for training, its parameters, the
    positions of its rows, its operations, and what it takes of `machine`: memory, hours, money,
    energy; for curation, how likely its near-duplicates are to be compared.

    Raises InputError if its parts do not fit each other or its inputs. An input that an earlier
    stage has still to make is no error; what depends on it is left out.
    """
    facts: dict[str, Callable[[Any, DeviceChoice], dict[str, Any]]] = {
        "curate": _of_curation,
        "pretrain": _of_pretraining,
        "posttrain": _of_tuning,
        "sweep": _of_sweep,
    }
    machine.check()
    return facts[run.verb](run, machine) if run.verb in facts else {}


def _of_curation(run: "Curation", _: DeviceChoice) -> dict[str, Any]:
    return _of_pairs(run.near_duplicates)


def _of_pretraining(run: "Pretraining", machine: DeviceChoice) -> dict[str, Any]:
    from trainrig.tokens.tokenizer import TOKENIZER_FILE
    from trainrig.train import pretrain

    facts: dict[str, Any] = {"positions": run.batches.positions(run.training.steps)}
    if storage.exists(storage.join(run.tokens, MANIFEST)):
        batches = pretrain.open_batches(run.tokens, run.batches, run.cache)
        epochs = batches.check_epochs(run.training.steps)
        rounded = {f"epochs_of_{source}": round(n, 3) for source, n in epochs.items()}
        model = pretrain.prepare(run).model
        return _sizes(model) | facts | rounded | _takes(run, model, machine)
    if run.model is not None and run.model.vocabulary is not None:
        return _sizes(run.model) | facts | _takes(run, run.model, machine)
    missing = storage.join(run.tokens, TOKENIZER_FILE)
    return facts | {"parameters": f"not known before {missing} is there, or model.vocabulary set"}


def _of_tuning(run: "FineTuning", _: DeviceChoice) -> dict[str, Any]:
    if not storage.list_files(run.checkpoint):
        return {}
    from trainrig.posttrain import sft

    job, _inputs, counted = sft.prepare(run)
    return _sizes(job.model) | counted


def _of_sweep(run: "Sweep", _: DeviceChoice) -> dict[str, Any]:
    if not storage.exists(storage.join(run.tokens, MANIFEST)):
        return {}
    from trainrig.scaling.sweep.trials import foreseen

    return foreseen(run)


def _of_pairs(near: "MinHash") -> dict[str, Any]:
    """The curve 1 - (1 - s^rows)^bands, at a few similarities s."""
    found = {
        f"compared at similarity {similarity}": round(near.candidate_probability(similarity), 4)
        for similarity in sorted({*_SIMILARITIES, near.threshold})
    }
    return {"near_duplicates.bands": near.bands, "near_duplicates.rows": near.rows, **found}


def _takes(run: "Pretraining", model: "DecoderConfig", machine: DeviceChoice) -> dict[str, Any]:
    """Operations, memory a device, time, money and energy, for the most workers that `run` may
    have."""
    from trainrig.estimate.cost import cost
    from trainrig.estimate.flops import six_n_d
    from trainrig.estimate.memory import step_memory
    from trainrig.models.decoder_config import count_parameters
    from trainrig.train.worker_bounds import bounds

    offers, workers = hardware.load(machine.table), bounds(run.workers).most
    device, compute = machine.named(offers), run.training.precision.compute
    flops = _flops(run, model)
    largest = max(
        step_memory(
            model,
            run.training,
            workers,
            stage.global_batch,
            stage.micro_batch,
            stage.sequence_length,
        ).total
        for stage in run.batches.resolved()
    )
    taken = cost(flops, offers, device, workers, compute, machine.assumed)
    positions = run.batches.positions(run.training.steps)
    return {
        "flops": flops,
        "flops_by_6nd": float(six_n_d(count_parameters(model).layers, positions)),
        "device": f"{device} x {workers}, at {machine.assumed.utilisation:.0%} of the peak",
        "memory_per_device_gib": round(largest / 2**30, 3),
        "hours": taken.hours,
        "kwh": taken.kwh,
        **({} if taken.usd is None else {"usd": taken.usd, "rented": _rented(taken)}),
        **({"warning": hardware.NO_BFLOAT16} if _emulated(machine, device, compute) else {}),
    }


def _emulated(machine: DeviceChoice, device: str, compute: str) -> bool:
    """Whether a core of this machine would compute in numbers that it has no hardware for."""
    here = machine.device is None and device in (hardware.CPU, hardware.CPU_WITHOUT_BFLOAT16)
    return here and compute == "bfloat16" and not hardware.cpu_has_bfloat16()


def _rented(taken: "Cost") -> str:
    return f"{taken.machines} {taken.instance}, price of {taken.as_of}"


def _flops(run: "Pretraining", model: "DecoderConfig") -> float:
    """Of all steps, each stage's rows as long as they are."""
    from trainrig.estimate.flops import token_flops

    stages = run.batches.resolved()
    ends = [run.batches.positions(min(stage.from_step, run.training.steps)) for stage in stages]
    ends.append(run.batches.positions(run.training.steps))
    return sum(
        (end - begin) * token_flops(model, stage.sequence_length).training
        for stage, (begin, end) in zip(stages, itertools.pairwise(ends), strict=True)
    )


def _sizes(model: "DecoderConfig") -> dict[str, Any]:
    from trainrig.models.decoder_config import count_parameters

    count = count_parameters(model)
    return {"parameters": count.total, "parameters_of_embedding": count.embedding}
