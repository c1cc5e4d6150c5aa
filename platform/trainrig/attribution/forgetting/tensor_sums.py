"""One checksum of all tensors of a checkpoint, the same at any number of workers that wrote it."""

import hashlib

import torch

from trainrig.train import checkpoint
from trainrig.train.checkpoint.manifest import CheckpointManifest
from trainrig.train.checkpoint.rank_file import TYPES
from trainrig.train.checkpoint.reader import read_tensors
from trainrig.train.checkpoint.tensor_index import sort_names

AT_ONCE = 2**28  # bytes of tensors in memory at a time, unless one is larger


def compute_tensor_sum(path: str) -> tuple[str, str]:
    """Return the newest checkpoint at `path`, and the SHA-256 of all its tensors.

    The weights and the optimizer state count: name, dtype, shape and bytes of each tensor, in the
    order of names. Raises DataError if there is no checkpoint, DamagedCheckpoint for wrong bytes.
    """
    resolved = checkpoint.resolve(path)
    manifest = CheckpointManifest.read(resolved)
    total = hashlib.sha256()
    waiting: dict[str, torch.Tensor] = {}

    def add_waiting() -> None:
        read_tensors(resolved, waiting, manifest)
        for name, tensor in waiting.items():
            total.update(f"{name} {manifest.tensors[name].type} {tuple(tensor.shape)}\n".encode())
            total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
        waiting.clear()

    size = 0
    for name in sort_names(manifest.tensors):
        indexed = manifest.tensors[name]
        if waiting and size + indexed.rows * indexed.row_bytes > AT_ONCE:
            add_waiting()
            size = 0
        waiting[name] = torch.empty(indexed.shape, dtype=TYPES[indexed.type])
        size += indexed.rows * indexed.row_bytes
    add_waiting()
    return resolved, total.hexdigest()
