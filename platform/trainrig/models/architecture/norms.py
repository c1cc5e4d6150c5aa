"""Settings of norms, and of their position in a layer."""

from typing import Annotated, Literal

from pydantic import Field

from trainrig.config import Settings

Epsilon = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class RMSNorm(Settings):
    """Division by the root mean square over channels (Zhang & Sennrich 2019, arXiv:1910.07467)."""

    kind: Literal["RMSNorm"] = "RMSNorm"
    # Constant added under the root to avoid division by 0; Llama 2 and 3 have the same.
    epsilon: Epsilon = 1e-5
    # Store the gain as 1 + weight, with initial weights of 0, as Gemma does.
    unit_offset: bool = False


class LayerNorm(Settings):
    """Layer norm: subtract the mean, divide by the standard deviation over channels.

    Source: Ba et al. 2016, arXiv:1607.06450.
    """

    kind: Literal["LayerNorm"] = "LayerNorm"
    epsilon: Epsilon = 1e-5  # constant added under the root to avoid division by 0
    bias: bool = True  # add a learnt bias after the gain


Normalisation = Annotated[RMSNorm | LayerNorm, Field(discriminator="kind")]


class PreNorm(Settings):
    """x + f(norm(x)), as in GPT-2 and Llama (Xiong et al. 2020, arXiv:2002.04745)."""

    kind: Literal["PreNorm"] = "PreNorm"


class PostNorm(Settings):
    """norm(x + f(x)), and no norm after the last layer, as in the first Transformer.

    Source: Vaswani et al. 2017, arXiv:1706.03762.
    """

    kind: Literal["PostNorm"] = "PostNorm"


class SandwichNorm(Settings):
    """x + norm(f(norm(x))), as in Gemma 2 and 3 (arXiv:2408.00118).

    Earlier source: Ding et al. 2021, arXiv:2105.13290.
    """

    kind: Literal["SandwichNorm"] = "SandwichNorm"


class OutputNorm(Settings):
    """x + norm(f(x)), as in OLMo 2 (arXiv:2501.00656, section 3.3.2)."""

    kind: Literal["OutputNorm"] = "OutputNorm"


class ParallelBlock(Settings):
    """x + attention(norm(x)) + feedforward(norm(x)), as in GPT-J and PaLM (arXiv:2204.02311)."""

    kind: Literal["ParallelBlock"] = "ParallelBlock"
    # Use one norm for both parts; GPT-NeoX has two (arXiv:2204.06745).
    shared_norm: bool = True


Block = Annotated[
    PreNorm | PostNorm | SandwichNorm | OutputNorm | ParallelBlock, Field(discriminator="kind")
]
