"""Counter-based random numbers, which depend on their key and position, not on draws before them.

A number is a function of a key (seed, purpose, layer), a position, and for some numbers a global
sample number. Any slice of numbers can be drawn separately, with the same bits on every device, in
NumPy and in torch. There is no state to save or to seed.

The generator is SplitMix64 (Steele, Lea & Flood 2014, "Fast splittable pseudorandom number
generators") as a function of its counter. Keys are hashed to 64 bits, so two streams of 2^30
numbers overlap with a probability of 2^-33.
"""

import functools
import hashlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    Numbers = TypeVar("Numbers", NDArray[Any], Tensor)
else:
    Numbers = TypeVar("Numbers")


def _to_signed(word: int) -> int:
    """Return the int64 with the bits of `word`, which NumPy and torch multiply modulo 2^64."""
    return word - (1 << 64) if word >> 63 else word


_STEP = _to_signed(0x9E3779B97F4A7C15)
_FIRST = _to_signed(0xBF58476D1CE4E5B9)
_SECOND = _to_signed(0x94D049BB133111EB)


@dataclass(frozen=True)
class RandomKey:
    """Key of a stream of random numbers; different keys give independent streams."""

    seed: int
    purpose: str  # a name such as "fresh weights" or "dropout"
    layer: int | str = ""  # number or name of the layer; empty if there is none

    @functools.cached_property
    def stream(self) -> int:
        """The int64 that seeds the stream, a hash of the key."""
        text = f"{self.seed}\n{self.purpose}\n{self.layer}"
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little", signed=True)


def draw_words(key: RandomKey, places: Numbers, samples: Numbers | None = None) -> Numbers:
    """Draw 64 random bits for each of `places`, which are int64 positions from 0, as int64.

    `samples` are global sample numbers in int64 that broadcast against `places`. With them, each
    sample has different numbers.
    """
    stream: Any = key.stream
    if samples is not None:
        stream = _scramble_words(stream + (samples + 1) * _STEP)
    drawn: Numbers = _scramble_words(stream + (places + 1) * _STEP)
    return drawn


def draw_uniforms(key: RandomKey, places: Numbers, samples: Numbers | None = None) -> Numbers:
    """Draw uniform float64 numbers in [0, 1), in steps of 2^-53; see `draw_words`."""
    return _make_uniforms(draw_words(key, places, samples))


def draw_uniforms_of_streams(streams: Numbers, places: Numbers) -> Numbers:
    """Draw the uniform number of each pair of a stream and a place, for many keys at once.

    A stream is `RandomKey.stream`. The numbers equal those of `draw_uniforms`.
    """
    words: Numbers = _scramble_words(streams + (places + 1) * _STEP)
    return _make_uniforms(words)


def _make_uniforms(words: Numbers) -> Numbers:
    """Convert random words to uniform numbers in [0, 1); `words` are changed in place."""
    words >>= 11
    words &= (1 << 53) - 1
    drawn: Numbers = _convert_to_float64(words)
    drawn *= 2.0**-53
    return drawn


def draw_normals(key: RandomKey, places: Numbers, samples: Numbers | None = None) -> Numbers:
    """Draw standard normal float64 numbers by inversion; see `draw_words` for the arguments.

    Only +, -, × and / are used, which IEEE 754 rounds exactly, so that every library and device
    computes the same bits.
    """
    # The midpoints of steps of 2^-52 are never 0 or 1, and are symmetric around 1/2.
    middle: Numbers = (
        _convert_to_float64(_shift_right(draw_words(key, places, samples), 12)) + 0.5
    ) * 2.0**-52
    return normal_quantile(middle)


