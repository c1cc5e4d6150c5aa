"""Elements of HTML and words of class names, as the numbers that the walk over a page uses.

An element has one code, which says how the walk treats it, and flags that its descendants inherit.
A flag is a bit: first those that change how text is written, then those that only describe where a
block is. Words of `class`, `id` and `role` attributes set flags as well.
"""

import functools
from typing import Final

import numpy as np

from trainrig.corpus.array_types import Int64s
from trainrig.corpus.page_walk.word_hash import build_table

# Codes of elements, in the order of their names in _ELEMENTS.
(
    INLINE,
    BLOCK,
    PARAGRAPH_ELEMENT,
    HEADING,
    LIST,
    ORDERED_LIST,
    LIST_ITEM,
    TERM_ELEMENT,
    DEFINITION_ELEMENT,
    TABLE,
    TABLE_ROW,
    TABLE_CELL,
    TABLE_CAPTION,
    PREFORMATTED,
    LINE_BREAK,
    RULE,
    VOID,
    ANCHOR,
    SUPERSCRIPT,
    SUBSCRIPT,
    MATH_ELEMENT,
    MATH_PAIR,
    MATH_LOW_PAIR,
    MATH_FRACTION,
    MATH_ROOT,
    MATH_SQUARE_ROOT,
    MATH_GROUP,
    HIDDEN_ELEMENT,
    RAW_TEXT,
    SCRIPT,
    VERBATIM,
    BUTTON,
    DOCUMENT,
) = range(33)

_ELEMENTS: Final[dict[int, str]] = {
    BLOCK: """
        address article aside blockquote center details dialog div dl fieldset figcaption figure
        footer form frameset header hgroup legend main nav noscript search section summary tbody
        thead tfoot
    """,
    PARAGRAPH_ELEMENT: "p",
    HEADING: "h1 h2 h3 h4 h5 h6",
    LIST: "ul menu dir",
    ORDERED_LIST: "ol",
    LIST_ITEM: "li",
    TERM_ELEMENT: "dt",
    DEFINITION_ELEMENT: "dd",
    TABLE: "table",
    TABLE_ROW: "tr",
    TABLE_CELL: "td th",
    TABLE_CAPTION: "caption",
    PREFORMATTED: "pre listing",
    LINE_BREAK: "br",
    RULE: "hr",
    VOID: "area base basefont bgsound col embed frame img input keygen link meta param source "
    "track wbr",
    ANCHOR: "a",
    SUPERSCRIPT: "sup",
    SUBSCRIPT: "sub",
    MATH_ELEMENT: "math",
    MATH_PAIR: "msup mover",
    MATH_LOW_PAIR: "msub munder msubsup munderover",
    MATH_FRACTION: "mfrac",
    MATH_ROOT: "mroot",
    MATH_SQUARE_ROOT: "msqrt",
    MATH_GROUP: "mrow",
    HIDDEN_ELEMENT: "head title template svg canvas select datalist textarea object audio video "
    "map annotation annotation-xml mphantom",
    RAW_TEXT: "style iframe noembed noframes",
    SCRIPT: "script",
    VERBATIM: "xmp plaintext",
    BUTTON: "button",
    DOCUMENT: "html body",
}

# Flags that change how text is written.
PRE: Final = 1 << 0  # white space counts
LINK: Final = 1 << 1
LINES: Final = 1 << 2  # a new line ends a block, by style
HIGHLIGHT: Final = 1 << 3  # part of a display of code
MATH: Final = 1 << 4
JOIN: Final = 1 << 5  # inner blocks do not end the block: headings, terms, cells of tables of data
CODE_TABLE: Final = 1 << 6  # a table with a line of code in each row, or with all in one cell
HIDDEN: Final = 1 << 7  # not displayed, by an attribute
FOREIGN: Final = 1 << 61  # a picture or a formula, where the names of HTML mean nothing
FIRST_ANCESTRY: Final = 7  # first bit that describes where a block is

_LANDMARKS: Final = (
    "hidden",
    "navigation",
    "banner",
    "contentinfo",
    "complementary",
    "form",
    "main",
    "article",
    "noscript",
    "figure",
    "caption",
    "quote",
    "control",
    "table",
    "definitions",
    "details",
)
LANDMARK: Final = {name: 1 << (FIRST_ANCESTRY + n) for n, name in enumerate(_LANDMARKS)}
# Furniture by the page's own structure: what `fast` drops, and `extracted_share` does not count.
FURNITURE: Final = (
    LANDMARK["navigation"]
    | LANDMARK["banner"]
    | LANDMARK["contentinfo"]
    | LANDMARK["complementary"]
    | LANDMARK["form"]
)

