import ast

from trainrig.quickstart.site.article import prose_words
from trainrig.quickstart.site.reference_topics import _texts, topic_pages


def test_the_reference_of_this_python_gives_pages_of_prose():
    pages = topic_pages()
    assert len(pages) > 20
    assert all(prose_words(page) >= 120 for page in pages)
    assert len({page.path for page in pages}) == len(pages)
    assert "python/reference/with.html" in {page.path for page in pages}


def test_topics_are_taken_from_the_parsed_source():
    tree = ast.parse("# generated\ntopics = {'if': 'The if statement.'}")
    assert _texts(tree) == {"if": "The if statement."}
    assert _texts(ast.parse("other = 1")) == {}
