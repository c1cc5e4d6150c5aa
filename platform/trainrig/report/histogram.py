"""Histograms written element by element as SVG.

A curation report has two dozen of them, and matplotlib takes about 70 ms for each, which was most
of the time of a small curation.
"""

import math

from trainrig.report.number_formats import format_short
from trainrig.report.plots import WIDTH, Histogram

HEIGHT = 180  # CSS pixels
# edges of the axes
RIGHT = 417.0
TOP = 6.0
BOTTOM = 159.0
SHARE = 2.0  # up to this value the axis is linear; beyond it, logarithmic
MARGIN = 1.05  # length of an axis relative to its largest value
MAX_TICKS = 8
TEXT = "font-size: 11px; fill: var(--muted); text-anchor:"
LINE = "fill: none; stroke: var(--grid); stroke-width: 0.8"


def draw_histogram(histogram: Histogram) -> str:
    """Return `histogram` as SVG markup."""
    bins = histogram.bins
    bounds = histogram.bounds
    edges = [(least, least * 2 if below is None else below) for (least, below), _ in bins]
    furthest = max([most for _, most in edges] + list(bounds))
    scaled = _scale_linear if max(most for _, most in edges) <= SHARE else scale_symlog
    highest = max(number for _, number in bins)
    y_ticks = _choose_round_ticks(highest * MARGIN, whole=True)
    left = 25 + max(_estimate_width(format_short(tick)) for tick in y_ticks)
    x_unit = (RIGHT - left) / (scaled(furthest) * MARGIN)
    y_unit = (BOTTOM - TOP) / (highest * MARGIN)

    def x(value: float) -> float:
        return left + scaled(max(value, 0.0)) * x_unit

    def y(count: float) -> float:
        return BOTTOM - count * y_unit

    linear = scaled is _scale_linear
    parts = [
        _draw_x_tick(x(at), f"{at:g}" if linear else format_short(at))
        for at in _choose_x_ticks(furthest, linear)
    ]
    parts += [_draw_y_tick(left, y(tick), format_short(tick)) for tick in y_ticks]
    parts.append(_draw_y_label(histogram.counted))
    for (least, most), (_, number) in zip(edges, bins, strict=True):
        parts.append(_draw_bar(x(least), x(most), y(number)))
    parts += [_draw_bound(x(bound), format_short(bound)) for bound in bounds]
    parts.append(f'<path d="M {left:.2f} {TOP} V {BOTTOM} H {RIGHT}" style="{LINE}" />')
    body = "\n".join(parts)
    view = f'viewBox="0 0 {WIDTH} {HEIGHT}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {view}>\n{body}\n</svg>'


def scale_symlog(value: float) -> float:
    """Scale linearly below 1 and logarithmically above, as matplotlib's `symlog` (threshold 1)."""
    return value / 0.9 if value <= 1 else 1 / 0.9 + math.log10(value)


def _scale_linear(value: float) -> float:
    return value


def _choose_x_ticks(furthest: float, linear: bool) -> list[float]:
    if linear:
        return _choose_round_ticks(furthest * MARGIN)
    powers = range(math.floor(math.log10(furthest)) + 1)
    return [0.0, *(10.0**power for power in powers[:: math.ceil(len(powers) / MAX_TICKS)])]


def _choose_round_ticks(most: float, whole: bool = False) -> list[float]:
    """Return ticks from 0 to at most `most`, 1, 2 or 5 times a power of ten apart.

    There are at most MAX_TICKS. `whole`: the distance is a whole number.
    """
    size = 10.0 ** math.floor(math.log10(most / MAX_TICKS))
    steps = (factor * size for factor in (1, 2, 5, 10))
    step = next(step for step in steps if most / step < MAX_TICKS)
    if whole:
        step = max(step, 1.0)
    return [round(count * step, 12) for count in range(int(most / step) + 1)]


def _estimate_width(text: str) -> float:
    """Estimate a number's width in DejaVu Sans: points and spaces are half as wide as digits."""
    return sum(3.5 if letter in ".,\u00a0 " else 7.0 for letter in text)


def _draw_x_tick(x: float, label: str) -> str:
    return (
        f'<path d="M {x:.2f} {BOTTOM + 3.5} V {TOP}" style="{LINE}" />'
        f'<text style="{TEXT} middle" x="{x:.2f}" y="174.36">{label}</text>'
    )


def _draw_y_label(text: str) -> str:
    place = f"11.36 {(TOP + BOTTOM) / 2:.2f}"
    turned = f'transform="translate({place}) rotate(-90)"'
    return f'<text style="{TEXT} middle" {turned}>{text}</text>'


def _draw_y_tick(left: float, y: float, label: str) -> str:
    return (
        f'<path d="M {left - 3.5:.2f} {y:.2f} H {RIGHT}" style="{LINE}" />'
        f'<text style="{TEXT} end" x="{left - 7:.2f}" y="{y + 4.18:.2f}">{label}</text>'
    )


def _draw_bar(left: float, right: float, top: float) -> str:
    place = f'x="{left:.2f}" y="{top:.2f}" width="{right - left:.2f}" height="{BOTTOM - top:.2f}"'
    return f'<rect {place} style="fill: var(--c1)" />'


def _draw_bound(x: float, label: str) -> str:
    style = "fill: none; stroke: var(--c2); stroke-width: 1.5"
    return (
        f'<path d="M {x:.2f} {BOTTOM} V {TOP}" style="{style}" />'
        f'<text style="{TEXT} start" x="{x + 3:.2f}" y="17.36">{label}</text>'
    )
