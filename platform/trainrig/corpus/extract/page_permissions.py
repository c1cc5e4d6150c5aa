"""What a page allows: the licence that it states, and its refusals of archiving and of AI training.

Only what is written for machines counts: links with `rel="license"`, `<meta>` elements and response
headers. The parsed page decides, so comments, scripts and templates state nothing. `robots.txt`,
`ai.txt` and `/.well-known/tdmrep.json` are files of a site, not of a page, and are not looked at.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, get_args

from resiliparse.parse.html import ElementNode, HTMLTree

# Values of a page's `license`: the terms of Creative Commons, then what else a page may state.
Terms = Literal[
    "by",
    "by-nc",
    "by-nc-nd",
    "by-nc-sa",
    "by-nd",
    "by-sa",
    "nc",
    "nc-nd",
    "nc-sa",
    "nd",
    "sa",
    "cc0",
    "public-domain",
    "other",
    "several",
    "none",
]
NO_LICENSE: Final = "none"
OTHER_LICENSE: Final = "other"
SEVERAL_LICENSES: Final = "several"
_MADE_OF_TERMS: Final = get_args(Terms)[:11]
ROBOTS_REFUSALS: Final = ("noai", "noimageai", "noarchive")


@dataclass(frozen=True)
class PagePermissions:
    """The permissions that a page states."""

    license: str = NO_LICENSE  # one of Terms: "by-sa", "cc0", …
    license_version: str = ""  # "4.0"; "" if not stated, or if several versions are
    license_port: str = ""  # jurisdiction of a ported licence, such as "de"; "" if not ported
    # Creative Commons licences that the page links to without stating one as its own, such as
    # "by-3.0-de by-sa-4.0", sorted.
    licenses_mentioned: str = ""
    refusals: frozenset[str] = frozenset()  # names from ROBOTS_REFUSALS
    tdm_reserved: bool | None = None  # TDM Reservation Protocol; None: not stated
    tdm_policy: str = ""  # URL of the policy, as written


class CreativeCommons(NamedTuple):
    """A licence of Creative Commons, as its URL names it."""

    terms: str  # "by-nc-sa", "cc0" or "public-domain"
    version: str  # "4.0", or ""
    port: str  # "de", "igo", "scotland", or ""


_CREATIVE_COMMONS = re.compile(
    r"\s*(?:(?:https?:)?//)?(?:[a-z0-9-]+\.)?creativecommons\.org(?::\d{1,5})?/+"
    r"(licenses|publicdomain)/+([a-z-]{1,20})(?:/+(\d\.\d))?(?:/+([a-z]{2,10}))?(?=[/?#.\s]|$)",
    re.IGNORECASE,
)
_DOMAIN = "creativecommons.org"
_TERMS = ("by", "nc", "nd", "sa")
_NOT_PORTS = frozenset({"deed", "legalcode", "rdf"})


def parse_creative_commons(url: str) -> CreativeCommons | None:
    """Parse the URL of a licence at creativecommons.org; return None for any other URL.

    The page of a ported licence is `…/3.0/de/`; `…/3.0/deed.de` is the licence that is not ported,
    in German. Retired licences beyond attribution, such as "sampling", give None.
    """
    found = _CREATIVE_COMMONS.match(url)
    if found is None:
        return None
    kind, name, version, port = (part.lower() if part else "" for part in found.groups())
    if port in _NOT_PORTS:
        port = ""
    if kind == "publicdomain":
        terms = {"zero": "cc0", "mark": "public-domain", "certification": "public-domain"}.get(name)
        return CreativeCommons(terms, version, port) if terms else None
    if name == "publicdomain":
        return CreativeCommons("public-domain", version, port)
    # "by-nd-nc" is how version 1.0 writes "by-nc-nd"
    terms = "-".join(sorted(name.split("-"), key=_rank_term))
    return CreativeCommons(terms, version, port) if terms in _MADE_OF_TERMS else None


def _rank_term(term: str) -> int:
    return _TERMS.index(term) if term in _TERMS else len(_TERMS)


def find_permissions(
    tree: HTMLTree | None, html: str, headers: Mapping[str, str]
) -> PagePermissions:
    """Find what a page states in its elements and in the `headers` of its response.

    Args:
        tree: parsed page, or None for plain text, of which only the headers are read.
        html: source of the page.
        headers: values by name, as `RawPage.headers` holds them.
    """
    # The names are rare, and finding them is much faster than a selector is: as bytes, which take a
    # tenth of the time of characters to lower.
    lower = html.encode("utf-8", "surrogatepass").lower() if tree else b""
    metas = _list_metas(tree) if b"robots" in lower or b"tdm-" in lower else []
    links = _DOMAIN.encode() in lower or _REL.search(lower) is not None
    own, mentioned = _find_links(tree) if links else ([], [])
    own += _list_header_licenses(headers.get("link", ""))
    reserved, policy = _find_reservation(metas, headers)
    chosen = _choose_license(own)
    names = {"-".join(filter(None, link)) for link in mentioned if link not in own}
    return PagePermissions(
        *chosen,
        licenses_mentioned=" ".join(sorted(names)),
        refusals=_find_refusals(metas, headers.get("x-robots-tag", "")),
        tdm_reserved=reserved,
        tdm_policy=policy,
    )


_License = CreativeCommons | None  # None: another licence
_REL = re.compile(rb"""rel\s*=\s*(?:"[^">]*license|'[^'>]*license|license)""")
_LICENSED = '[rel~="license" i]'
# A licence inside one of these elements belongs to a picture, a quotation or another work.
_FOREIGN = ", ".join(
    f"{place} {_LICENSED}"
    for place in ("figure", "blockquote", '[about]:not([about=""])', '[itemtype$="ImageObject" i]')
)
_LINKED = f'a[href*="{_DOMAIN}" i]'


def _find_links(tree: HTMLTree | None) -> tuple[list[_License], list[CreativeCommons]]:
    """Return the licences that links state for the page, and those that the page mentions."""
    document = tree.document if tree else None
    if document is None:
        return [], []
    foreign = [_read_href(link) for link in document.query_selector_all(_FOREIGN).values()]
    own: list[_License] = []
    # A licence linked inside another work may also be linked for the page: so links are counted.
    left = Counter(foreign)
    for link in document.query_selector_all(_LICENSED).values():
        href = _read_href(link)
        if left[href] > 0:
            left[href] -= 1
        elif href:
            own.append(parse_creative_commons(href))
    linked = (_read_href(link) for link in document.query_selector_all(_LINKED).values())
    mentioned = (parse_creative_commons(href) for href in (*linked, *foreign))
    return own, [link for link in mentioned if link is not None]


def _read_href(link: ElementNode) -> str:
    return (link.getattr("href") or "").strip()


def _choose_license(own: Iterable[_License]) -> tuple[str, str, str]:
    """Return terms, version and port of the licences that a page states as its own.

    Creative Commons counts before other licences, since sites link to their terms of use as well.
    """
    stated = list(own)
    licenses = {link for link in stated if link is not None}
    if not licenses:
        return (OTHER_LICENSE if stated else NO_LICENSE), "", ""
    terms, versions, ports = (set(values) for values in zip(*licenses, strict=True))
    if len(terms) > 1:
        return SEVERAL_LICENSES, "", ""
    return (
        terms.pop(),
        versions.pop() if len(versions) == 1 else "",
        ports.pop() if len(ports) == 1 else "",
    )


_HEADER_LINK = re.compile(r"<([^<>]*)>([^<]*)")
_HEADER_REL = re.compile(r""";\s*rel\s*=\s*(?:"([^"]*)"|([^\s;,"]+))""", re.IGNORECASE)


def _list_header_licenses(value: str) -> list[_License]:
    """Return the licences of a `Link` header (RFC 8288)."""
    found: list[_License] = []
    for url, parameters in _HEADER_LINK.findall(value):
        rel = _HEADER_REL.search(parameters)
        if rel and "license" in (rel.group(1) or rel.group(2)).lower().split():
            found.append(parse_creative_commons(url))
    return found


def _list_metas(tree: HTMLTree | None) -> list[tuple[str, str]]:
    """Return name and content of the page's `<meta>` elements with a name, in order."""
    document = tree.document if tree else None
    if document is None:
        return []
    return [
        ((meta.getattr("name") or "").strip().lower(), meta.getattr("content") or "")
        for meta in document.query_selector_all("meta[name]").values()
    ]


