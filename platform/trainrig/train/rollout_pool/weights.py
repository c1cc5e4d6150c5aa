"""The weights of a step, written by all ranks for those who sample with them.

In the files of a checkpoint: each rank writes its rows, so the model is whole nowhere; who reads
checks every byte. On one machine what was written is read from memory.
"""

import torch.distributed as dist

from trainrig import storage
from trainrig.train.checkpoint.chunks import FileChunks
from trainrig.train.checkpoint.index import IndexedTensor
from trainrig.train.checkpoint.manifest import CheckpointManifest, commit
from trainrig.train.checkpoint.reader import read_tensors
from trainrig.train.checkpoint.shares import find_written, index_all
from trainrig.train.checkpoint.tensor_file import StagedFile, tensor_file_name
from trainrig.train.state import TrainState


class WeightWriter:
    """Writes versions of the weights of one run; an adapter's alone, where one is trained."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        """`group`: to gather sums over."""
        self._group = group
        self._staged: StagedFile | None = None
        self._index: dict[str, IndexedTensor] = {}

    def write(self, state: TrainState, folder: str, attempt: int) -> None:
        """Put the weights of `state` into `folder`, whole once its manifest is there. Collective;
        nothing may be gathered."""
        tensors = state.list_weights()
        parts = find_written(tensors)
        if self._staged is None:
            self._staged, self._index = StagedFile(parts), index_all(tensors)
        self._staged.fill(parts)
        rank = dist.get_rank()
        mine = self._staged.write(storage.join(folder, tensor_file_name(rank)))
        sums: list[FileChunks] = [mine] * dist.get_world_size()
        dist.all_gather_object(sums, mine, group=self._group)
        if rank == 0:
            files = {tensor_file_name(each): chunks for each, chunks in enumerate(sums)}
            step, index = state.step, self._index
            commit(
                folder, CheckpointManifest(step=step, attempt=attempt, files=files, tensors=index)
            )


def read_weights(folder: str, state: TrainState) -> None:
    """Fill the weights of `state` with those in `folder`. Raises DamagedCheckpoint."""
    read_tensors(folder, state.list_weights())
