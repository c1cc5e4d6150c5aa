"""The weights of one step, written by all ranks for the processes that sample with them.

They have the format of a checkpoint: each rank writes its own rows, so no process holds the whole
model, and readers verify every byte. On a single machine, they are read from the page cache.
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
    """Writer of versions of a run's weights; only of the adapter, if one is trained."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        """Set up the writer; checksums are gathered over `group`."""
        self._group = group
        self._staged: StagedFile | None = None
        self._index: dict[str, IndexedTensor] = {}

    def write(self, state: TrainState, folder: str, attempt: int) -> None:
        """Write the weights of `state` to `folder`; they are complete once its manifest exists.

        Collective. No parameters may be gathered.
        """
        tensors = state.list_weights()
        parts = find_written(tensors)
        if self._staged is None:
            self._staged = StagedFile(parts)
            self._index = index_all(tensors)
        self._staged.fill(parts)
        rank = dist.get_rank()
        mine = self._staged.write(storage.join(folder, tensor_file_name(rank)))
        sums: list[FileChunks] = [mine] * dist.get_world_size()
        dist.all_gather_object(sums, mine, group=self._group)
        if rank == 0:
            files = {tensor_file_name(writer): chunks for writer, chunks in enumerate(sums)}
            step = state.step
            index = self._index
            commit(
                folder, CheckpointManifest(step=step, attempt=attempt, files=files, tensors=index)
            )


def read_weights(folder: str, state: TrainState) -> None:
    """Fill the weights of `state` from `folder`. Raise DamagedCheckpoint on wrong bytes."""
    read_tensors(folder, state.list_weights())