_DIRECTIVE_END = re.compile(r"[\s,;]+")
# Directives with a value, which look like a crawler's name: "max-snippet: 20".
_VALUED = ("unavailable_after", "max-snippet", "max-image-preview", "max-video-preview")
_EVERYBODY = ("", "*", "robots")


def _find_refusals(metas: Iterable[tuple[str, str]], header: str) -> frozenset[str]:
    """Return the refusals of `<meta name="robots">` and of the lines of `X-Robots-Tag`.

    What is said to a single crawler by its name is left out.
    """
    said = [content for name, content in metas if name == "robots"]
    said += _list_general_lines(header)
    words = {word for line in said for word in _DIRECTIVE_END.split(line.lower())}
    return frozenset(words.intersection(ROBOTS_REFUSALS))


def _list_general_lines(header: str) -> Iterator[str]:
    for line in header.splitlines():
        agent, colon, rest = line.partition(":")
        agent = agent.strip().lower()
        if not colon or "," in agent or agent in _VALUED:
            yield line
        elif agent in _EVERYBODY:
            yield rest


def _find_reservation(
    metas: Iterable[tuple[str, str]], headers: Mapping[str, str]
) -> tuple[bool | None, str]:
    """Return whether rights are reserved, and the policy, by the TDM Reservation Protocol.

    Rights are reserved if the page or its response says so. Values but 0 and 1 say nothing, as the
    protocol asks. The page's own policy counts before the response's.
    """
    stated = [*metas, *((name, value) for name, value in headers.items())]
    values = {value.strip() for name, value in stated if name == "tdm-reservation"}
    policies = [value.strip() for name, value in stated if name == "tdm-policy"]
    policy = next(filter(None, policies), "")
    if "1" in values:
        return True, policy
    return (False if "0" in values else None), policy
