"""The kind of a page by hand-written pages of each kind, and what must not change it."""

import json
import random
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from resiliparse.parse.html import HTMLTree

from trainrig.corpus.extract import (
    Extracted,
    MainContent,
    Resiliparse,
    Trafilatura,
    extract,
)
from trainrig.corpus.extract.extractors import HTMLExtractor
from trainrig.corpus.extract.page_kind_evidence import count_item_types
from trainrig.corpus.extract.page_kinds import KindOfPage
from trainrig.corpus.read import RawPage

PROSE = "<p>The keeper of the lock writes the level of the lake into a book each morning.</p>" * 5
LINKS = "<ul>" + '<li><a href="/a">The lock at the lake and its seven gates</a></li>' * 9 + "</ul>"
CELLS = "<table>" + "<tr><td>gate</td><td>12</td><td>open</td></tr>" * 30 + "</table>"
OG = '<meta property="og:type" content="{}">'
GENERATOR = '<meta name="generator" content="{}">'
LINKED_DATA = '<script type="application/ld+json">{}</script>'


def build_html(body: str, head: str = "", body_class: str = "", html_class: str = "") -> str:
    return (
        f'<html class="{html_class}"><head><title>Lock</title>{head}</head>'
        f'<body class="{body_class}">{body}</body></html>'
    )


def find_kind(html: str, extractor: HTMLExtractor | None = None) -> KindOfPage:
    page = RawPage("http://a.example/", "text/html", html.encode(), "", None)
    found = extract(page, extractor or Resiliparse(main_content=False, page_kind=True))
    assert isinstance(found, Extracted)
    assert found.page_kind is not None
    return found.page_kind


def post(attributes: str) -> str:
    return f"<div {attributes}><div>The gate has been stuck since Monday, who can help?</div></div>"


