import gc
import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from resiliparse.parse.html import HTMLTree

from trainrig.corpus.extract import Extracted, MainContent, Resiliparse, Trafilatura, extract
from trainrig.corpus.extract.extractors import HTMLExtractor
from trainrig.corpus.extract.page_permissions import (
    CreativeCommons,
    PagePermissions,
    find_permissions,
    parse_creative_commons,
)
from trainrig.corpus.read import RawPage

TEXT = "<p>The keeper of the lock writes the level of the lake into a book each morning.</p>" * 5
BY_SA = "https://creativecommons.org/licenses/by-sa/4.0/"
BY = "https://creativecommons.org/licenses/by/3.0/de/"


def read_permissions(
    body: str = "", head: str = "", headers: dict[str, str] | None = None
) -> PagePermissions:
    html = f"<html><head>{head}</head><body>{TEXT}{body}</body></html>"
    page = RawPage("http://a.example/", "text/html", html.encode(), "", None, headers=headers or {})
    found = extract(page, Resiliparse(permissions=True))
    assert isinstance(found, Extracted)
    assert found.permissions is not None
    return found.permissions


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("licenses/by-nc-sa/3.0/de/", ("by-nc-sa", "3.0", "de")),
        ("licenses/by/3.0/deed.de", ("by", "3.0", "")),
        ("licenses/by/3.0/igo/legalcode", ("by", "3.0", "igo")),
        ("licenses/by-nd/2.5/scotland/deed.en", ("by-nd", "2.5", "scotland")),
        ("licenses/by/4.0/legalcode.fr", ("by", "4.0", "")),
        ("licenses/by/4.0/?ref=chooser-v1", ("by", "4.0", "")),
        ("licenses/by/4.0", ("by", "4.0", "")),
        ("licenses/by", ("by", "", "")),
        ("Licenses/BY-ND-NC/1.0/", ("by-nc-nd", "1.0", "")),
        ("licenses/publicdomain/", ("public-domain", "", "")),
        ("publicdomain/mark/1.0/", ("public-domain", "1.0", "")),
        ("publicdomain/zero/1.0/deed.de", ("cc0", "1.0", "")),
        ("licenses/", None),
        ("licenses/sampling+/1.0/", None),
        ("licenses/byte/1.0/", None),
        ("about/cclicenses/", None),
    ],
)
@pytest.mark.parametrize("start", ["https://", "http://www.", "//", " "])
def test_urls_of_creative_commons_are_parsed(
    start: str, path: str, expected: tuple[str, str, str] | None
) -> None:
    found = parse_creative_commons(f"{start}creativecommons.org/{path}")
    assert found == (CreativeCommons(*expected) if expected else None)


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example/?u=https://creativecommons.org/licenses/by/4.0/",
        "https://creativecommons.org.example/licenses/by/4.0/",
        "https://notcreativecommons.org/licenses/by/4.0/",
        "#license",
        "",
    ],
)
def test_urls_elsewhere_are_no_licence_of_creative_commons(url: str) -> None:
    assert parse_creative_commons(url) is None


@given(st.text(alphabet="/:.-?#abcdeginorstvy0134 \n", max_size=60))
def test_any_url_is_parsed_or_refused(path: str) -> None:
    found = parse_creative_commons(f"https://creativecommons.org/{path}")
    assert found is None or found.terms


@pytest.mark.parametrize(
    "element",
    [
        f'<a rel="license" href="{BY_SA}">CC</a>',
        f'<footer><a href="{BY_SA}" rel="nofollow LICENSE">CC</a></footer>',
        f"<a rel=license href={BY_SA}>CC</a>",
        f'<div about=""><a rel="license" href="{BY_SA}">CC</a></div>',
        f'<noscript><a rel="license" href="{BY_SA}">CC</a></noscript>',
    ],
)
def test_a_link_with_rel_license_states_the_licence(element: str) -> None:
    found = read_permissions(element)
    assert (found.license, found.license_version) == ("by-sa", "4.0")
    assert (found.license_port, found.licenses_mentioned) == ("", "")


def test_head_and_header_state_a_licence() -> None:
    assert read_permissions(head=f'<link rel="license" href="{BY}">').license_port == "de"
    header = f'<a.css>; rel=preload, <{BY}>; rel="license"; title="CC"'
    assert read_permissions(headers={"link": header}).license == "by"
    assert read_permissions(headers={"link": f"<{BY}>; rel=preload"}).license == "none"


@pytest.mark.parametrize(
    ("element", "mentioned"),
    [
        (f'<p>A blog about <a href="{BY_SA}">its licence</a></p>', "by-sa-4.0"),
        (f'<figure><p><a rel="license" href="{BY}">by</a></p></figure>', "by-3.0-de"),
        (f'<blockquote><p><a rel=license href="{BY}">by</a></p></blockquote>', "by-3.0-de"),
        (f'<p about="cat.jpg"><a rel=license href="{BY}">by</a></p>', "by-3.0-de"),
        (f'<!-- <a rel="license" href="{BY}">by</a> -->', ""),
        (f'<script>x = \'<a rel="license" href="{BY}">by</a>\'</script>', ""),
        (f'<template><a rel="license" href="{BY}">by</a></template>', ""),
        (f'<a href="/terms">rel="license" {BY}</a>', ""),
        (f'<a href="/go?to={BY}">by</a>', ""),
    ],
)
def test_a_licence_of_something_else_is_not_stated(element: str, mentioned: str) -> None:
    found = read_permissions(element)
    assert (found.license, found.licenses_mentioned) == ("none", mentioned)


