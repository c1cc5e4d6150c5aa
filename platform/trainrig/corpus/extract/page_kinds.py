"""Kinds of page, and the marks that software leaves in the pages that it makes, by kind.

Names of hosts are not among the marks.
"""

from typing import Final, Literal, NamedTuple

PageKind = Literal["article", "documentation", "forum", "listing", "product", "other"]


class KindOfPage(NamedTuple):
    """The kind of a page, and the evidence that decided about it."""

    kind: PageKind
    evidence: str  # such as "schema.org qapage", "generator sphinx" or "text: links"


PLAIN_TEXT: Final = KindOfPage("other", "plain text")

# Types of schema.org, in lower case, by which a page declares its kind.
DISCUSSION_TYPES: Final = ("discussionforumposting", "qapage")
# Type of the vocabulary SIOC, in lower case, which Drupal gives topics of forums.
BOARD_POST: Final = "boardpost"
COLLECTION_TYPES: Final = ("collectionpage", "searchresultspage")
MANUAL_TYPES: Final = ("apireference", "techarticle")
ARTICLE_TYPES: Final = (
    "article",
    "newsarticle",
    "blogposting",
    "reportagenewsarticle",
    "analysisnewsarticle",
    "askpublicnewsarticle",
    "backgroundnewsarticle",
    "opinionnewsarticle",
    "reviewnewsarticle",
    "advertisercontentarticle",
    "satiricalarticle",
    "scholarlyarticle",
    "medicalscholarlyarticle",
    "liveblogposting",
    "report",
    "recipe",
    "howto",
)
PRODUCT_TYPES: Final = ("product", "productgroup", "productmodel", "individualproduct")
LIST_TYPES: Final = ("itemlist", "offercatalog")

# Beginnings of words of `<meta name="generator">` that name generators of documentation.
DOCUMENTATION_GENERATORS: Final = (
    "antora",
    "asciidoc",
    "docbook",
    "docusaurus",
    "docutils",
    "doxygen",
    "epydoc",
    "gi-docgen",
    "gitbook",
    "groff",
    "gtk-doc",
    "javadoc",
    "jsdoc",
    "latex2html",
    "makeinfo",
    "mdbook",
    "mkdocs",
    "pdoc",
    "rdoc",
    "rustdoc",
    "scaladoc",
    "sphinx",
    "starlight",
    "texi2any",
    "texi2html",
    "typedoc",
    "vitepress",
    "yard",
)
# The same for software of forums.
FORUM_GENERATORS: Final = (
    "discourse",
    "flarum",
    "fluxbb",
    "invision",
    "mybb",
    "nodebb",
    "phpbb",
    "punbb",
    "simple machines",
    "smf",
    "vbulletin",
    "woltlab",
    "xenforo",
)
# Elements that only generators of documentation write, by generator.
DOCUMENTATION_MARKS: Final = {
    "docusaurus": ".theme-doc-markdown",
    "doxygen": "#doc-content div.contents, link[href$='doxygen.css' i]",
    "gtk-doc": "a[accesskey='p' i] img[src*='left-insensitive' i], table.navigation a[accesskey]",
    "javadoc": "a[name='navbar.top' i], a[id='navbar.top' i], #navbar-top, "
    "a[name='navbar_top' i], body.class-declaration-page",
    "mandoc": "table.head td.head-ltitle",
    "mdbook": "[id^='mdbook-' i], .sidebar-scrollbox ol.chapter",
    "mkdocs": "[id^='mkdocs' i], [data-md-component='container']",
    "rustdoc": "body.rustdoc",
    "sphinx": "#documentation_options, script[src*='documentation_options.js' i], "
    "div.documentwrapper div.bodywrapper",
    "vitepress": ".VPDoc .vp-doc",
}
# Posts of blogs that generators of documentation made.
BLOG_POST: Final = "html.blog-post-page, html.plugin-blog, article.md-post, .ablog-post-title"
# Elements that hold a post of a discussion, by software of forums.
POST_MARKS: Final = {
    "bbpress": ".bbp-topic-content, .bbp-reply-content",
    "discourse": ".topic-body .cooked, .crawler-post",
    "flarum": ".PostStream-item .Post-body",
    "fluxbb": ".blockpost .postmsg, #punviewtopic .postmsg",
    "hyperkitty": ".email .email-body",
    "invision": "[class~='cPost' i]",
    "mybb": "#posts .post_body",
    "nodebb": "[component='post' i]",
    "phpbb": ".post:not(.search) .postprofile, span.postbody, #page-body .post .content",
    "reddit": ".commentarea .thing.comment, shreddit-comment, .Comment[class*=' t1_' i]",
    "smf": "#forumposts .post_wrapper, #forumposts .inner",
    "stack exchange": "[class~='js-post-body' i], #question .post-text",
    "vanilla": ".MessageList .Message",
    "vbulletin": "[id^='post_message_' i]",
    "woltlab": ".wbbPost .messageText, .wbbThreadPostList .message",
    "xenforo": "article[class~='message--post' i], li.message[id^='post-' i] .messageContent",
}
# Class names that content management systems give the body of a page, with the kind of page.
ARTICLE_BODY: Final = ("single-post", "single")
LISTING_BODY: Final = (
    "archive",
    "search-results",
    "catalog-category-view",
    "catalogsearch-result-index",
)
PRODUCT_BODY: Final = ("single-product", "catalog-product-view")

# Elements of shops: prices for machines, and buttons or forms that put a product into the cart.
PRICE: Final = (
    "[itemprop~='price' i], meta[property='product:price:amount' i], "
    "meta[property='og:price:amount' i]"
)
CART: Final = (
    "[class*='add-to-cart' i], [class*='addtocart' i], [class*='add_to_cart' i], "
    "[id*='add-to-cart' i], [id*='addtocart' i], [name='add-to-cart' i], form[action*='/cart' i]"
)
# Elements whose ids number them as posts, "post-12" or "msg_7", but not the entries of a blog.
NUMBERED_POST: Final = (
    ":is([id^='post' i], [id^='msg' i], [id^='message' i], [id^='reply' i], [id^='answer' i])"
    ":not(article):not(.hentry):not(.type-post)"
)
