"""Frames that real sites put around an article: headers, menus, side bars, footers, banners.

Five layouts from five ages of the web give the text extractor some work. Their text is boilerplate,
the same on every page.
"""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainrig.quickstart.site.article import Article, render_body

ENGLISH = ("Home", "Contents", "About", "Contact")


@dataclass(frozen=True)
class Link:
    """A link of a menu."""

    title: str
    path: str


@dataclass(frozen=True)
class Frame:
    """Everything on a page except its article.

    Any `layout` number is valid; layouts repeat.
    """

    layout: int
    site: str
    menu: tuple[Link, ...]  # Links to neighbouring pages, for the side bar.
    language: str = "en"
    # Labels of the links home, contents, about and contact.
    labels: tuple[str, str, str, str] = ENGLISH


def render(article: Article, frame: Frame) -> bytes:
    """Render the whole HTML page as UTF-8; the result depends on the arguments alone."""
    layout = _LAYOUTS[frame.layout % len(_LAYOUTS)]
    title = html.escape(article.title)
    lines = [
        "<!DOCTYPE html>",
        f'<html lang="{frame.language}">',
        f'<head><meta charset="utf-8"><title>{title} — {html.escape(frame.site)}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<link rel="stylesheet" href="/static/style.css">',
        "<script>window.settings = {theme: 'auto', search: true};</script></head>",
        layout(f"<h1>{title}</h1>\n{render_body(article)}", article, frame),
        "</html>",
    ]
    # Docstrings may contain lone surrogates, which UTF-8 cannot encode.
    return "\n".join(lines).encode("utf-8", "replace")


def _render_link(link: Link) -> str:
    return f'<a href="/{html.escape(link.path)}">{html.escape(link.title)}</a>'


def _render_items(links: Sequence[Link]) -> str:
    return "".join(f"<li>{_render_link(link)}</li>" for link in links)


def _build_main_menu(frame: Frame) -> tuple[Link, ...]:
    paths = ("index.html", "contents.html", "about.html", "contact.html")
    return tuple(Link(label, path) for label, path in zip(frame.labels, paths, strict=True))


def _render_plain(body: str, article: Article, frame: Frame) -> str:
    """Render a layout of semantic elements, as in a present-day manual."""
    return f"""<body>
<header><a href="/">{html.escape(frame.site)}</a>
<nav><ul>{_render_items(_build_main_menu(frame))}</ul></nav>
<form action="/search" role="search"><input name="q" placeholder="Search"></form></header>
<aside><h2>{html.escape(article.section)}</h2><ul>{_render_items(frame.menu)}</ul></aside>
<main class="page-main"><div class="page-columns"><div class="page-text">
{body}
</div></div></main>
<footer><p>© {html.escape(frame.site)} contributors. All rights reserved.</p>
<ul>{_render_items(_build_main_menu(frame))}</ul></footer>
</body>"""


def _render_manual(body: str, article: Article, frame: Frame) -> str:
    """Render a layout of documentation generators: navigation bars and a side bar."""
    home = Link(frame.labels[0], "index.html")
    first, last = (frame.menu[0], frame.menu[-1]) if frame.menu else (home, home)
    related = f"""<div class="related" role="navigation"><h3>Navigation</h3>
<ul><li class="right">{_render_link(Link("next", last.path))} |</li>
<li class="right">{_render_link(Link("previous", first.path))} |</li>
<li class="nav-item"><a href="/">{html.escape(frame.site)}</a> »</li>
<li class="nav-item">{html.escape(article.section)}</li></ul></div>"""
    return f"""<body>
{related}
<div class="document"><div class="documentwrapper"><div class="bodywrapper">
<div class="body" role="main">
{body}
</div></div></div>
<div class="sphinxsidebar" role="navigation"><div class="sphinxsidebarwrapper">
<h3>{html.escape(frame.labels[1])}</h3><ul>{_render_items(frame.menu)}</ul>
<h3>This Page</h3><ul class="this-page-menu"><li><a href="/bugs.html">Report a Bug</a></li>
<li><a href="/source.html" rel="nofollow">Show Source</a></li></ul></div></div></div>
{related}
<div class="footer">Last updated on the first of the month. Created with a generator.</div>
</body>"""


def _render_divisions(body: str, article: Article, frame: Frame) -> str:
    """Render a layout of divisions with meaningful ids, and a cookie banner."""
    return f"""<body class="page">
<div id="cookie-banner" class="cookie-consent"><p>We use cookies to improve your experience on our
site. By continuing to browse you agree to our use of cookies.</p>
<button>Accept all</button><button>Settings</button></div>
<div id="header" class="site-header"><div class="logo">{html.escape(frame.site)}</div>
<ul class="menu">{_render_items(_build_main_menu(frame))}</ul></div>
<div id="wrapper"><div id="breadcrumbs"><a href="/">{html.escape(frame.labels[0])}</a> ›
{html.escape(article.section)}</div>
<div class="columns"><div id="content" class="content"><div class="text">
{body}
</div></div></div>
<div id="sidebar" class="sidebar widget-area"><h4>{html.escape(frame.labels[1])}</h4>
<ul class="links">{_render_items(frame.menu)}</ul></div></div>
<div id="footer" class="site-footer"><p>Terms of service | Privacy policy | Imprint</p></div>
</body>"""


def _render_tables(body: str, article: Article, frame: Frame) -> str:
    """Render a layout with tables, as in the nineties."""
    bar = " | ".join(map(_render_link, _build_main_menu(frame)))
    return f"""<body bgcolor="#ffffff">
<table width="100%" border="0" class="header"><tr><td><b>{html.escape(frame.site)}</b></td>
<td align="right">{bar}</td></tr></table>
<table width="100%" border="0"><tr>
<td width="160" valign="top" class="navigation"><b>{html.escape(article.section)}</b>
<ul>{_render_items(frame.menu)}</ul></td>
<td valign="top" class="content">
{body}
</td></tr></table>
<hr><center class="footer"><small>{bar}<br>Best viewed at any resolution.</small></center>
</body>"""


def _render_journal(body: str, article: Article, frame: Frame) -> str:
    """Render the layout of a blog post, with share buttons and teasers of other posts."""
    teasers = "".join(f'<div class="teaser">{_render_link(link)}</div>' for link in frame.menu[:4])
    return f"""<body class="single-post">
<header class="masthead"><a class="brand" href="/">{html.escape(frame.site)}</a>
<nav class="navbar"><ul>{_render_items(_build_main_menu(frame))}</ul></nav></header>
<div class="page-wrap"><article class="post"><div class="post-body"><div class="post-text">
{body}
</div></div></article></div>
<section class="share-buttons"><button>Share</button><button>Bookmark</button>
<button>Print</button></section>
<section class="related-posts"><h2>You may also like</h2>{teasers}</section>
<section class="newsletter"><h2>Stay up to date</h2><p>Subscribe to our newsletter and never miss
an update.</p><form action="/subscribe"><input name="address"><button>Subscribe</button></form>
</section>
<footer class="site-footer"><p>Powered by plain files. Theme of the house.</p></footer>
</body>"""


_LAYOUTS: tuple[Callable[[str, Article, Frame], str], ...] = (
    _render_plain,
    _render_manual,
    _render_divisions,
    _render_tables,
    _render_journal,
)
