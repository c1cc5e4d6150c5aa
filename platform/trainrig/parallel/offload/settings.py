"""Run-file settings for offload to the host's memory."""

from trainrig.config import Settings
from trainrig.parallel.activation_memory.recompute import Budget, Recompute, Selective


class Offload(Settings):
    """State and activations to keep in the host's memory to save GPU memory, bit-identically.

    On CPUs it saves nothing, because their memory is the host's.
    """

    # Whether to keep optimizer state in the host's memory. Each update fetches it parameter by
    # parameter and stores it back.
    optimizer: bool = False
    # Whether to keep what layers save for the backward pass in the host's memory, except for two
    # layers at a time. With recompute.kind = "Full" that is the input of each layer alone.
    activations: bool = False

    def check_beside(self, recompute: Recompute | None, by_places: bool) -> None:
        """Raise ValueError if activations would not be moved with such a `recompute`.

        `by_places`: ranks hold some positions each of what flows between layers (sequence
        parallelism).
        """
        if not self.activations:
            return
        if isinstance(recompute, Selective | Budget):
            raise ValueError(
                f"offload.activations: recompute.kind = '{recompute.kind}' already decides which "
                "activations to keep; set recompute.kind = 'Full', or remove [training.recompute]"
            )
        if by_places and (recompute is None or recompute.every > 1):
            raise ValueError(
                "offload.activations: with parallel.tensor.sequence_parallel, layers save parts "
                "of activations and gather the rest again; set recompute.kind = 'Full' for all "
                "layers"
            )