# name: page, kind, evidence
PAGES = {
    "json-ld article": (
        build_html(PROSE, LINKED_DATA.format('{"@type": "NewsArticle"}')),
        ("article", "schema.org newsarticle"),
    ),
    "json-ld graph": (
        build_html(PROSE, LINKED_DATA.format('{"@graph": [{"@type": ["WebPage", "Article"]}]}')),
        ("article", "schema.org article"),
    ),
    "microdata article": (
        build_html(f'<div itemscope itemtype="https://schema.org/BlogPosting">{PROSE}</div>'),
        ("article", "schema.org blogposting"),
    ),
    "several articles": (
        build_html(f'<div itemscope itemtype="http://schema.org/Article">{PROSE}</div>' * 4),
        ("listing", "schema.org several article"),
    ),
    "several articles beside the page's": (
        build_html(
            f'<div itemscope itemtype="http://schema.org/Article">{PROSE}</div>' * 4,
            OG.format("article"),
        ),
        ("article", "schema.org article"),
    ),
    "og article": (build_html(PROSE, OG.format("article")), ("article", "og:type article")),
    "og article without prose": (
        build_html(LINKS, OG.format("article")),
        ("listing", "text: links"),
    ),
    "body of a post": (build_html(PROSE, "", "single-post"), ("article", "body single-post")),
    "prose": (build_html(PROSE), ("article", "text: prose")),
    "review of a product": (
        build_html(PROSE, OG.format("article") + LINKED_DATA.format('{"@type": "Product"}')),
        ("article", "og:type article"),
    ),
    "blog of a generator": (
        build_html(PROSE, GENERATOR.format("Docusaurus v3.1"), "", "plugin-blog"),
        ("article", "generator docusaurus, blog"),
    ),
    "sphinx": (
        build_html(f'<div class="documentwrapper"><div class="bodywrapper">{PROSE}</div></div>'),
        ("documentation", "elements of sphinx"),
    ),
    "settings of old sphinx": (
        build_html(PROSE, "<script>var DOCUMENTATION_OPTIONS = { URL_ROOT: '' };</script>"),
        ("documentation", "settings of sphinx"),
    ),
    "settings of sphinx in an article": (
        build_html(f"{PROSE}<p>Write var DOCUMENTATION_OPTIONS = in a script.</p>"),
        ("article", "text: prose"),
    ),
    "doxygen": (
        build_html(CELLS, GENERATOR.format("Doxygen 1.9.4")),
        ("documentation", "generator doxygen"),
    ),
    "javadoc": (
        build_html(f'<a name="navbar.top"></a>{CELLS}'),
        ("documentation", "elements of javadoc"),
    ),
    "technical article": (
        build_html(PROSE, LINKED_DATA.format('{"@type": "TechArticle"}')),
        ("documentation", "schema.org techarticle"),
    ),
    "index of a manual": (
        build_html(LINKS, GENERATOR.format("mkdocs-1.5")),
        ("listing", "generator mkdocs, links"),
    ),
    "declarations": (
        build_html(
            "<dl>" + "<dt>open_gate(lock, width=None)</dt><dd>Opens a gate.</dd>" * 9 + "</dl>"
        ),
        ("documentation", "text: declarations"),
    ),
    "code": (
        build_html(PROSE + "<pre>gate = lock.open()\nwater.flow(gate)\n</pre>" * 3),
        ("documentation", "text: code"),
    ),
    "code in a dated post": (
        build_html(
            f'<time datetime="2024-03-01">March</time>{PROSE}' + "<pre>gate = lock.open()</pre>" * 3
        ),
        ("article", "text: prose"),
    ),
    "questions and answers": (
        build_html(f'<div itemscope itemtype="https://schema.org/QAPage">{PROSE}</div>'),
        ("forum", "schema.org qapage"),
    ),
    "json-ld discussion": (
        build_html(PROSE, LINKED_DATA.format('[{"@type": "DiscussionForumPosting"}]')),
        ("forum", "schema.org discussionforumposting"),
    ),
    "topic of a forum in RDFa": (
        build_html(f'<div about="/1" typeof="sioc:Post sioct:BoardPost">{PROSE}</div>'),
        ("forum", "sioc boardpost"),
    ),
    "index of a forum": (
        build_html(LINKS, GENERATOR.format("Discourse 3.2")),
        ("listing", "generator discourse"),
    ),
    "article of a forum": (
        build_html(
            PROSE + post('component="post"'), LINKED_DATA.format('{"@type": "BlogPosting"}')
        ),
        ("article", "schema.org blogposting"),
    ),
    "numbered posts": (
        build_html("".join(post(f'id="post-{number}"') for number in range(5))),
        ("forum", "text: numbered posts"),
    ),
    "numbered posts beside more text": (
        build_html(PROSE * 2 + "".join(f'<div id="post-{n}">' for n in range(5)) + PROSE),
        ("article", "text: prose"),
    ),
    "one post in several elements": (
        build_html(f'<div id="post-7"><div id="msg-7"><div id="message_7">{PROSE}'),
        ("article", "text: prose"),
    ),
    "class of posts in a blog": (
        build_html(f'<div class="postbody">{PROSE}</div>', OG.format("article")),
        ("article", "og:type article"),
    ),
    "generator whose name holds another": (
        build_html(PROSE, GENERATOR.format("Shipyard 2.1")),
        ("article", "text: prose"),
    ),
    "entries of a blog": (
        build_html(
            "".join(f'<div id="post-{n}"><h2>Day {n}</h2>{PROSE}</div>' for n in range(5)),
        ),
        ("article", "text: prose"),
    ),
    "collection": (
        build_html(PROSE, LINKED_DATA.format('{"@type": "CollectionPage"}')),
        ("listing", "schema.org collectionpage"),
    ),
    "archive of a blog": (build_html(PROSE, "", "archive date"), ("listing", "body archive")),
    "links": (build_html(LINKS), ("listing", "text: links")),
    "teasers among links": (
        build_html(LINKS + "<p>The keeper of the lock writes the level of the lake each day.</p>"),
        ("listing", "text: links"),
    ),
    "article among links": (build_html(LINKS + PROSE), ("article", "text: prose")),
    "article among many links": (build_html(LINKS * 15 + PROSE), ("listing", "text: links")),
    "json-ld product": (
        build_html(PROSE, LINKED_DATA.format('{"@type": "Product", "offers": {}}')),
        ("product", "schema.org product"),
    ),
    "several products": (
        build_html(f'<div itemscope itemtype="http://schema.org/Product">{PROSE}</div>' * 5),
        ("listing", "schema.org several product"),
    ),
    "product beside others": (
        build_html(
            f'<div itemscope itemtype="http://schema.org/Product">{PROSE}</div>' * 5,
            OG.format("og:product"),
        ),
        ("product", "schema.org product"),
    ),
    "og product": (build_html(PROSE, OG.format("product.item")), ("product", "og:type product")),
    "body of a shop": (build_html(PROSE, "", "single-product"), ("product", "body single-product")),
    "price and cart": (
        build_html(
            f'{PROSE}<span itemprop="price">9</span><button class="btn Add-To-Cart">Buy</button>'
        ),
        ("product", "price and cart"),
    ),
    "price alone": (
        build_html(f'{PROSE}<span itemprop="price">9</span>'),
        ("article", "text: prose"),
    ),
    "two readings": (  # of the page when it is serialised
        build_html(f"{PROSE}<svg><style><p>Gate</p></style></svg><template><p>x</template>"),
        ("article", "text: prose"),
    ),
    "table": (build_html(CELLS), ("other", "text: neither prose nor links")),
    "little text": (build_html("<p>The gate is shut.</p>"), ("other", "text: little")),
}

