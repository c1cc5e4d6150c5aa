"""How activations are kept at one scale, and where in a layer."""

from typing import Annotated, Literal

from pydantic import Field

from trainrig.config import Settings

Epsilon = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class RMSNorm(Settings):
    """Division by the root mean square over channels (Zhang & Sennrich 2019, arXiv:1910.07467)."""

    kind: Literal["RMSNorm"] = "RMSNorm"
    # Number added under the root, against division by 0; Llama 2 and 3 have the same.
    epsilon: Epsilon = 1e-5
    # Whether the gain is 1 + weight, so that fresh weights are 0: Gemma's.
    unit_offset: bool = False


class LayerNorm(Settings):
    """Less the mean, by the standard deviation over channels (Ba et al. 2016, arXiv:1607.06450)."""

    kind: Literal["LayerNorm"] = "LayerNorm"
    epsilon: Epsilon = 1e-5  # number added under the root, against division by 0
    bias: bool = True  # whether a learnt vector is added after the gain


Normalisation = Annotated[RMSNorm | LayerNorm, Field(discriminator="kind")]


class PreNorm(Settings):
    """x + f(norm(x)): GPT-2's and Llama's (Xiong et al. 2020, arXiv:2002.04745)."""

    kind: Literal["PreNorm"] = "PreNorm"


class PostNorm(Settings):
    """norm(x + f(x)), and none after the last layer: the first Transformer's (Vaswani et al. 2017,
    arXiv:1706.03762)."""

    kind: Literal["PostNorm"] = "PostNorm"


class SandwichNorm(Settings):
    """x + norm(f(norm(x))): Gemma 2's and 3's (arXiv:2408.00118; Ding et al. 2021,
    arXiv:2105.13290)."""

    kind: Literal["SandwichNorm"] = "SandwichNorm"


class OutputNorm(Settings):
    """x + norm(f(x)): OLMo 2's (arXiv:2501.00656, section 3.3.2)."""

    kind: Literal["OutputNorm"] = "OutputNorm"


class ParallelBlock(Settings):
    """x + attention(norm(x)) + feedforward(norm(x)): GPT-J's and PaLM's (arXiv:2204.02311)."""

    kind: Literal["ParallelBlock"] = "ParallelBlock"
    # Whether both parts have one norm; GPT-NeoX has two (arXiv:2204.06745).
    shared_norm: bool = True


Block = Annotated[
    PreNorm | PostNorm | SandwichNorm | OutputNorm | ParallelBlock, Field(discriminator="kind")
]
