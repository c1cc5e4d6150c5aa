"""Checkpoints: written by all ranks together, whole or not at all, readable at any worker count.

    checkpoints/step_00001000/attempt-0002/
        shard-00001-model-00001-of-00001.safetensors   rank 0's part, and so on
        state.json  tokenizer.json                     all that is no tensor
        manifest.json                                  created last: the sums of the rest
        damaged.json                                   by a rank that found it so, to its successors

No file of a checkpoint holds anything that could be executed. The manifest is the truth: a folder
without one is no checkpoint, and one whose bytes do not match it is passed over for the one before.
"""

from trainrig.train.checkpoint.chunks import DamagedCheckpoint
from trainrig.train.checkpoint.manifest import Checkpoint, find_damage, newest_valid
from trainrig.train.checkpoint.model import (
    Model,
    content_key,
    describe,
    open_model,
    resolve,
    write_model,
)
from trainrig.train.checkpoint.reader import check_data, load, load_weights
from trainrig.train.checkpoint.saver import Saver

__all__ = [
    "Checkpoint",
    "DamagedCheckpoint",
    "Model",
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
