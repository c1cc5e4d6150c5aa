"""The text of a page's blocks as plain text and as Markdown, and Markdown read by a parser."""

import numpy as np
import pytest
from resiliparse.parse.html import HTMLTree

from trainrig.corpus.extract import Extracted, MainContent, extract
from trainrig.corpus.extract.block_format import Format, format_blocks
from trainrig.corpus.extract.block_scores import cut_tree
from trainrig.corpus.read import RawPage

PAGE = r"""<h1>The mill</h1><p>Two parts | more:</p><ol start=9><li>wheel<li>stones<ul><li>upper
<li>lower</ul></ol><table><tr><th>Part</th><th>Year</th></tr><tr><td>wheel | rim</td><td>1931</td>
</tr></table><pre>if dry:
    ```stop```</pre><p>The flow is <script type="math/tex">Q = A v</script>:</p>
<math display="block"><annotation encoding="application/x-tex">Q^2</annotation></math><h3>After</h3>
<div>one<br>two</div>"""

TEXT = """The mill

Two parts | more:

9. wheel
10. stones

  - upper
  - lower

Part\tYear
wheel | rim\t1931

if dry:
    ```stop```

The flow is Q = A v:

Q^2

After

one
two"""

MARKDOWN = """# The mill

Two parts | more:

9. wheel
10. stones

    - upper
    - lower

| Part | Year |
| --- | --- |
| wheel \\| rim | 1931 |

````
if dry:
    ```stop```
````

The flow is $Q = A v$:

$$Q^2$$

### After

one

two"""


def format_page(html: str, as_format: Format, *, bullets: bool = True) -> str:
    blocks = cut_tree(HTMLTree.parse(html))
    return format_blocks(blocks, np.ones(len(blocks.numbers), np.bool_), bullets, as_format)


@pytest.mark.parametrize(("as_format", "expected"), [("text", TEXT), ("markdown", MARKDOWN)])
def test_a_page_in_both_formats(as_format: Format, expected: str):
    assert format_page(PAGE, as_format) == expected


def test_without_markers_lists_are_lines():
    html = "<ul><li>one<ol><li>two</ol></ul>"
    for as_format in ("text", "markdown"):
        assert format_page(html, as_format, bullets=False).split() == ["one", "two"]


def test_the_blocks_between_two_kept_ones_leave_a_blank_line():
    blocks = cut_tree(HTMLTree.parse("<div>a</div><div>b</div><p>c</p><div>d</div>"))
    kept = np.array([1, 1, 0, 1], np.bool_)
    assert format_blocks(blocks, kept, True, "text") == "a\nb\n\nd"


def test_markdown_renders_to_the_same_elements():
    markdown_it = pytest.importorskip("markdown_it", reason="the parser of Markdown")
    html = markdown_it.MarkdownIt().enable("table").render(format_page(PAGE, "markdown"))
    for element in ("<h1>The mill", '<ol start="9">', "<li>upper", "<td>wheel | rim", "<h3>After"):
        assert element in html
    assert "    ```stop```" in html
    assert html.count("<table>") == 1


def test_each_of_two_adjacent_tables_has_a_head_and_formulas_keep_their_cell():
    table = "<table><tr><th>a<th>b</tr><tr><td>1<td>{}</tr></table>"
    formula = "<math alttext='|x|+\\alpha'><mi>x</mi></math>"
    written = format_page(table.format("2") + table.format(formula), "markdown")
    head = "| a | b |\n| --- | --- |\n"
    assert written.split("\n\n") == [
        f"{head}| 1 | 2 |",
        f"{head}| 1 | $\\vert x\\vert +\\alpha$ |",
    ]


def test_the_setting_chooses_the_format():
    page = RawPage("", "text/html", b"<h2>Mill</h2><p>" + b"A long sentence. " * 30, "", None)
    found = [
        extract(page, MainContent(quality="fast", format=name)) for name in ("text", "markdown")
    ]
    assert all(isinstance(one, Extracted) for one in found)
    assert [one.text.split("\n")[0] for one in found if isinstance(one, Extracted)] == [
        *("Mill", "## Mill")
    ]
