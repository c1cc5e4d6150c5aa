"""Adam with decoupled weight decay (Loshchilov & Hutter 2019, arXiv:1711.05101)."""

from typing import ClassVar, Literal

from trainrig.optim.groups import elementwise_share
from trainrig.optim.moments import TwoMoments


class AdamW(TwoMoments):
    """The AdamW optimizer, with Llama's defaults (Touvron et al. 2023, arXiv:2302.13971).

    Those are in section 2.3 and table 2 of the paper.
    """

    decoupled: ClassVar[bool] = True

    kind: Literal["AdamW"] = "AdamW"

    def width_share(self, role: str, name: str, shape: tuple[int, ...], multiple: float) -> float:
        """Return the factor of the learning rate in a wider model. See `Transferable`.

        `epsilon` is not scaled: it must be well below the size of gradients.
        """
        return elementwise_share(role, multiple)