_FLAGS_OF_ELEMENTS: Final[dict[str, int]] = {
    "nav": LANDMARK["navigation"],
    "menu": LANDMARK["navigation"],
    "header": LANDMARK["banner"],
    "footer": LANDMARK["contentinfo"],
    "aside": LANDMARK["complementary"],
    "form": LANDMARK["form"],
    "fieldset": LANDMARK["form"],
    "main": LANDMARK["main"],
    "article": LANDMARK["article"],
    "noscript": LANDMARK["noscript"],
    "figure": LANDMARK["figure"],
    "figcaption": LANDMARK["caption"],
    "blockquote": LANDMARK["quote"],
    "button": LANDMARK["control"],
    "label": LANDMARK["control"],
    "legend": LANDMARK["control"],
    "table": LANDMARK["table"],
    "caption": LANDMARK["caption"],
    "dl": LANDMARK["definitions"],
    "details": LANDMARK["details"],
    "a": LINK,
    "math": MATH | FOREIGN,
    "svg": FOREIGN,
    "pre": PRE,
    "listing": PRE,
    "xmp": PRE,
    "plaintext": PRE,
}
_FLAGS_OF_ROLES: Final[dict[str, int]] = {
    name: LANDMARK[name]
    for name in (
        "navigation",
        "banner",
        "contentinfo",
        "complementary",
        "form",
        "main",
        "article",
        "figure",
    )
} | {
    "search": LANDMARK["form"],
    "menu": LANDMARK["navigation"],
    "menubar": LANDMARK["navigation"],
    "button": LANDMARK["control"],
    "dialog": LANDMARK["control"],
    "alertdialog": LANDMARK["control"],
}

# Words of class names and ids, by what they say about the text below; one flag for each line.
CLASS_WORDS: Final[dict[str, str]] = {
    "comment": "comment comments commentlist commenters disqus respond kommentare commentaires "
    "comentarios feedback reviews",
    "sidebar": "sidebar side aside rail right secondary sidebars sidenav",
    "menu": "menu menus nav navbar navigation navi navigator topbar toolbar subnav megamenu tabs",
    "related": "related recommended recommendation recommendations similar recirc recirculation "
    "outbrain taboola readmore also relatedposts yarpp jp",
    "share": "share sharing social socials sharedaddy addtoany addthis sharebar follow twitter "
    "facebook sharetools",
    "cookie": "cookie cookies consent gdpr privacy banner notice alert",
    "advert": "ad ads advert advertisement advertising adsense sponsor sponsored promo promotion "
    "promoted commercial anzeige dfp werbung affiliate",
    "foot": "footer foot bottom colophon copyright imprint siteinfo",
    "head": "header head masthead top logo branding site brand",
    "content": "content contents contenu inhalt maincontent",
    "body": "body text articlebody bodytext storybody entry fulltext richtext prose markdown "
    "wysiwyg copy articletext paragraph",
    "main": "main primary page wrapper container",
    "article": "article story hentry single artikel articulo newsarticle",
    "post": "post posts message messages msg reply answer question topic thread forum discussion "
    "postbody postcontent",
    "byline": "author authors byline bio date time timestamp published meta metadata posted "
    "dateline info credits dachzeile",
    "tags": "tag tags category categories cat tagcloud keywords topics labels filed",
    "subscribe": "subscribe subscription newsletter signup register paywall membership donate "
    "donation cta",
    "breadcrumb": "breadcrumb breadcrumbs crumb crumbs",
    "search": "search searchform login signin account user profile avatar username poster",
    "popup": "popup modal overlay lightbox tooltip dropdown dialog toast",
    "widget": "widget widgets module box block sidebox panel plugin",
    "contents": "toc tocs onthispage localtoc toctree outline",
    "pages": "pagination pager paging pages prev next previous navlinks paginator",
    "gallery": "gallery slideshow slider carousel slide thumbnail thumb thumbs thumbnails photo "
    "image images media video player caption wp credit",
    "teaser": "teaser teasers card cards list listing latest recent popular trending more most "
    "feed stream grid items headlines archive",
    "title": "title headline heading lead lede intro summary subtitle standfirst teasertext dek "
    "excerpt abstract description kicker",
    "hidden": "hidden hide invisible sr print noprint offscreen collapsed",
    "signature": "signature sig sticky quote quoted quoteheader blockquote attribution rating "
    "votes vote score reputation badge badges",
    "reference": "reference references footnote footnotes notes citation bibliography sources",
    "code": "code codehilite rouge hljs example admonition warning note tip listingblock",
}
_FIRST_WORD_BIT: Final = FIRST_ANCESTRY + len(_LANDMARKS)
WORD_FLAG: Final = {name: 1 << (_FIRST_WORD_BIT + n) for n, name in enumerate(CLASS_WORDS)}
ANCESTRY_BITS: Final = len(_LANDMARKS) + len(CLASS_WORDS)
LANDMARK_BITS: Final = len(_LANDMARKS)
WORD_BITS: Final = len(CLASS_WORDS)

