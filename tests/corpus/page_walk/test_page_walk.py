"""The walk over a page, compared with a walk over the parser's tree in plain Python."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from resiliparse.parse.html import HTMLTree
from support.visible_text import list_visible_characters

from trainrig.corpus.extract.block_format import extract_lines
from trainrig.corpus.extract.block_scores import cut_tree, replace_raw_text, serialise
from trainrig.corpus.extract.page_blocks import KIND, MARKER, PageBlocks
from trainrig.corpus.page_walk.page_elements import HIDDEN, LANDMARK, WORD_FLAG
from trainrig.corpus.page_walk.page_text import CODE, H1, ITEM, PARAGRAPH, ROW, TERM, TEXT
from trainrig.corpus.page_walk.page_walk import walk_page


def cut(html: str) -> PageBlocks:
    return cut_tree(HTMLTree.parse(html))


def lines(html: str) -> list[str]:
    return extract_lines(cut(html))


TAGS = """
    p div span b a ul ol li table tr td th h1 h2 pre code dl dt dd br hr section nav form label
    select option script style template svg textarea noscript xmp custom-element figure title
    iframe
"""
ATTRIBUTES = (
    "",
    " hidden",
    ' style="display: none"',
    ' style="white-space: pre-wrap"',
    ' class="sr-only"',
    ' class="highlight"',
    ' class="line"',
    " class='a\">b'",
    ' title="a > b"',
    " start=3",
    ' title="a"b"',
    ' value="1""',
)
tag = st.builds(
    lambda name, about, closing: f"</{name}>" if closing else f"<{name}{about}>",
    st.sampled_from(TAGS.split()),
    st.sampled_from(ATTRIBUTES),
    st.booleans(),
)
SIGNS = ("<", "&", "&lt;", "&amp;nbsp;", "&nbsp;", '"', "\n", "\t", "€", "不", "−4 ", "Né à ", "\0")
word = st.sampled_from(
    [*SIGNS, "word ", "two words", "<!-- a <b> -->", '<!-- 5" -->', "]]>", "\x01"]
)


@given(st.lists(tag | word, max_size=40).map("".join))
@example("<p><span>€</span>49 <b>−</b><b>4</b>")
@example("<ul><li>near the body</ul>")
@example("<pre>never closed")
@example("<h1>never closed <div>a</div> b")
@example("<dl><dt>a<dd>b<div>c</div>d</dl>")
@example("<table><tr><td>a<p>b</p>c<td>d<tr><th>e</table>f")
@example('<div class="highlight"><table><tr><td>a<td><pre>b\nc</pre></table>d</div>')
@example("<plaintext>a<p>&amp;")
@example("<svg><title>a</title></svg><xmp>a<b>&amp;</xmp>")
def test_each_visible_character_is_in_exactly_one_block(html: str):
    found = "".join(lines(html))
    expected = list_visible_characters(HTMLTree.parse(html)).replace("\0", "")
    assert re.sub(r"[\x00-\x20\x7f]", "", found) == expected


WORDS = ("alpha ", "beta ", "gamma ", "delta ", "omega ")
# Elements whose content is raw text, foreign elements, and the places where HTML begins in them.
RAW_TAGS = """
    script SCRIPT style STYLE xmp iframe noembed noframes plaintext template textarea TEXTAREA
    select option svg SVG foreignObject desc title math MATH mi mtext mrow semantics annotation-xml
    p div b table td BR br/ input input/ link wbr/
