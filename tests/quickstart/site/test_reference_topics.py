import ast

from trainrig.quickstart.site.article import count_prose_words
from trainrig.quickstart.site.stdlib_pages import _find_texts, make_topic_pages


def test_the_reference_of_this_python_gives_pages_of_prose():
    pages = make_topic_pages()
    assert len(pages) > 20
    assert all(count_prose_words(page) >= 120 for page in pages)
    assert len({page.path for page in pages}) == len(pages)
    assert "python/reference/with.html" in {page.path for page in pages}


def test_topics_are_taken_from_the_parsed_source():
    tree = ast.parse("# generated\ntopics = {'if': 'The if statement.'}")
    assert _find_texts(tree) == {"if": "The if statement."}
    assert _find_texts(ast.parse("other = 1")) == {}
