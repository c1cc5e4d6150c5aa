"""Checkpoints: written by all ranks together, whole or not at all, readable at any worker count.

    checkpoints/step_00001000/attempt-0002/
        shard-00001-model-00001-of-00001.safetensors   rank 0's part, and so on
        state.json  tokenizer.json                     all that is no tensor
        manifest.json                                  created last: the sums of the rest
        damaged.json                                   by a rank that found it so, to its successors

No file of a checkpoint holds anything that could be executed. The manifest is the truth: a folder
without one is no checkpoint, and one whose bytes do not match it is passed over for the one before.
"""

import importlib
from typing import TYPE_CHECKING, Any

from trainrig.train.checkpoint.chunks import DamagedCheckpoint
from trainrig.train.checkpoint.found import check_data, content_key, describe, resolve
from trainrig.train.checkpoint.manifest import Checkpoint, find_damage, newest_valid

if TYPE_CHECKING:
    from trainrig.train.checkpoint.model import CheckpointModel, open_model, write_model
    from trainrig.train.checkpoint.reader import load, load_weights
    from trainrig.train.checkpoint.saver import Saver

# What needs torch, which takes seconds: imported when it is first asked for.
_WITH_TENSORS = {
    "Model": "model",
    "open_model": "model",
    "write_model": "model",
    "load": "reader",
    "load_weights": "reader",
    "Saver": "saver",
}


def __getattr__(name: str) -> Any:
    if name not in _WITH_TENSORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WITH_TENSORS[name]}"), name)


__all__ = [
    "Checkpoint",
    "CheckpointModel",
    "DamagedCheckpoint",
    "Saver",
    "check_data",
    "content_key",
    "describe",
    "find_damage",
    "load",
    "load_weights",
    "newest_valid",
    "open_model",
    "resolve",
    "write_model",
]
