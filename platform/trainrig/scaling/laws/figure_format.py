"""Formats of the numbers of laws and plans, shared by the terminal and the HTML pages.

Two places that round the same number differently would seem to show two numbers.
"""

from trainrig.scaling.laws.law import Interval

_SCALES = (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3))


def format_count(number: float) -> str:
    """Format a number of parameters or tokens with four digits: `3.007B`, `512`."""
    for unit, scale in _SCALES:
        if abs(number) >= scale:
            return f"{number / scale:.4g}{unit}"
    return f"{number:.4g}"


def format_usd(amount: float) -> str:
    """Format US dollars to the cent, or with two digits below a cent: `9,999.92`, `0.0042`."""
    return f"{amount:,.2f}" if amount >= 0.01 or amount == 0 else f"{amount:.2g}"


def format_loss(nats: float) -> str:
    """Format a loss, or a difference of losses, in nats per token: `2.2361`."""
    return f"{nats:.4f}"


def format_flops(number: float) -> str:
    """Format a number of floating-point operations: `2.070e+21`."""
    return f"{number:.3e}"


def format_four_digits(number: float) -> str:
    """Format hours, days or kWh with four digits: `181.7`, `1,831`."""
    return f"{number:,.4g}"


def format_interval(found: Interval | None) -> str:
    """Format an interval as `[0.48, 0.55]`, naming open ends, or as `–` if there is none."""
    return "–" if found is None else str(found)
