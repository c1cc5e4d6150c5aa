"""What a run file says of it."""

from trainrig.config import Settings


class Offload(Settings):
    """What is kept in the host's memory, to leave that of GPUs to the rest; no bit depends on it.

    On CPUs it saves nothing: their memory is the host's.
    """

    # Whether to keep what optimizers remember there: each update fetches it parameter by parameter,
    # and stores it again.
    optimizer: bool = False
