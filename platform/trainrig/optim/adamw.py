"""Adam with decoupled weight decay (Loshchilov & Hutter 2019, arXiv:1711.05101)."""

from typing import ClassVar, Literal

from trainrig.optim.groups import elementwise_share
from trainrig.optim.moments import TwoMoments


class AdamW(TwoMoments):
    """The AdamW optimizer, with Llama's defaults (Touvron et al. 2023, arXiv:2302.13971).

    Theirs are in section 2.3 and table 2.
    """

    decoupled: ClassVar[bool] = True

    kind: Literal["AdamW"] = "AdamW"

    def width_share(self, role: str, name: str, shape: tuple[int, ...], multiple: float) -> float:
        """See Transferable. Nothing is said of `epsilon`: it has to be well below gradients."""
        return elementwise_share(role, multiple)
