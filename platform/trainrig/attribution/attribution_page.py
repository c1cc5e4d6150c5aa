"""The HTML page of an attributed text: spans to click, and the documents that each stands in."""

from trainrig.attribution.attributed_text import AttributedText, describe_steps
from trainrig.report.page_rendering import render_page


def render_attribution_page(attributed: AttributedText) -> str:
    """Return the page as HTML."""
    documents = {document.title for span in attributed.spans for document in span.documents}
    hidden = attributed.found - len(attributed.spans)
    warnings = []
    if hidden > 0:
        warnings.append(f"{hidden:,} more spans are not shown; raise --spans to see them.")
    return render_page(
        __name__,
        attributed=attributed,
        segments=attributed.cut_segments(),
        documents=len(documents),
        longest=max((span.tokens for span in attributed.spans), default=0),
        describe=lambda learned: describe_steps(learned, len(learned.steps)),
        warnings=warnings,
        state="done",
    )
