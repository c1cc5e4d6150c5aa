"""Chapters of the language reference that every Python installation carries for `help()`."""

import ast
import sysconfig
import warnings
from pathlib import Path

from trainrig.quickstart.site.article import Article, count_prose_words, read_docstring

_FEWEST_WORDS = 120  # Minimum words of prose, as for other pages.


def make_topic_pages() -> list[Article]:
    """Return a page for each topic with enough prose, sorted; empty if not installed."""
    file = Path(sysconfig.get_path("stdlib")) / "pydoc_data" / "topics.py"
    if not file.exists():
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(file.read_bytes())
    pages = []
    for name, text in sorted(_find_texts(tree).items()):
        path = f"python/reference/{name.lower()}.html"
        page = Article(path, f"Language reference: {name}", "Reference", read_docstring(text))
        if count_prose_words(page) >= _FEWEST_WORDS:
            pages.append(page)
    return pages


def _find_texts(tree: ast.Module) -> dict[str, str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "topics":
            found = ast.literal_eval(node.value)
            return {str(name): str(text) for name, text in found.items()}
    return {}
