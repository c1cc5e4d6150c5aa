"""What a run file says of it."""

from trainrig.config import Settings


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

    def check_beside(self, recompute: str | None, by_places: bool) -> None:
        """Raise ValueError for activations that would not be moved, with that kind of
        recomputation; `by_places`: ranks have some places each of what flows between layers."""
        if not self.activations or recompute == "Full":
            return
        if recompute is not None:
            raise ValueError(
                f"offload.activations: recompute.kind = '{recompute}' keeps some of them by "
                "itself; set recompute.kind = 'Full', or leave out [training.recompute]"
            )
        if by_places:
            raise ValueError(
                "offload.activations: with parallel.tensor.sequence_parallel layers save parts and "
                "gather the rest again; set recompute.kind = 'Full'"
            )
