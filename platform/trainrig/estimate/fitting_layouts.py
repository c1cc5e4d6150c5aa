"""Shape of a batch, kinds of recomputation, and the table of memory by way of sharding."""

from dataclasses import dataclass
from typing import Literal

from trainrig.config import Settings
from trainrig.estimate.activation_bytes import MASTER
from trainrig.estimate.step_memory import estimate_step_memory
from trainrig.models.architecture.decoder_config import DecoderConfig, parameter_shapes
from trainrig.optim.named_groups import count_state_bytes, count_trained
from trainrig.parallel.layout import DDP, FSDP
from trainrig.parallel.recompute import Full, Recompute, Selective
from trainrig.train.run_file.training_settings import Training

MOST_DEVICES = 65_536
RecomputeChoice = Literal["nothing", "selective", "full"]
RECOMPUTED: dict[RecomputeChoice, Recompute | None] = {
    "nothing": None,
    "selective": Selective(),
    "full": Full(),
}


@dataclass(frozen=True)
class BatchShape:
    """Numbers of sequences and tokens of a step."""

    global_batch: int
    sequence_length: int


class MemoryRow(Settings):
    """Bytes of a device in one layout, by recomputation: `nothing`, `selective` or `full`."""

    layout: str  # ZeRO stage; if `offered`, also the layout's name in run files
    offered: bool  # true if run files can select this layout
    bytes_by_recompute: dict[str, float]


def build_memory_table(
    model: DecoderConfig, training: Training, batch: BatchShape, micro_batch: int, devices: int
) -> tuple[MemoryRow, ...]:
    """Return the bytes of a device by ZeRO stage and recomputation.

    Stages (Rajbhandari et al. 2020, arXiv:1910.02054) 1 and 2, which shard the optimizer state and
    then also gradients, are for comparison only; run files cannot ask for them.
    """
    offered = {
        "0 (DDP)": {"deterministic": False, "parallel": DDP()},
        "3 (FSDP, deterministic)": {
            "deterministic": True,
            "parallel": FSDP(),
            "virtual_workers": devices,
        },
        "3 (FSDP)": {"deterministic": False, "parallel": FSDP()},
        "3 (FSDP, by layer)": {"deterministic": False, "parallel": FSDP(reshard="layer")},
        "3 (FSDP, by layer and micro-batch)": {
            "deterministic": False,
            "parallel": FSDP(reshard="layer", reduce="micro_batch"),
        },
    }
    rows = {}
    for name, changes in offered.items():
        found: dict[str, float] = {}
        for again, settings in RECOMPUTED.items():
            way = training.model_copy(update={**changes, "recompute": settings})
            found[again] = estimate_step_memory(
                model, way, devices, batch.global_batch, micro_batch, batch.sequence_length
            ).total
        rows[name] = MemoryRow(layout=name, offered=True, bytes_by_recompute=found)
    whole = rows.pop("0 (DDP)")
    shapes = parameter_shapes(model)
    elsewhere = 1 - 1 / devices
    kept = count_state_bytes(shapes, training.optimizer, training.groups) * elsewhere
    gradients = MASTER * count_trained(shapes, training.groups) * elsewhere
    saved = {"1": kept, "2": kept + gradients}
    compared = [
        MemoryRow(
            layout=stage,
            offered=False,
            bytes_by_recompute={k: v - less for k, v in whole.bytes_by_recompute.items()},
        )
        for stage, less in saved.items()
    ]
    return (whole, *compared, *rows.values())
