import json
import re
from html import escape

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from resiliparse.parse.html import HTMLTree

from trainrig.corpus.extract import Extracted, MainContent, NotExtracted, Trafilatura, extract
from trainrig.corpus.extract.block_scores import ScoredBlocks, cut_tree
from trainrig.corpus.extract.main_content import (
    compute_extracted_share,
    favour_posts,
    find_posts,
    is_forum,
    keep_insets,
    remove_thumbnails,
)
from trainrig.corpus.read import RawPage

SENTENCES = (
    "The mill stands by the river, and its wheel has turned there for two hundred years.",
    "In the spring of that year the flood carried the bridge away, and nobody could cross.",
    "The miller's daughter kept the books, which are now in the archive of the town.",
    "What they tell of the price of bread has been used by three historians since.",
    "Today the building houses a small museum, open on Sundays from May to October.",
    "Visitors may see the stones at work, and take a bag of flour home with them.",
)
BODY = "".join(f"<p>{sentence} {sentence.replace('The', 'That')}</p>\n" for sentence in SENTENCES)
FURNITURE = """
<p><a href="/share">Share on Facebook</a> <a href="/tweet">Tweet this</a></p>
<p>Subscribe to our newsletter</p><h3>Related articles</h3>
<ul><li><a href="/1">Ten bridges you must see</a></li><li><a href="/2">More stories</a></li></ul>
"""
ARTICLE = f"""<html lang="en"><head><title>The old mill - The Herald</title></head><body>
<div class="wrap"><article><h1>The old mill</h1>{BODY}{FURNITURE}</article></div></body></html>"""


def extract_text(html: str, **settings: str) -> str:
    found = extract(RawPage("", "text/html", html.encode(), "", None), MainContent(**settings))
    assert isinstance(found, Extracted)
    return found.text


@pytest.mark.parametrize("quality", ["balanced", "precise"])
def test_an_article_keeps_its_sentences_and_loses_boilerplate(quality: str):
    text = extract_text(ARTICLE, quality=quality)
    for sentence in SENTENCES:
        assert sentence in text
    for unwanted in ("Ten bridges", "More stories"):
        assert unwanted not in text


@pytest.mark.parametrize("start", ["<form id=aspnetForm>", "<div id=app style='display:none'>"])
def test_a_page_that_is_one_form_or_hidden_until_a_script_runs_keeps_its_text(start: str):
    name = start[1:].split(" ")[0]
    html = f"<p>Loading</p>{start}<div>{BODY}</div></{name}>"
    assert SENTENCES[0] in extract_text(html, quality="fast")
    blocks = cut_tree(HTMLTree.parse(html))
    share = compute_extracted_share(blocks, np.zeros(len(blocks.numbers), np.bool_))
    assert share == 0


def test_fast_drops_what_the_structure_calls_furniture_and_nothing_else():
    html = ARTICLE.replace("</article>", "</article><nav>Home</nav><footer>Imprint</footer>")
    text = extract_text(html.replace("<h1>", "<header><h1>", 1), quality="fast")
    assert SENTENCES[0] in text
    assert "newsletter" in text
    assert text.startswith("The old mill")
    for unwanted in ("Home", "Imprint"):
        assert unwanted not in text


def test_paragraphs_are_parted_by_a_blank_line():
    assert f"{SENTENCES[0]} That mill" in extract_text(ARTICLE)
    assert re.search(rf"\n\n{re.escape(SENTENCES[1])}", extract_text(ARTICLE))


def extract_all_blocks(html: str, *, bullets: bool = True) -> str:
    """Return the text with every block of the page kept."""
    blocks = cut_tree(HTMLTree.parse(html))
    judged = ScoredBlocks(blocks, np.ones(len(blocks.numbers), np.int32))
    return judged.format_text(bullets)


def test_lists_have_bullets_unless_disabled():
    html = "<p>Two:<ul><li>one</li><li>two <ul><li>and a half</li></ul></li></ul>"
    assert extract_all_blocks(html) == "Two:\n\n- one\n- two\n\n  - and a half"
    assert extract_all_blocks(html, bullets=False) == "Two:\n\none\ntwo\n\nand a half"


def test_code_keeps_its_lines_and_indentation():
    code = "def f(x):\n    if x &lt; 2:\n        return 1\n    return f(x - 1)\n"
    html = ARTICLE.replace(BODY, f"{BODY}<pre>{code}</pre>{BODY}")
    assert "def f(x):\n    if x < 2:\n        return 1\n" in extract_text(html)