POSTS = {
    "discourse": '<div class="topic-body"><div class="cooked">{}</div></div>',
    "flarum": '<div class="PostStream-item"><div class="Post-body">{}</div></div>',
    "fluxbb": '<div class="blockpost"><div class="postmsg">{}</div></div>',
    "invision": '<article class="cPost ipsBox">{}</article>',
    "mybb": '<div id="posts"><div class="post_body">{}</div></div>',
    "nodebb": '<div component="post">{}</div>',
    "phpbb": '<div class="post"><dl class="postprofile"></dl><div class="postbody">{}</div></div>',
    "reddit": "<shreddit-comment>{}</shreddit-comment>",
    "smf": '<div id="forumposts"><div class="post_wrapper">{}</div></div>',
    "stack exchange": '<div class="s-prose js-post-body">{}</div>',
    "vbulletin": '<div id="post_message_12">{}</div>',
    "woltlab": '<div class="wbbPost"><div class="messageText">{}</div></div>',
    "xenforo": '<article class="message message--post">{}</article>',
    "bbpress": '<div class="bbp-reply-content">{}</div>',
}


@pytest.mark.parametrize("name", PAGES)
def test_pages_have_the_kind_that_they_declare_or_show(name: str) -> None:
    html, expected = PAGES[name]
    assert find_kind(html) == expected


@pytest.mark.parametrize("name", POSTS)
def test_posts_of_forum_software_are_recognised(name: str) -> None:
    html = build_html(POSTS[name].format(PROSE), OG.format("article"))
    assert find_kind(html) == ("forum", f"posts of {name}")


def vary_tags(html: str, seed: int) -> str:
    """Return `html` with names of tags and attributes in capitals, and attributes in any order."""
    draw = random.Random(seed)

    def vary(found: re.Match[str]) -> str:
        name, inside = found.groups()
        attributes = re.findall(r'[\w-]+="[^"]*"|[\w-]+', inside)
        draw.shuffle(attributes)
        for number, attribute in enumerate(attributes):
            key, equals, value = attribute.partition("=")
            attributes[number] = draw.choice([key, key.upper()]) + equals + value
        return f"<{' '.join([draw.choice([name, name.upper()]), *attributes])}>"

    return re.sub(r'<([\w-]+)((?: [\w-]+(?:="[^"]*")?)*)>', vary, html)


@given(st.sampled_from(sorted(PAGES)), st.integers(0, 2**32))
def test_order_of_attributes_and_case_of_names_change_no_kind(name: str, seed: int) -> None:
    html, expected = PAGES[name]
    assert find_kind(vary_tags(html, seed)) == expected


@pytest.mark.parametrize(
    "head",
    [
        '<META CONTENT="Article" PROPERTY="OG:Type">',
        '<meta content=" article " name="og:type">',
        '<script TYPE=\'application/LD+JSON\'>{"@type": "https://schema.org/article"}</script>',
        LINKED_DATA.format('{"@type": "WebPage", "mainEntity": {"@type": "schema:Article"}}'),
    ],
)
def test_values_are_compared_without_case(head: str) -> None:
    assert find_kind(build_html(PROSE, head)).kind == "article"
    assert find_kind(build_html(PROSE, head)).evidence != "text: prose"


@pytest.mark.parametrize(
    "head",
    [
        LINKED_DATA.format('{"@type": "WebPage", "mentions": {"@type": "Product"}}'),
        LINKED_DATA.format('{"@type": "Product"'),
        LINKED_DATA.format("[" * 100_000),
        '<!-- <meta property="og:type" content="product"> -->',
        '<meta property="og:title" content="product">',
    ],
)
def test_what_is_no_declaration_of_the_page_is_passed_over(head: str) -> None:
    assert find_kind(build_html(PROSE, head)) == ("article", "text: prose")


def test_host_is_not_looked_at() -> None:
    html = build_html(CELLS).encode()
    for url in ("https://docs.python.org/3/", "https://forum.example/thread/1", ""):
        found = extract(RawPage(url, "text/html", html, "", None), MainContent(page_kind=True))
        assert isinstance(found, Extracted)
        assert found.page_kind == ("other", "text: neither prose nor links")


@pytest.mark.parametrize("kind", [MainContent, Resiliparse, Trafilatura])
@pytest.mark.parametrize(
    "name", ["prose", "declarations", "numbered posts", "og article", "two readings"]
)
def test_finding_the_kind_changes_no_text(kind: type[HTMLExtractor], name: str) -> None:
    html, expected = PAGES[name]
    page = RawPage("http://a.example/", "text/html", html.encode(), "", None)
    with_kind = extract(page, kind(page_kind=True))
    without = extract(page, kind())
    if isinstance(without, Extracted):
        assert isinstance(with_kind, Extracted)
        assert with_kind.page_kind == expected
        assert without.page_kind is None
        assert with_kind.text == without.text
        assert with_kind.date == without.date


def test_plain_text_is_of_no_special_kind() -> None:
    page = RawPage("http://a.example/a.txt", "text/plain", b"The lock of the lake.", "", None)
    found = extract(page, MainContent(page_kind=True))
    assert isinstance(found, Extracted)
    assert found.page_kind == ("other", "plain text")


def test_frames_have_a_kind() -> None:
    html = "<html><frameset><frame src='a'><noframes>Gate</noframes></frameset></html>"
    page = RawPage("http://a.example/", "text/html", html.encode(), "", None)
    found = extract(page, Resiliparse(main_content=False, page_kind=True))
    assert not isinstance(found, Extracted) or found.page_kind is not None


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
