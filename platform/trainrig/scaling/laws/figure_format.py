"""How figures of laws and plans are written: on the terminal and on pages by the same functions.

A figure that two places round by rules of their own reads as two figures.
"""

from trainrig.scaling.laws.law import Interval

_SCALES = (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3))


def format_count(number: float) -> str:
    """Parameters or tokens to four digits: `3.007B`, `512`."""
    for unit, scale in _SCALES:
        if abs(number) >= scale:
            return f"{number / scale:.4g}{unit}"
    return f"{number:.4g}"


def format_usd(amount: float) -> str:
    """US dollars to the cent, below a cent to two digits: `9,999.92`, `0.13`, `0.0042`."""
    return f"{amount:,.2f}" if amount >= 0.01 or amount == 0 else f"{amount:.2g}"


def format_loss(nats: float) -> str:
    """A loss, or a difference of losses, in nats per token: `2.2361`."""
    return f"{nats:.4f}"


def format_flops(number: float) -> str:
    """Operations: `2.070e+21`."""
    return f"{number:.3e}"


def format_four_digits(number: float) -> str:
    """Hours, days, kWh: `181.7`, `1,831`."""
    return f"{number:,.4g}"


def format_interval(found: Interval | None) -> str:
    """`[0.48, 0.55]`; `–` where there is none; an open end is said."""
    return "–" if found is None else str(found)
