"""Extraction by trafilatura, imported at first use as that takes 0.5 s and 50 MB."""

import logging

from trainrig.corpus.extract.kinds import Trafilatura


def extract(html: str, settings: Trafilatura) -> str:
    """Extract the text of `html`; return "" if trafilatura finds none."""
    import trafilatura

    # trafilatura logs an error for each page without text; callers count these pages.
    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)
    found = trafilatura.extract(
        html,
        favor_precision=settings.favour == "precision",
        favor_recall=settings.favour == "recall",
        include_tables=settings.tables,
        include_comments=settings.comments,
    )
    return str(found or "")
