"""Reference documentation in the HTML of its generators.

The generators of the tests were compared with pages of Sphinx 8, javadoc 17 and mkdocs-material
with mkdocstrings.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from trainrig.corpus.extract import Extracted, MainContent, Resiliparse, extract
from trainrig.corpus.extract.extractors import HTMLExtractor
from trainrig.corpus.read import RawPage

NOUNS = ("bucket", "shard", "index", "record", "cursor", "segment", "journal", "lease", "quota")
VERBS = ("open", "read", "write", "append", "flush", "compact", "seek", "truncate", "verify")
TYPES = ("int", "long", "boolean", "String", "byte[]")


@dataclass(frozen=True)
class Method:
    name: str
    parameters: tuple[tuple[str, str], ...]  # type, name
    says: str  # "" for an undocumented method


def make_methods(seed: int, count: int) -> list[Method]:
    draw = random.Random(seed)

    def one(number: int) -> Method:
        some = [(draw.choice(TYPES), draw.choice(NOUNS)) for _ in range(draw.randrange(4))]
        says = f"Moves the {draw.choice(NOUNS)} of this {draw.choice(NOUNS)} until it is closed."
        name = f"{draw.choice(VERBS)}_{draw.choice(NOUNS)}{number}"
        # On every other page, half of the members are undocumented; on the others, all are.
        return Method(name, tuple(some), says if draw.random() < (0.5, 0.0)[seed % 2] else "")

    return [one(number) for number in range(count)]


def render_sphinx(found: list[Method]) -> str:
    """Return `dl.py` in `dl.py`, as autodoc writes it."""

    def sig(method: Method) -> str:
        ems = ", ".join(
            f'<em class="sig-param"><span class="n"><span class="pre">{name}</span></span></em>'
            for _, name in method.parameters
        )
        return (
            f'<dt class="sig sig-object py" id="m.{method.name}"><span class="sig-name descname">'
            f'<span class="pre">{method.name}</span></span><span class="sig-paren">(</span>{ems}'
            f'<span class="sig-paren">)</span><a class="headerlink" href="#m.{method.name}" '
            'title="Link to this definition">¶</a></dt>'
        )

    members = "\n\n".join(
        f'<dl class="py method">\n{sig(entry)}\n<dd>{f"<p>{entry.says}</p>" if entry.says else ""}'
        "</dd></dl>"
        for entry in found
    )
    return f"""<div class="document"><div class="documentwrapper"><div class="bodywrapper">
<div class="body" role="main"><section id="module-store"><h1>store<a class="headerlink" href="#s">¶
</a></h1><p>Classes that keep records on disk.</p><dl class="py class">
<dt class="sig sig-object py" id="store.Shelf"><span class="property"><span class="pre">class</span>
</span><span class="sig-name descname"><span class="pre">Shelf</span></span></dt>
<dd><p>A file of records.</p>{members}</dd></dl></section></div></div></div>
<div class="sphinxsidebar" role="navigation"><h3>Navigation</h3><ul><li><a href="i">index</a></li>
</ul></div></div>"""


def render_javadoc(found: list[Method]) -> str:
    """Return a summary table of `div`s, then a `section.detail` for each member."""

    def parameters(method: Method) -> str:
        return ",\n ".join(f"{kind}&nbsp;{name}" for kind, name in method.parameters)

    rows = "".join(
        f'<div class="col-first even-row-color"><code>void</code></div>\n'
        f'<div class="col-second even-row-color"><code><a href="#{entry.name}" class='
        f'"member-name-link">{entry.name}</a><wbr>({parameters(entry)})</code></div>\n'
        f'<div class="col-last even-row-color"><div class="block">{entry.says or "&nbsp;"}</div>'
        "</div>\n"
        for entry in found
    )
    details = "".join(
        f'<li><section class="detail" id="{entry.name}()">\n<h3>{entry.name}</h3>\n'
        '<div class="member-signature"><span class="modifiers">public</span>&nbsp;<span class='
        f'"return-type">void</span>&nbsp;<span class="element-name">{entry.name}</span><wbr>'
        f'<span class="parameters">({parameters(entry)})</span> <span class="exceptions">throws '
        f'<a href="e" class="external-link">IOException</a></span></div>\n'
        f'<div class="block">{entry.says}</div><dl class="notes"><dt>Throws:</dt><dd><code>'
        "IOException</code> - if the file cannot be read</dd></dl></section></li>\n"
        for entry in found
    )
    return f"""<div class="flex-box"><header role="banner" class="flex-header"><nav role=
"navigation"><ul class="nav-list"><li><a href="p">Package</a></li></ul></nav></header>
<div class="flex-content"><main role="main"><div class="header"><h1 class="title">Class Shelf</h1>
</div><section class="class-description"><hr><div class="type-signature"><span class="modifiers">
public class </span>Shelf</div><div class="block">A file of records.</div></section>
<section class="summary"><ul class="summary-list"><li><section class="method-summary">
<h2>Method Summary</h2><div class="summary-table three-column-summary">{rows}</div></section></li>
</ul></section><section class="details"><ul class="details-list"><li><section class=
"method-details"><h2>Method Details</h2><ul class="member-list">{details}</ul></section></li></ul>
</section></main></div></div>"""


def render_mkdocs(found: list[Method]) -> str:
    """Return `div.doc-object` elements with heading and signature, in mkdocs-material's article."""
    objects = "".join(
        f'<div class="doc doc-object doc-function">\n<h3 id="{item.name}" class="doc doc-heading">'
        f'<code class="highlight language-python"><span class="n">{item.name}</span>'
        f'<span class="p">(</span>{", ".join(name for _, name in item.parameters)}'
        f'<span class="p">)</span></code></h3>\n'
        f'<div class="doc doc-contents ">{f"<p>{item.says}</p>" if item.says else ""}</div></div>\n'
        for item in found
    )
    return f"""<header class="md-header"><nav class="md-header__inner"><a href="." title="Study">
Study</a></nav></header><div class="md-container"><main class="md-main"><div class="md-main__inner">
<div class="md-sidebar"><nav class="md-nav"><ul><li><a href="a">Home</a></li></ul></nav></div>
<div class="md-content"><article class="md-content__inner md-typeset"><h1>store</h1>
<div class="doc doc-object doc-module"><div class="doc doc-contents first"><p>A file of records.</p>
<div class="doc doc-children">{objects}</div></div></div></article></div></div></main></div>"""


def extract_text(html: str, settings: HTMLExtractor) -> str:
    page = f'<!DOCTYPE html><html lang="en"><head><title>store</title></head><body>{html}</body>'
    found = extract(RawPage("", "text/html", page.encode(), "", None), settings)
    assert isinstance(found, Extracted)
    return found.text


def list_characters(text: str) -> str:
    return re.sub(r"\W", "", text)


@pytest.mark.parametrize("count", [4, 12, 60])
@pytest.mark.parametrize("generator", [render_sphinx, render_javadoc, render_mkdocs])
def test_nine_tenths_of_a_reference_page_are_kept(
    generator: Callable[[list[Method]], str], count: int
):
    for seed in range(4):
        found = make_methods(seed, count)
        html = generator(found)
        text = extract_text(html, MainContent())
        kept = list_characters(text)
        there = list_characters(extract_text(html, Resiliparse()))
        assert len(kept) >= 0.9 * len(there)
        declared = [
            list_characters(
                entry.name
                + "".join(
                    (kind if generator is render_javadoc else "") + name
                    for kind, name in entry.parameters
                )
            )
            for entry in found
        ]
        assert sum(name in kept for name in declared) >= 0.9 * count
