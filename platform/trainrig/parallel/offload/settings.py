"""What a run file says of it."""

from trainrig.config import Settings
from trainrig.parallel.activation_memory.recompute import Budget, Recompute, Selective


class Offload(Settings):
    """What is kept in the host's memory, to leave that of GPUs to the rest; no bit depends on it.

    On CPUs it saves nothing: their memory is the host's.
    """

    # Whether to keep what optimizers remember there: each update fetches it parameter by parameter,
    # and stores it again.
    optimizer: bool = False
    # Whether to keep there what layers save for the backward pass, but for two of them at a time;
    # with recompute.kind = "Full" that is their input alone.
    activations: bool = False

    def check_beside(self, recompute: Recompute | None, by_places: bool) -> None:
        """Raise ValueError for activations that would not be moved, with such a `recompute`;
        `by_places`: ranks have some places each of what flows between layers."""
        if not self.activations:
            return
        if isinstance(recompute, Selective | Budget):
            raise ValueError(
                f"offload.activations: recompute.kind = '{recompute.kind}' keeps some of them by "
                "itself; set recompute.kind = 'Full', or leave out [training.recompute]"
            )
        if by_places and (recompute is None or recompute.every > 1):
            raise ValueError(
                "offload.activations: with parallel.tensor.sequence_parallel layers save parts and "
                "gather the rest again; set recompute.kind = 'Full' for all layers"
            )