def test_an_article_in_a_sidebar_is_found():
    hidden = ARTICLE.replace("<article>", '<div class="sidebar">').replace("</article>", "</div>")
    assert SENTENCES[0] in extract_text(hidden)


def test_the_share_counts_what_is_displayed_outside_furniture():
    blocks = cut_tree(
        HTMLTree.parse("<nav>12345</nav><p>123456</p><p>12</p><aside>1</aside><p hidden>1</p>")
    )
    assert compute_extracted_share(blocks, np.array([1, 1, 0, 0, 0], np.bool_)) == 0.75
    assert compute_extracted_share(blocks, np.ones(5, np.bool_)) == 1.0
    nothing = cut_tree(HTMLTree.parse("<nav>12345</nav>"))
    assert compute_extracted_share(nothing, np.ones(1, np.bool_)) is None


def test_trafilatura_is_an_extractor_too():
    page = RawPage("", "text/html", ARTICLE.encode(), "", None)
    found = extract(page, Trafilatura())
    assert isinstance(found, Extracted)
    assert SENTENCES[0] in found.text
    assert extract(RawPage("", "text/html", b"<p>", "", None), Trafilatura()) == NotExtracted(
        "empty"
    )


CAPTIONS = (
    "The wheel of the old mill in the winter of 1913, seen from the bridge.",
    "The miller and his two sons stand in front of the store with their horses.",
)
SLIDES = "".join(f'<div><img alt="{caption}"><div>{caption}</div></div>' for caption in CAPTIONS)
THUMBNAILS = "".join(f'<li><a href="#"><span>{caption}</span></a></li>' for caption in CAPTIONS)


@pytest.mark.parametrize(
    "gallery", [f"{SLIDES}<ul>{THUMBNAILS}</ul>", f"<ul>{THUMBNAILS}</ul>{SLIDES}"]
)
def test_captions_of_a_gallery_occur_once(gallery: str):
    blocks = cut_tree(HTMLTree.parse(ARTICLE.replace(BODY, BODY + gallery + BODY)))
    everything = ScoredBlocks(blocks, np.ones(len(blocks.numbers), np.int32))
    assert [everything.format_text(True).count(caption) for caption in CAPTIONS] == [2, 2]
    text = remove_thumbnails(everything).format_text(True)
    assert [text.count(caption) for caption in CAPTIONS] == [1, 1]


@pytest.mark.parametrize("quality", ["balanced", "precise"])
def test_a_caption_that_repeats_its_heading_occurs_once(quality: str):
    slides = "".join(f"<div><h1>{caption}</h1><div>{caption}</div></div>" for caption in CAPTIONS)
    text = extract_text(ARTICLE.replace(BODY, BODY + slides + BODY), quality=quality)
    assert [text.count(caption) for caption in CAPTIONS] == [1, 1]


def test_lines_of_text_may_repeat_each_other():
    refrain = "<p>And the wheel goes round and round until the morning comes.</p>"
    html = ARTICLE.replace("<p>In the", f"{refrain}<p>In the").replace(
        "<p>What", f"{refrain}<p>What"
    )
    assert extract_text(html).count("until the morning comes") == 2


tags = [
    "<p>",
    "</p>",
    "<pre>",
    "</pre>",
    "<ul>",
    "<li>",
    "</ul>",
    "<a>",
    "</a>",
    "<h2>",
    "<td>",
    "<br>",
]
signs = [
    "<",
    "&",
    "&lt;",
    "&amp",
    '"',
    "\n",
    "\t",
    "Né à Ζεύς. ",
    "19:45 1999 ",
    "日本語。",
    "…",
    "\0",
]
pieces = st.sampled_from([*tags, *signs, "<a href='>'>"])


@given(st.lists(pieces, max_size=60).map("".join))
@example("<pre>never closed")
@example("<p>text <a href='never closed")
def test_any_html_at_all_has_a_text_at_every_quality(html: str):
    body = html.encode()
    for quality in ("fast", "balanced"):
        page = RawPage("", "text/html", body, "", None)
        once = extract(page, MainContent(quality=quality))
        assert once == extract(page, MainContent(quality=quality))