# Bits of an element's class names, which the walk keeps apart from the flags.
DROPPED_INLINE: Final = 1  # a second rendering of the same text, or for screen readers: no text
DROPPED: Final = 2
GUTTER: Final = 4  # line numbers, if it holds only digits
SYMBOL_LINK: Final = 8  # link of a heading to itself, if it holds only a symbol
CODE_AREA: Final = 16  # sets HIGHLIGHT
SURE_CODE_AREA: Final = 32  # any table in it is a CODE_TABLE
CODE_LINE: Final = 64  # an element that is a line of code, even if it is empty
_CLASS_NAMES: Final[dict[int, str]] = {
    DROPPED_INLINE: "katex-html mathjax mathjax_preview mathjax_svg mathjax_chtml sr-only "
    "visually-hidden visuallyhidden screen-reader-text a11y-hidden mw-editsection mw-cite-backlink",
    DROPPED: "mathjax_display mathjax_svg_display",
    GUTTER: "gutter gl linenos linenodiv lineno line-number line-numbers linenumber linenumbers "
    "lnt ln hljs-ln-numbers blob-num rouge-gutter crayon-nums react-syntax-highlighter-line-number "
    "code-line-number line-numbers-rows",
    SYMBOL_LINK: "headerlink anchorjs-link hash-link header-anchor anchor heading-anchor permalink",
    CODE_AREA: "highlight syntaxhighlighter hljs rouge-table highlighttable lntable codehilite "
    "crayon-table js-file-line-container blob-wrapper mw-highlight sourcecode chroma prism-code "
    "highlight-source dp-highlighter hljs-ln",
    SURE_CODE_AREA: "syntaxhighlighter js-file-line-container blob-wrapper hljs-ln rouge-table "
    "highlighttable lntable crayon-table",
    CODE_LINE: "line token-line code-line blob-code hljs-ln-code view-line cm-line",
}

# Kinds of names, which keep equal names in one table apart, and the columns of that table.
ELEMENT_NAME: Final = np.uint64(0)
WORD_NAME: Final = np.uint64(1)
ROLE_NAME: Final = np.uint64(2)
CLASS_NAME: Final = np.uint64(3)
NAME_VALUE: Final = 1
ELEMENT_FLAGS: Final = 2

_NAME_SLOTS: Final = 4096  # a power of two; about 700 are used


@functools.cache
def build_name_table() -> Int64s:
    """Build the hash table that the walk looks names up in: key, value, and flags of an element.

    The value is the code of an element, the flags of a word of a class name or id, the flags of a
    role, or the bits of a whole class name.
    """
    codes = {name: code for code, names in _ELEMENTS.items() for name in names.split()}
    names: dict[tuple[str, int], tuple[int, int]] = {
        (name, int(ELEMENT_NAME)): (codes.get(name, INLINE), _FLAGS_OF_ELEMENTS.get(name, 0))
        for name in codes | _FLAGS_OF_ELEMENTS
    }
    for group, words in CLASS_WORDS.items():
        for word in words.split():
            flags, _ = names.get((word, int(WORD_NAME)), (0, 0))
            names[word, int(WORD_NAME)] = (flags | WORD_FLAG[group], 0)
    for role, flags in _FLAGS_OF_ROLES.items():
        names[role, int(ROLE_NAME)] = (flags, 0)
    for bit, classes in _CLASS_NAMES.items():
        for name in classes.split():
            bits, _ = names.get((name, int(CLASS_NAME)), (0, 0))
            names[name, int(CLASS_NAME)] = (bits | bit, 0)
    return build_table(names, _NAME_SLOTS)
