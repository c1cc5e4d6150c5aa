"""Result of a check as text."""

from collections.abc import Iterator

from trainrig.launch.check.cluster import Checked
from trainrig.launch.check.pools import PoolPrice


def show_checked(checked: Checked) -> Iterator[str]:
    """Yield lines: pools with their hourly cost, quotas, and example values to replace."""
    yield f"{checked.name} ({checked.provider}), from {checked.path}"
    yield from _format_pools(checked)
    if checked.quotas:
        yield "quotas that must be granted:"
        for quota in checked.quotas:
            pools = ", ".join(quota.pools)
            yield f"  {quota.needed:>6,} {quota.unit}  {quota.name}  ({pools})"
    for warning in checked.warnings:
        yield f"warning: {warning}"
    if checked.placeholders:
        yield (
            f"to fill in before `cluster up` ({len(checked.placeholders)} "
            f"{'place' if len(checked.placeholders) == 1 else 'places'}):"
        )
        yield from (f"  {placeholder}" for placeholder in checked.placeholders)


def _format_pools(checked: Checked) -> Iterator[str]:
    yield f"{'pool':<8}{'instance':<18}{'market':<12}{'nodes':<9}{'USD/h each':>11}{'at most':>10}"
    for price in checked.price.prices:
        pool = price.pool
        nodes = "1" if pool.least == pool.most == 1 else f"{pool.least}-{pool.most}"
        yield (
            f"{pool.name:<8}{pool.instance or '?':<18}{pool.market or '?':<12}{nodes:<9}"
            f"{_format_usd(price.usd) + _format_mark(price):>11}{_format_usd(price.usd_most):>10}"
        )
    estimate = checked.price
    idle = _format_usd(estimate.usd_idle)
    most = _format_usd(estimate.usd_most)
    yield f"USD an hour: {idle} when idle, {most} at most"
    if any(price.listed for price in estimate.prices):
        yield "  * list price: spot prices are not in the table (typically 0.3 to 0.5 of it)"


def _format_mark(price: PoolPrice) -> str:
    return "*" if price.listed else ""


def _format_usd(usd: float | None) -> str:
    return "?" if usd is None else f"{usd:,.2f}"
