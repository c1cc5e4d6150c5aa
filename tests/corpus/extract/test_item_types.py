"""Types of the main items of a page, in the three notations of schema.org."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from resiliparse.parse.html import HTMLTree

from trainrig.corpus.extract.page_kind_evidence import count_item_types


def count_types(body: str) -> Counter[str]:
    html = f"<html><body>{body}</body></html>"
    return count_item_types(HTMLTree.parse(html), html)


def write_linked_data(data: object) -> str:
    return f'<script type="application/ld+json">{json.dumps(data)}</script>'


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (write_linked_data({"@type": "Article"}), {"article": 1}),
        (write_linked_data([{"@type": ["WebPage", "FAQPage"]}]), {"webpage": 1, "faqpage": 1}),
        (write_linked_data({"@graph": [{"@type": "A"}, {"@type": "A"}]}), {"a": 2}),
        (
            write_linked_data(
                {"@type": "A", "mainEntity": {"@type": "B", "author": {"@type": "C"}}}
            ),
            {"a": 1, "b": 1},
        ),
        (write_linked_data({"@type": 7}), {}),
        (write_linked_data("@type"), {}),
        ('<p itemscope itemtype="http://schema.org/Recipe/">', {"recipe": 1}),
        (
            '<p itemscope itemtype="https://schema.org/Article http://x.example/a#B">',
            {"article": 1, "b": 1},
        ),
        (
            '<p itemtype="http://schema.org/A"><b itemprop="author" itemtype="http://schema.org/B">',
            {"a": 1},
        ),
        ('<p itemprop="mainEntity" itemtype="http://schema.org/B">', {"b": 1}),
        ('<p typeof="schema:Article"><b property="author" typeof="Person">', {"article": 1}),
        ('<p typeof="sioc:Item foaf:Document">', {"item": 1, "document": 1}),
        ("<p>'@type': 'Article'</p>", {}),
    ],
)
def test_main_items_are_counted_by_type(body: str, expected: dict[str, int]) -> None:
    assert count_types(body) == Counter(expected)


names = st.sampled_from(["@type", "@graph", "mainEntity", "author"])
linked_data = st.recursive(
    st.sampled_from(["Article", "Product", None, 3]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=20,
)


def list_types(data: object) -> list[str]:
    """Return the types of main items, for at most one level of nesting in each property."""
    if isinstance(data, list):
        return [name for item in data for name in list_types(item)]
    if not isinstance(data, dict):
        return []
    stated = data.get("@type")
    here = stated if isinstance(stated, list) else [stated]
    types = [name.lower() for name in here if isinstance(name, str)]
    return types + list_types([data.get("@graph"), data.get("mainEntity")])


def count_nested(data: object) -> int:
    if isinstance(data, list):
        return max(map(count_nested, data), default=0)
    if isinstance(data, dict):
        return 1 + max(map(count_nested, data.values()), default=0)
    return 0


@given(linked_data.filter(lambda data: count_nested(data) <= 5))
def test_any_linked_data_is_read_as_a_plain_walk_reads_it(data: object) -> None:
    assert count_types(write_linked_data(data)) == Counter(list_types(data))