@given(st.text(st.characters(categories=("L", "N", "P", "Z")), max_size=200))
def test_blocks_hold_all_words_of_a_page(text: str):
    assert extract_all_blocks(f"<body><pre>{escape(text)}").split() == text.split()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace trafilatura and return the modes it is called with; it would keep every sentence."""
    favours = []

    def other(_: str, settings: Trafilatura) -> str:
        favours.append(settings.favour)
        return "\n".join(SENTENCES)

    monkeypatch.setattr("trainrig.corpus.extract.extractors.extract_with_trafilatura", other)
    return favours


def test_only_precise_uses_trafilatura_and_only_for_uncertain_pages(
    monkeypatch: pytest.MonkeyPatch, asked: list[str]
):
    monkeypatch.setattr("trainrig.corpus.extract.main_content.UNSURE", 10**9)
    extract_text(ARTICLE)
    assert asked == []
    extract_text(ARTICLE, quality="precise")
    assert asked[:1] == ["precision"]
    asked.clear()
    monkeypatch.setattr("trainrig.corpus.extract.main_content.UNSURE", 0)
    assert extract_text(ARTICLE, quality="precise") == extract_text(ARTICLE)
    assert asked == []


def test_precise_does_not_use_trafilatura_for_a_page_with_too_many_tags(
    monkeypatch: pytest.MonkeyPatch, asked: list[str]
):
    monkeypatch.setattr("trainrig.corpus.extract.main_content.UNSURE", 10**9)
    monkeypatch.setattr("trainrig.corpus.extract.main_content.TRAFILATURA_NODES", 10)
    assert extract_text(ARTICLE, quality="precise") == extract_text(ARTICLE)
    assert asked == []


SETTINGS_PAGE = """<html><head><meta name="generator" content="Docutils 0.22"></head><body>
<div class="body" role="main"><h1>Settings</h1><dl><dt>gate.open</dt><dd>int</dd></dl><ul><li>port
</li></ul><nav>On this page</nav></div><div class="sphinxsidebar" role="navigation">Previous</div>
<p>Outside</p></body></html>"""


@pytest.mark.parametrize("quality", ["balanced", "precise"])
def test_generated_documentation_keeps_its_main_part(quality: str):
    assert extract_text(SETTINGS_PAGE, quality=quality) == "Settings\n\ngate.open\nint\n\n- port"


def test_posts_of_a_forum_are_favoured_over_what_is_around_them():
    post = '<div class="post"><div class="author">miller</div><div class="postbody">{}</div></div>'
    posts = "".join(post.format(sentence) for sentence in SENTENCES)
    html = (
        f'<html><body id="phpbb"><nav>Board index</nav>{posts}<footer>phpBB</footer></body></html>'
    )
    text = extract_text(html)
    assert all(sentence in text for sentence in SENTENCES)
    blocks = cut_tree(HTMLTree.parse(html))
    judged = ScoredBlocks(blocks, np.zeros(len(blocks.numbers), np.int32))
    assert favour_posts(judged, find_posts(blocks)).format_text(True).split("\n") == list(SENTENCES)
    assert is_forum(html)
    assert not is_forum(ARTICLE)


def test_a_page_without_text_of_its_own_gives_the_article_in_its_json_ld():
    data = json.dumps({"@type": "NewsArticle", "articleBody": "\n\n".join(SENTENCES)})
    html = f'<script type="application/ld+json">{data}</script><nav>Home</nav><div id="app"></div>'
    assert extract_text(html) == "\n\n".join(SENTENCES)
    assert "articleBody" not in extract_text(ARTICLE.replace("<article>", f"<article>{html}"))
    assert SENTENCES[0] in extract_text(ARTICLE.replace("</article>", f"</article>{html}"))


def test_code_and_formulas_between_kept_blocks_are_kept():
    html = "<p>a</p><pre>b</pre><p>$$c$$</p><p>d</p><div><pre>e</pre></div><p>f</p><pre>g</pre>"
    blocks = cut_tree(HTMLTree.parse(html))
    judged = ScoredBlocks(blocks, np.array([1, -1, -1, 1, -1, -1, -1], np.int32))
    assert keep_insets(judged).format_text(True).split() == ["a", "b", "$$c$$", "d"]
    after_text = ScoredBlocks(blocks, np.array([-1, -1, -1, -1, -1, 1, -1], np.int32))
    assert keep_insets(after_text).format_text(True).split() == ["f", "g"]


def test_old_pages_of_sphinx_keep_the_element_of_class_body():
    page = SETTINGS_PAGE.replace(' role="main"', "")
    assert extract_text(page) == "Settings\n\ngate.open\nint\n\n- port"