def test_a_foreign_licence_beside_the_same_own_one_hides_nothing() -> None:
    link = f'<a rel="license" href="{BY}">by</a>'
    found = read_permissions(f"<figure>{link}</figure><footer>{link}</footer>")
    assert (found.license, found.license_port, found.licenses_mentioned) == ("by", "de", "")


def test_licences_are_found_in_linear_time() -> None:
    seconds = []
    for count in (4_000, 24_000):
        own, foreign = (
            "".join(f'<a rel="license" href="{name}{n}">x</a>' for n in range(count))
            for name in ("own-", "else")
        )
        html = f"{own}<figure>{foreign}</figure>"
        tree = HTMLTree.parse(html)
        gc.collect()
        gc.disable()  # collections also look at the objects of earlier tests
        began = time.thread_time()  # a Ray of earlier tests has threads of its own
        found = find_permissions(tree, html, {})
        seconds.append(time.thread_time() - began)
        gc.enable()
        assert found.license == "other"
    assert seconds[1] < 12 * seconds[0] + 0.05


def test_several_licences_are_told_apart() -> None:
    def state(*urls: str) -> tuple[str, str, str]:
        found = read_permissions("".join(f'<a rel="license" href="{url}">x</a>' for url in urls))
        return found.license, found.license_version, found.license_port

    older = BY_SA.replace("4.0", "3.0")
    terms = "https://site.example/terms"
    assert state(BY_SA, BY) == ("several", "", "")
    assert state(BY_SA, older) == ("by-sa", "", "")
    assert state(terms) == ("other", "", "")
    for order in itertools.permutations((terms, BY_SA, BY_SA)):
        assert state(*order) == ("by-sa", "4.0", "")


@pytest.mark.parametrize(
    ("head", "header", "refusals"),
    [
        ('<meta name="robots" content="noai, NoImageAI">', "", {"noai", "noimageai"}),
        ('<META NAME="Robots" CONTENT="index,noarchive">', "", {"noarchive"}),
        ('<meta name="googlebot" content="noai">', "", set()),
        ('<meta name="description" content="noai for robots">', "", set()),
        ('<meta name="robots" content="noairplanes">', "", set()),
        ('<!-- <meta name="robots" content="noai"> -->', "", set()),
        ("", "noai", {"noai"}),
        ("", "max-snippet: 20, noai", {"noai"}),
        ("", "noindex, max-snippet: 20, noarchive", {"noarchive"}),
        ("", "otherbot: noai, noarchive", set()),
        ("", "otherbot: noai\nnoarchive", {"noarchive"}),
        ("", "*: noai", {"noai"}),
        ('<meta name="robots" content="noai">', "noarchive", {"noai", "noarchive"}),
    ],
)
def test_refusals_of_robots_are_found(head: str, header: str, refusals: set[str]) -> None:
    assert read_permissions(head=head, headers={"x-robots-tag": header}).refusals == refusals


@pytest.mark.parametrize(
    ("meta", "header", "reserved"),
    [
        (None, None, None),
        ("1", None, True),
        ("0", None, False),
        (None, "1", True),
        ("0", "1", True),
        ("2", None, None),
        ("yes", "0", False),
    ],
)
def test_reservations_of_text_and_data_mining_are_found(
    meta: str | None, header: str | None, reserved: bool | None
) -> None:
    head = f'<meta name="TDM-Reservation" content="{meta}">' if meta else ""
    headers = {"tdm-reservation": header} if header else {}
    assert read_permissions(head=head, headers=headers).tdm_reserved is reserved


def test_the_policy_of_the_page_comes_before_that_of_the_response() -> None:
    headers = {"tdm-policy": "https://a.example/header"}
    head = '<meta name="tdm-policy" content=" https://a.example/page ">'
    assert read_permissions(head=head, headers=headers).tdm_policy == "https://a.example/page"
    assert read_permissions(headers=headers).tdm_policy == "https://a.example/header"


@pytest.mark.parametrize("extractor", [MainContent, Resiliparse, Trafilatura])
def test_every_extractor_of_html_reads_permissions(extractor: type[HTMLExtractor]) -> None:
    html = f'<html><body>{TEXT * 3}<a rel="license" href="{BY_SA}">x</a></body></html>'
    page = RawPage("", "text/html", html.encode(), "", None)
    found = extract(page, extractor(permissions=True))
    without = extract(page, extractor())
    assert isinstance(found, Extracted)
    assert isinstance(without, Extracted)
    assert found.permissions == PagePermissions("by-sa", "4.0")
    assert without.permissions is None
    assert found.text == without.text


def test_plain_text_has_the_permissions_of_its_response() -> None:
    page = RawPage("", "text/plain", b"A text.", "", None, headers={"x-robots-tag": "noai"})
    found = extract(page, MainContent(permissions=True))
    assert isinstance(found, Extracted)
    assert found.permissions == PagePermissions(refusals=frozenset({"noai"}))
