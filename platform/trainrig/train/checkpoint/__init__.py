"""Checkpoints, written by all ranks together and readable at any number of workers.

    checkpoints/step_00001000/attempt-0002/
        shard-00001-model-00001-of-00001.safetensors   tensors of rank 0, and so on
        state.json  tokenizer.json  brought.json       everything that is not a tensor
        manifest.json                                  created last: checksums of the other files
        damaged.json                                   mark of a rank that could not load it
        verified.json                                  of a run's last one: its ranks read it back

No file of a checkpoint holds anything that could be executed. The manifest decides: a folder
without one is no checkpoint, and one whose bytes do not match its manifest is skipped in favour of
an earlier one.
"""

import importlib
from typing import TYPE_CHECKING, Any

from trainrig.train.checkpoint.checkpoint_metadata import (
    VERIFIED,
    check_base,
    check_context,
    check_data,
    compute_content_key,
    compute_manifest_sum,
    describe,
    estimate_worker_memory,
    keep_base,
    read_adapter,
    read_entries,
    read_tokenizer_files,
    read_verified_sums,
    resolve,
)
from trainrig.train.checkpoint.manifest import (
    Checkpoint,
    find_damage,
    find_newest_valid,
    list_committed,
)
from trainrig.train.checkpoint.tensor_index import DamagedCheckpoint

if TYPE_CHECKING:
    from trainrig.train.checkpoint.adapter import OpenAdapter, load_base
    from trainrig.train.checkpoint.reader import load, load_frozen, load_trained, load_weights
    from trainrig.train.checkpoint.saver import Saver, roll_back, watch_for_spikes
    from trainrig.train.checkpoint.stored_model import (
        CheckpointModel,
        StoredModel,
        open_model,
        write_adapter,
        write_model,
    )

# Names that need torch, by module. They are imported at first use, as torch takes seconds.
_WITH_TENSORS = {
    "CheckpointModel": "stored_model",
    "OpenAdapter": "adapter",
    "load_base": "adapter",
    "StoredModel": "stored_model",
    "open_model": "stored_model",
    "write_adapter": "stored_model",
    "write_model": "stored_model",
    "load": "reader",
    "load_frozen": "reader",
    "load_trained": "reader",
    "load_weights": "reader",
    "roll_back": "saver",
    "watch_for_spikes": "saver",
    "Saver": "saver",
}


def __getattr__(name: str) -> Any:
    if name not in _WITH_TENSORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WITH_TENSORS[name]}"), name)


__all__ = [
    "VERIFIED",
    "Checkpoint",
    "CheckpointModel",
    "DamagedCheckpoint",
    "OpenAdapter",
    "Saver",
    "StoredModel",
    "check_base",
    "check_context",
    "check_data",
    "compute_content_key",
    "compute_manifest_sum",
    "describe",
    "estimate_worker_memory",
    "find_damage",
    "find_newest_valid",
    "keep_base",
    "list_committed",
    "load",
    "load_base",
    "load_frozen",
    "load_trained",
    "load_weights",
    "open_model",
    "read_adapter",
    "read_entries",
    "read_tokenizer_files",
    "read_verified_sums",
    "resolve",
    "roll_back",
    "watch_for_spikes",
    "write_adapter",
    "write_model",
]
