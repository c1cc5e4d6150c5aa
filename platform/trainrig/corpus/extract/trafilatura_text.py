"""Text by trafilatura, which is imported when first asked for: it takes 0.5 s and 50 MB."""

import logging

from trainrig.corpus.extract.kinds import Trafilatura


def extract(html: str, settings: Trafilatura) -> str:
    """The text of `html`; "" where trafilatura finds none."""
    import trafilatura

    # It says of each page without a text that it has none; the caller counts these.
    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)
    found = trafilatura.extract(
        html,
        favor_precision=settings.favour == "precision",
        favor_recall=settings.favour == "recall",
        include_tables=settings.tables,
        include_comments=settings.comments,
    )
    return str(found or "")
