"""Adam (Kingma & Ba 2015, arXiv:1412.6980)."""

from typing import ClassVar, Literal

from trainrig.optim.moments import Decay, Momentum, TwoMoments


class Adam(TwoMoments):
    """The Adam optimizer, with its paper's defaults (algorithm 1)."""

    decoupled: ClassVar[bool] = False

    kind: Literal["Adam"] = "Adam"
    # Decay rates of the averages of the gradient and of its square.
    betas: tuple[Momentum, Momentum] = (0.9, 0.999)
    # L2 penalty: the share of a weight that is added to its gradient, before both averages.
    weight_decay: Decay = 0.0
