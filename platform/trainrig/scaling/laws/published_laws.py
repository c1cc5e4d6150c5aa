"""Published scaling laws by name.

Their ranges are those that the papers describe, to one digit.

They hold for their authors' tokenizer, data and recipe. Their losses are not comparable with anyone
else's, but the split of compute between size and tokens roughly is. None has bootstrap draws, so
plans made from them have no intervals.

The results depend on digits that the papers round away. Hoffmann et al. print their constants with
two digits: at 1e24 FLOPs the unrounded exponents give 62 tokens per parameter, the printed ones 98.
`hoffmann` has the unrounded constants, from the paper's sources as given by Besiroglu et al.;
`hoffmann-rounded` has the printed ones, for comparison with results that used them.
"""

from dataclasses import dataclass
from math import exp

from trainrig import config
from trainrig.errors import ConfigError
from trainrig.scaling.laws.law import FittedRange, Law, Ranges
from trainrig.scaling.laws.law_forms import DataConstrained, Kaplan, Parametric

_CHINCHILLA = "MassiveText, SentencePiece of 32,000 entries"
# Ranges of the 400 runs of Hoffmann et al.: 70M to 16B parameters, 5B to 500B tokens (their section
# 1).
_CHINCHILLA_RANGES = Ranges(
    parameters=FittedRange(least=70e6, greatest=16.2e9),
    tokens=FittedRange(least=5e9, greatest=500e9),
    flops=FittedRange(least=6e18, greatest=3e21),
    tokens_per_parameter=FittedRange(least=1.0, greatest=2_000.0),
)

LAWS = {
    law.name: law
    for law in (
        Law(
            name="kaplan",
            form=Kaplan(n_c=8.8e13, d_c=5.4e13, alpha_n=0.076, alpha_d=0.095),
            parameters_count="non-embedding",
            tokenizer="WebText2, GPT-2's of 50,257 entries",
            ranges=Ranges(
                parameters=FittedRange(least=768, greatest=1.5e9),
                tokens=FittedRange(least=22e6, greatest=23e9),
                flops=FittedRange(least=1e14, greatest=2e20),
                tokens_per_parameter=FittedRange(least=1.0, greatest=1e6),
            ),
            source="Kaplan et al. 2020, arXiv:2001.08361, equations 1.1, 1.2 and 1.5",
        ),
        Law(
            name="kaplan-joint",
            form=Kaplan(n_c=6.4e13, d_c=1.8e13, alpha_n=0.076, alpha_d=0.103),
            parameters_count="non-embedding",
            tokenizer="WebText2, GPT-2's of 50,257 entries",
            source="Kaplan et al. 2020, arXiv:2001.08361, table 2: L(N, D) fitted at once",
        ),
        Law(
            name="hoffmann",
            form=Parametric(
                E=exp(0.5267228),
                A=exp(6.0073404),
                B=exp(6.0179186),
                alpha=0.33917084,
                beta=0.2849083,
            ),
            parameters_count="total",
            tokenizer=_CHINCHILLA,
            ranges=_CHINCHILLA_RANGES,
            source="Hoffmann et al. 2022, arXiv:2203.15556, approach 3, unrounded",
        ),
        Law(
            name="hoffmann-rounded",
            form=Parametric(E=1.69, A=406.4, B=410.7, alpha=0.34, beta=0.28),
            parameters_count="total",
            tokenizer=_CHINCHILLA,
            ranges=_CHINCHILLA_RANGES,
            source="Hoffmann et al. 2022, arXiv:2203.15556, equation 10, as printed",
        ),
        Law(
            name="besiroglu",
            form=Parametric(E=1.8172, A=482.01, B=2085.43, alpha=0.3478, beta=0.3658),
            parameters_count="total",
            tokenizer=_CHINCHILLA,
            ranges=_CHINCHILLA_RANGES,
            source="Besiroglu et al. 2024, arXiv:2404.10102: Hoffmann's runs fitted again, by "
            "least absolute deviations",
        ),
        Law(
            name="muennighoff",
            form=DataConstrained(
                base=Parametric(E=1.869144, A=520.825, B=1487.716, alpha=0.3526596, beta=0.3526596),
                r_d=15.387756,
                r_n=5.309743,
            ),
            parameters_count="total",
            tokenizer="C4, GPT-2's of 50,257 entries",
            source="Muennighoff et al. 2023, arXiv:2305.16264: repeated tokens",
        ),
    )
}

_WITHOUT_LOSS = {
    "llama3": "Llama 3's rule (D* = 0.29 C^0.53, arXiv:2407.21783, section 3.2.1) has no loss, and "
    "its printed constants give 1e13 tokens where the paper has 1.655e13",
}


def find_published_law(name: str) -> Law:
    """Return the published law `name`.

    Raises ConfigError with the nearest name, or the reason why that law cannot be used.
    """
    if name in _WITHOUT_LOSS:
        raise ConfigError(f"{name}: {_WITHOUT_LOSS[name]}; use one of {', '.join(LAWS)}")
    if name not in LAWS:
        near = config.suggest_choice(name, LAWS)
        raise ConfigError(f"{name}: neither a law.json nor a published law{near}")
    return LAWS[name]


@dataclass(frozen=True)
class Sized:
    """Row of Hoffmann et al.'s tables: compute and tokens for which a size is optimal."""

    parameters: float
    approaches: tuple[tuple[float, float], ...]  # (FLOPs, tokens) for approaches 1, 2 and 3


# Hoffmann et al. 2022, tables 3 and A3. Approach 3 there matches neither the printed nor the
# unrounded constants.
HOFFMANN_SIZES = (
    Sized(400e6, ((1.92e19, 8.0e9), (1.84e19, 7.7e9), (2.21e19, 9.2e9))),
    Sized(1e9, ((1.21e20, 20.2e9), (1.20e20, 20.0e9), (1.62e20, 27.1e9))),
    Sized(10e9, ((1.23e22, 205.1e9), (1.32e22, 219.5e9), (2.46e22, 410.1e9))),
    Sized(67e9, ((5.76e23, 1.5e12), (6.88e23, 1.7e12), (1.71e24, 4.1e12))),
    Sized(175e9, ((3.85e24, 3.7e12), (4.54e24, 4.3e12), (1.26e25, 12.0e12))),
    Sized(280e9, ((9.90e24, 5.9e12), (1.18e25, 7.1e12), (3.52e25, 20.1e12))),
    Sized(520e9, ((3.43e25, 11.0e12), (4.19e25, 13.4e12), (1.36e26, 43.5e12))),
    Sized(1e12, ((1.27e26, 21.2e12), (1.59e26, 26.5e12), (5.65e26, 94.1e12))),
    Sized(10e12, ((1.30e28, 216.2e12), (1.75e28, 292.0e12), (8.55e28, 1425.5e12))),
)