"""
RAW_ATTRIBUTES = (
    "",
    ' ="a="b>"',
    ' a"b="<x>"',
    ' <c="1"',
    ' encoding="text/html"',
    " =",
)
ODD_MARKUP = (
    "<!--",
    "-->",
    "--!>",
    "<!-->",
    "<!--->",
    "<!-- > -->",
    "<!--<script>",
    "<!--<SCRIPT ",
    "<![CDATA[",
    "]]>",
    "<?php if (a ?>",
    "<?x-->",
    '<!doctype "=">',
    "&lt;/style&gt;",
    "&lt;/svg&gt;",
    "&lt;/math&gt;",
    "&lt;/script&gt;",
    "&lt;!--",
    "&lt;script&gt;",
    "</",
    "<",
    '<annotation encoding="application/x-tex">',
    "</annotation>",
    "<b STYLE='DISPLAY: NONE'>alpha </b>",
)
raw_tag = st.builds(
    lambda name, about, closing: f"</{name}>" if closing else f"<{name}{about}>",
    st.sampled_from(RAW_TAGS.split()),
    st.sampled_from(RAW_ATTRIBUTES),
    st.booleans(),
)


@given(
    st.lists(raw_tag | st.sampled_from(ODD_MARKUP) | st.sampled_from(WORDS), max_size=30).map(
        "".join
    )
)
@example("<script><!--<script></script>alpha --></script>beta")
@example("<p>alpha </p><script><!--<script></script>beta")
@example("<table><td>alpha </td></tr><b>beta <script><!--<script>")
@example("<svg><style><style>alpha </style></style>beta </svg>gamma")
@example("<svg><style>&lt;/style&gt;&lt;/svg&gt;alpha </style></svg>beta")
@example("<plaintext>alpha </plaintext>beta <script>gamma")
@example("<math><xmp>alpha &lt;/xmp&gt;beta <mi>gamma </xmp></math>delta")
@example("<math><mtext><math></math>alpha <annotation encoding=application/x-tex>beta ")
@example('<p ="a=">">alpha')
@example('<!doctype "=">alpha')
@example("<title><?php if (a ?></title><select><?php ?></select>alpha")
def test_neither_markup_nor_raw_text_leaks(html: str):
    pattern = "|".join(word.strip() for word in WORDS)
    expected = re.findall(pattern, list_visible_characters(HTMLTree.parse(html)))
    assert re.findall(pattern, "\n".join(lines(html))) == expected


@given(
    st.lists(raw_tag | st.sampled_from(ODD_MARKUP) | st.sampled_from(WORDS), max_size=30).map(
        "".join
    )
)
@example("<template><svg><style>&lt;!--</style></svg></template>alpha")
@example("<template><math><script><!---></script></math></template>alpha")
@example("<script type=math/tex><!--<script></script>alpha")
@example("<math><script type=math/tex>&lt;!--</script></math>alpha")
def test_a_page_has_one_reading_without_its_raw_text(html: str):
    tree = HTMLTree.parse(html)
    replace_raw_text(tree)
    assert not walk_page(serialise(tree), stops=False).ambiguous


FORMULA = "<math><script>&lt;!-- </script></math>"
ANNOTATION = "<annotation encoding='application/x-tex'>" + "x" * 1000 + "</annotation>"


def test_formulas_that_share_an_annotation_do_not_overflow_the_output():
    tree = HTMLTree.parse(f"<p>a</p>{FORMULA * 50}<!-- -->{ANNOTATION}")
    html = serialise(tree)
    for stops in (True, False):
        walked = walk_page(html, stops)
        assert walked.ambiguous
        assert len(walked.text) <= 2 * len(html)
    assert extract_lines(cut_tree(tree)) == ["a"]


@pytest.mark.parametrize("size", range(18))
@pytest.mark.parametrize(
    "ending", [b"<", b"</", b"<sup>1<", b"&", b"&am", b"<p a=", b'<p a="', b"<!-", b"<"]
)
def test_a_page_that_breaks_off_anywhere_is_walked_to_its_end(size: int, ending: bytes):
    html = (b"a" * size + ending)[-size:] if size else b""
    walked = walk_page(html, stops=False)
    assert len(walked.rows) <= 1


@pytest.mark.parametrize(
    "element",
    ["iframe", "noembed", "noframes", "script", "style", "xmp"],
)
def test_a_comment_that_begins_in_raw_text_hides_no_end_of_a_table(element: str):
    table = f"<table><tr><td>a<td>b<{element}><!-- </{element}></table>"
    expected = ["a\tb", "<!--"] if element == "xmp" else ["a\tb"]
    assert lines(table + "<p>c") == [*expected, "c"]


@given(st.lists(tag | word, max_size=40).map("".join))
def test_blocks_have_text_and_only_code_has_several_lines(html: str):
    blocks = cut(html)
    for line, kind in zip(extract_lines(blocks), blocks.numbers[:, KIND], strict=True):
        assert line.strip()
        if kind != CODE:
            assert "\n" not in line
            assert "  " not in line


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ('<select><option value="1"">One</option></select><p>rest</p>', ["rest"]),
        ('<svg><path d="x""></path></svg><p>rest</p>', ["rest"]),
        ('<table><tr><td class="a"">1</td><td>2</td></tr></table>', ["1\t2"]),
        ('<table><tr><td>1<!-- 5" --></td><td>2</td></tr></table>', ["1\t2"]),
        ("<table><tr><td>1<!-- <pre> > <pre> --></td><td>2</td></tr></table>", ["1\t2"]),
        ("<svg><link>x</link>more</svg><p>rest</p>", ["rest"]),
        ("<p>a</p><script>var s='</scripts>leak';</script><p>b</p>", ["a", "b"]),
    ],
)
def test_stray_signs_and_foreign_elements_neither_lose_nor_leak_text(
    html: str, expected: list[str]
):
    assert lines(html) == expected


def test_a_line_end_that_counts_by_style_separates_words():
    style = 'style="white-space:pre-line"'
    assert lines(f"<h2 {style}>foo\nbar</h2>") == ["foo bar"]
    assert lines(f"<table><tr><td {style}>foo\nbar</td><td>c</td></tr></table>") == ["foo bar\tc"]


@pytest.mark.parametrize("row", ["{}<td>17</td><td>Name</td>", "<td>17</td><td>Name</td>{}"])
def test_hidden_cells_are_no_part_of_a_row(row: str):
    blocks = cut(f"<table><tr>{row.format('<td style=display:none>5</td>')}</tr></table>")
    assert extract_lines(blocks) == ["17\tName"]
    assert not blocks.flags[0] & HIDDEN


def kinds(html: str) -> list[tuple[int, str]]:
    blocks = cut(html)
    return list(zip(blocks.numbers[:, KIND].tolist(), extract_lines(blocks), strict=True))


def test_blocks_have_the_kinds_of_their_elements():
    html = """a<p>b</p><h3>c</h3><ul><li>d<p>e</p></ul><dl><dt>f</dt><dd>g</dd></dl>
        <table><tr><th>h<td>i</table><pre>j</pre><div>k<br>l</div>"""
    assert kinds(html) == [
        *((TEXT, "a"), (PARAGRAPH, "b"), (H1 + 2, "c"), (ITEM, "d"), (ITEM, "e"), (TERM, "f")),
        *((TERM + 1, "g"), (ROW, "h\ti"), (CODE, "j"), (TEXT, "k"), (TEXT, "l")),
    ]


def list_numbers(html: str) -> list[int | str]:
    """Return the number, the bullet or nothing in front of each block."""
    blocks = cut(html)
    marks = zip(blocks.numbers[:, MARKER].tolist(), blocks.markers.tolist(), strict=True)
    return [number if marker == 2 else "-" * marker for marker, number in marks]


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("<ol><li>a<li>b</ol>", [1, 2]),
        ("<ol start=7><li>a<li value=3>b<li>c</ol>", [7, 3, 4]),
        ("<ol start=3 reversed><li>a<li>b<li>c</ol>", [3, 2, 1]),
        ("<ol reversed><li>a<ol><li>b</ol><li>c</ol>", [2, 1, 1]),
        ("<ul><li>a<p>b</p><ol><li>c</ol><li><ul><li>d</ul></ul>", ["-", "", 1, "-"]),
        ("<ul><li></li></ul><p>no item</p>", [""]),
    ],
)
def test_items_of_lists_have_bullets_and_numbers(html: str, expected: list[int | str]):
    assert list_numbers(html) == expected


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("<table><tr><td>a<td><p>b</p><p>c</p><tr><td><td>d</table>", ["a\tb c", "\td"]),
        # a cell that holds a table, code or a heading is layout
        ("<table><tr><td>a<td><table><tr><td>b<td>c</table></table>", ["a", "b\tc"]),
        ("<table><tr><td><p>a</p><td><h2>b</h2></table>", ["a", "b"]),
        ("<table><tr><td>" + "long " * 200 + "<td>b</table>", [("long " * 200).strip(), "b"]),
        ("<table><caption>a</caption><tr><th>b<th>c</table>", ["a", "b\tc"]),
        ("<table><tr><td>a<td>b<script>if (a < b) {}</script></table>", ["a\tb"]),
    ],
)
def test_a_row_of_data_is_one_block_and_a_cell_of_layout_has_its_own(
    html: str, expected: list[str]
):
    assert lines(html) == expected


CODE_LINES = ["def f(x):", "    if x < 2:", "", "        return 1", "    return f(x - 1)"]


def escape(line: str) -> str:
    return line.replace("&", "&amp;").replace("<", "&lt;")


def numbered(pattern: str, between: str = "") -> str:
    rows = enumerate(CODE_LINES, start=1)
    return between.join(
        pattern.replace("NUMBER", str(number)).replace("LINE", escape(line))
        for number, line in rows
    )


DISPLAYS = {
    "pre": "<pre>" + numbered("LINE", "\n") + "</pre>",
    "Pygments": '<div class="highlight"><pre><span></span>'
    + numbered('<span class="linenos">NUMBER</span><span class="n">LINE</span>', "\n")
    + "\n</pre></div>",
    "Pygments, table": '<div class="highlight"><table class="highlighttable"><tr>'
    '<td class="linenos">'
    '<div class="linenodiv"><pre>' + numbered("<span>NUMBER</span>", "\n") + "</pre></div></td>"
    '<td class="code"><div><pre>'
    + numbered("LINE", "\n")
    + "\n</pre></div></td></tr></table></div>",
    "Prism of Docusaurus": '<pre class="prism-code"><code>'
    + numbered('<div class="token-line"><span>LINE</span><br></div>')
    + "</code></pre>",
    "Hexo": '<figure class="highlight python"><table><tr><td class="gutter"><pre>'
    + numbered('<span class="line">NUMBER</span><br>')
    + '</pre></td><td class="code"><pre>'
    + numbered('<span class="line">LINE</span><br>')
    + "</pre></td></tr></table></figure>",
    "Rouge of Jekyll": '<figure class="highlight"><pre><code><table class="rouge-table"><tbody><tr>'
    '<td class="gutter gl"><pre class="lineno">'
    + numbered("NUMBER\n")
    + '</pre></td><td class="code"><pre>'
    + numbered("LINE\n")
    + "</pre></td></tr></tbody></table></code></pre></figure>",
    "Chroma of Hugo": '<div class="highlight"><div class="chroma"><table class="lntable"><tr>'
    '<td class="lntd"><pre class="chroma"><code>'
    + numbered('<span class="lnt">NUMBER\n</span>')
    + '</code></pre></td><td class="lntd"><pre class="chroma"><code>'
    + numbered('<span class="line"><span class="cl">LINE\n</span></span>')
    + "</code></pre></td></tr></table></div></div>",
    "GitHub": '<div class="blob-wrapper"><table class="highlight js-file-line-container">'
    + numbered(
        '<tr><td id="LNUMBER" class="blob-num js-line-number" data-line-number="NUMBER"></td>'
        '<td id="LCNUMBER" class="blob-code blob-code-inner js-file-line">LINE</td></tr>'
    )
    + "</table></div>",
    "highlight.js with numbers": '<pre><code class="hljs"><table class="hljs-ln"><tbody>'
    + numbered(
        '<tr><td class="hljs-ln-line hljs-ln-numbers"><div>NUMBER</div></td>'
        '<td class="hljs-ln-line hljs-ln-code">LINE</td></tr>'
    )
    + "</tbody></table></code></pre>",
}


@pytest.mark.parametrize("display", DISPLAYS)
def test_code_keeps_its_lines_and_indentation_without_line_numbers(display: str):
    found = kinds(f"<p>before</p>{DISPLAYS[display]}<p>after</p>")
    assert found[0] == (PARAGRAPH, "before")
    assert found[-1] == (PARAGRAPH, "after")
    assert [kind for kind, _ in found[1:-1]] == [CODE]
    assert found[1][1].split("\n") == CODE_LINES


def test_a_button_to_copy_code_is_no_text():
    assert lines('<div class="highlight"><pre>a</pre><button>Copy</button></div>') == ["a"]
    assert lines("<p>press <button>Save</button> now</p>") == ["press Save now"]


TEX = r"1.5\times 10^{-4}"
MATHML = (
    "<mrow><mn>1.5</mn><mo>×</mo><msup><mn>10</mn><mrow><mo>−</mo><mn>4</mn></mrow></msup></mrow>"
)
ANNOTATED = (
    f"<math><semantics>{MATHML}<annotation encoding='application/x-tex'>{TEX}</annotation>"
    "</semantics></math>"
)


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        (ANNOTATED, TEX),
        (f"<math alttext='{TEX}'>{MATHML}</math>", TEX),
        (f"<math alttext='one and a half'>{MATHML}</math>", "1.5×10^(−4)"),
        (
            f'<span class="katex"><span class="katex-mathml">{ANNOTATED}</span>'
            '<span class="katex-html" aria-hidden="true">1.5×10−4</span></span>',
            TEX,
        ),
        (
            '<span class="katex"><span class="katex-html" aria-hidden="true">1.5×10</span></span>',
            "1.5×10",
        ),
        (
            '<span class="mwe-math-element"><span style="display: none;">'
            + ANNOTATED.replace(TEX, rf"{{\displaystyle {TEX}}}")
            + '</span><img alt="x"></span>',
            TEX,
        ),
        (f'<script type="math/tex">{TEX}</script>', TEX),
        (
            f'<span class="MathJax_Preview">1.5</span><span class="MathJax">1.5×104</span>'
            f'<script type="math/tex">{TEX} % a<b</script>',
            f"{TEX} % a<b",
        ),
        (
            '<mjx-container class="MathJax" jax="SVG"><svg></svg><mjx-assistive-mml>'
            f"<math>{MATHML}</math></mjx-assistive-mml></mjx-container>",
            "1.5×10^(−4)",
        ),
        ("<math><mfrac><mn>2</mn><mi>n</mi></mfrac></math>", "2/n"),
        (
            "<math><mfrac><mrow><mi>a</mi><mo>+</mo><mi>b</mi></mrow><mi>c</mi></mfrac></math>",
            "(a+b)/c",
        ),
        ("<math><msqrt><mn>2</mn><mi>h</mi></msqrt></math>", "√(2h)"),
        ("<math><msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup></math>", "x_i^2"),
        ("10<sup>−4</sup>", "10⁻⁴"),
        ("10<sup>-4</sup>", "10⁻⁴"),
        ("H<sub>2</sub>O, x<sub>10</sub>", "H₂O, x₁₀"),
        ("m<sup>23</sup>", "m²³"),
        ("the 1<sup>st</sup> of May<sup><a>[1]</a></sup>", "the 1st of May[1]"),
    ],
)
def test_formulas_occur_once_in_readable_form(html: str, expected: str):
    assert lines(f"<p>It is {html} all year.</p>") == [f"It is {expected} all year."]


def test_headings_and_terms_lose_the_links_to_themselves():
    assert lines('<h2>a<a href="#a">¶</a></h2>') == ["a"]
    assert lines('<h2><a class="anchor" href="#a"><svg></svg></a>a <a href="#a">#</a></h2>') == [
        "a"
    ]
    assert lines('<dl><dt>f(x)<a class="headerlink" href="#f">¶</a></dt></dl>') == ["f(x)"]
    assert lines('<h2><a class="header-anchor" href="#a">a</a></h2>') == ["a"]
    assert lines("<p>see <a href='#a'>#</a>1</p>") == ["see #1"]


def test_a_heading_with_inner_blocks_is_one_block():
    assert kinds("<h2><div>a</div><span>b</span><br>c</h2>") == [(H1 + 1, "a b c")]


def test_a_block_knows_the_elements_around_it():
    blocks = cut(
        '<nav>a</nav><div class="postComments"><div><p id="x">b</p></div></div>'
        "<main><p>c</p></main>"
        '<div role="complementary">d</div><div style="display:none">e</div>'
    )
    expected = ["navigation", "", "main", "complementary", "hidden"]
    for name, flags in zip(expected, blocks.flags.tolist(), strict=True):
        for other in set(expected) - {""}:
            assert bool(flags & LANDMARK[other]) == (other == name)
    assert [bool(flags & WORD_FLAG["comment"]) for flags in blocks.flags.tolist()] == [
        *(False, True, False, False, False)
    ]
    assert [bool(flags & HIDDEN) for flags in blocks.flags.tolist()] == [False] * 4 + [True]


def test_two_line_breaks_make_a_blank_line():
    assert cut("<div>a<br>b<br><br>c</div>").numbers[:, 10].tolist() == [0, 0, 1]
