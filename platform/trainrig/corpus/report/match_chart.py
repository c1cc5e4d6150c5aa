"""Chart of the probability that two texts are compared, by similarity, for a MinHash."""

from functools import partial

from matplotlib.axes import Axes

from trainrig import figures
from trainrig.corpus.signatures.minhash import (
    MinHash,
    compute_match_curve,
)
from trainrig.figures import C1, C2, MUTED
from trainrig.report import Chart, ReportTable, format_percent

_HEIGHT = 200  # CSS pixels


def chart_matches(settings: MinHash) -> Chart:
    """Chart the probability curve with the similarity threshold."""
    similarities, probabilities = compute_match_curve(settings)
    found = format_percent(settings.compute_candidate_probability(settings.threshold), 1)
    steps = slice(0, None, 5)
    return Chart(
        f"{found} of the pairs at the threshold are compared",
        figures.draw(partial(_plot_curve, settings=settings), _HEIGHT),
        label="Probability of comparison against Jaccard similarity, with the threshold.",
        caption=f"Computed from the settings: 1 - (1 - s^{settings.rows})^{settings.bands} for "
        f"{settings.bands} bands of {settings.rows} rows. A compared pair is a duplicate "
        f"only at a Jaccard similarity of {settings.threshold:g} or more.",
        table=ReportTable(
            "Probability that a pair is compared",
            ("Jaccard similarity", "probability"),
            tuple(
                (round(float(similarity), 2), round(float(probability), 4))
                for similarity, probability in zip(
                    similarities[steps], probabilities[steps], strict=True
                )
            ),
        ),
    )


def _plot_curve(ax: Axes, settings: MinHash) -> Axes:
    ax.plot(*compute_match_curve(settings), color=C1, linewidth=2.2)
    ax.axvline(settings.threshold, color=C2, linewidth=1.5)
    ax.annotate(
        f"threshold {settings.threshold:g}",
        (settings.threshold, 0),
        (-4, 4),
        textcoords="offset points",
        ha="right",
        color=MUTED,
        fontsize=11,
    )
    ax.set(
        xlim=(0, 1),
        ylim=(0, 1.02),
        xlabel="Jaccard similarity of two texts",
        ylabel="probability",
    )
    return ax