def normal_quantile(p: Numbers) -> Numbers:
    """Compute the quantile of the standard normal distribution at `p`, float64 in (0, 1).

    The method is PPND16 of Wichura 1988, "Algorithm AS 241", accurate to about 1 part in 10^16.
    """
    library: Any = _find_library(p)
    values: Any = p
    q = values - 0.5
    r = 0.180625 - q * q
    found = q * _evaluate_ratio(r, _CENTRAL)
    outer = abs(q) > 0.425
    tail = values[outer]
    side = q[outer]
    r = _compute_root(-_log(library.where(side < 0, tail, 1.0 - tail)))
    distance = library.where(
        r <= 5.0, _evaluate_ratio(r - 1.6, _TAIL), _evaluate_ratio(r - 5.0, _FAR_TAIL)
    )
    found[outer] = library.where(side < 0, -distance, distance)
    result: Numbers = found
    return result


def _scramble_words(words: Any) -> Any:
    """Apply SplitMix64's output function to each word, in place.

    Dropout draws a word for each activation, so only one temporary array exists at a time.
    """
    words ^= _shift_right(words, 30)
    words *= _FIRST
    words ^= _shift_right(words, 27)
    words *= _SECOND
    words ^= _shift_right(words, 31)
    return words


def _shift_right(words: Any, bits: int) -> Any:
    """Shift `words` right as if they were unsigned."""
    shifted = words >> bits
    shifted &= (1 << (64 - bits)) - 1
    return shifted


def _find_library(numbers: Any) -> Any:
    return np if isinstance(numbers, np.ndarray) else sys.modules["torch"]


def _convert_to_float64(integers: Any) -> Any:
    return integers.astype("f8") if isinstance(integers, np.ndarray) else integers.double()


_LOG_2 = 0.6931471805599453
_ROOT_OF_HALF = 0.7071067811865476
_ODD_TERMS = tuple(1 / n for n in range(1, 23, 2))  # series of atanh; further terms are below 2^-53


def _log(x: Any) -> Any:
    """Compute the natural logarithm, for which the libraries' functions differ in the last bit.

    x = m 2^e with m in [sqrt(1/2), sqrt(2)), and log m = 2 atanh((m - 1) / (m + 1)).
    """
    library = _find_library(x)
    m, e = library.frexp(x)
    small = m < _ROOT_OF_HALF
    m = library.where(small, m * 2.0, m)
    s = (m - 1.0) / (m + 1.0)
    exponent = _convert_to_float64(e) - _convert_to_float64(small)
    return exponent * _LOG_2 + 2.0 * s * _evaluate_polynomial(s * s, _ODD_TERMS)


def _compute_root(x: Any) -> Any:
    """Compute the square root of numbers from 2.5 to 750 by Heron's method.

    On the CPU, torch uses MKL's square root, which is sometimes wrong in the last bit.
    """
    found = 1.0 + 0.25 * x
    for _ in range(8):  # one iteration more than the largest number takes
        found = 0.5 * (found + x / found)
    return found


def _evaluate_ratio(r: Any, coefficients: tuple[tuple[float, ...], tuple[float, ...]]) -> Any:
    above, below = coefficients
    return _evaluate_polynomial(r, above) / _evaluate_polynomial(r, below)


def _evaluate_polynomial(x: Any, coefficients: tuple[float, ...]) -> Any:
    """Evaluate a polynomial by Horner's rule; `coefficients` begin with the constant.

    Each product and sum is rounded separately, without fused multiply-add.
    """
    found = x * coefficients[-1]
    for coefficient in coefficients[-2:0:-1]:
        found = (found + coefficient) * x
    return found + coefficients[0]


# Numerator and denominator of AS 241's three ratios.
_CENTRAL = (
    (
        *(3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3),
        *(1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4),
        *(3.3430575583588128105e4, 2.5090809287301226727e3),
    ),
    (
        *(1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3),
        *(2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4),
        5.2264952788528545610e3,
    ),
)
_TAIL = (
    (
        *(1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0),
        *(3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1),
        *(2.27238449892691845833e-2, 7.74545014278341407640e-4),
    ),
    (
        *(1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1),
        *(1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4),
        1.05075007164441684324e-9,
    ),
)
_FAR_TAIL = (
    (
        *(6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0),
        *(2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3),
        *(2.71155556874348757815e-5, 2.01033439929228813265e-7),
    ),
    (
        *(1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2),
        *(7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7),
        2.04426310338993978564e-15,
    ),
)
