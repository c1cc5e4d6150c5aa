from urllib.parse import urljoin

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainrig.corpus.url_keys import compute_url_key, normalise_url

pieces = st.sampled_from(
    [
        *(
            "http://",
            "HTTPS://",
            "www.",
            "Example.org",
            "a",
            "B",
            ".",
            "..",
            "/",
            "/./",
            ":80",
            "@",
        ),
        *("?", "&", "=", "#", "utm_source=x", "q=1", ";jsessionid=9", "%", "%7e", "%2F", "%41"),
        *("é", " ", "\n", "\ud800", "[::1]", "%%34%31", ":", "+"),
    ]
)
urls = st.one_of(st.lists(pieces, max_size=12).map("".join), st.text(st.characters()))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("HTTP://Example.ORG:80/", "http://example.org"),
        ("https://example.org:443/a/", "https://example.org/a"),
        ("https://example.org:80/a//", "https://example.org:80/a"),
        ("http://example.org./a#part", "http://example.org/a"),
        ("http://example.org/?", "http://example.org"),
        ("http://example.org/a/./b/../c", "http://example.org/a/c"),
        ("http://example.org/../../a", "http://example.org/a"),
        ("http://example.org/%7Ea%2fb%zz", "http://example.org/~a%2Fb%25zz"),
        ("http://example.org/%2E%2e/a", "http://example.org/a"),
        ("http://example.org/grün bär", "http://example.org/gr%C3%BCn%20b%C3%A4r"),
        ("http://example.org/gr%c3%bcn", "http://example.org/gr%C3%BCn"),
        ("http://example.org/a?b=2&a=1&b=1", "http://example.org/a?a=1&b=2&b=1"),
        ("http://example.org/a?utm_source=x&FBCLID=y&q=1&&gclid", "http://example.org/a?q=1"),
        ("http://example.org/a;jsessionid=1F?PHPSESSID=2", "http://example.org/a"),
        ("http://example.org/a?next=/b/../c", "http://example.org/a?next=/b/../c"),
        ("http://Ann@Example.org/A", "http://Ann@example.org/A"),
        ("http://[2001:DB8::1]:80/a", "http://[2001:db8::1]/a"),
        ("http://www.example.org/.hidden/", "http://www.example.org/.hidden"),
        (" http://example.org/a\n", "http://example.org/a"),
        ("ftp://Example.org/A/", "ftp://Example.org/A/"),
        ("example.org/a/", "example.org/a/"),
        ("http://a:b:c/", "http://a:b:c/"),
        ("", ""),
    ],
)
def test_each_rule_by_hand(url: str, expected: str):
    assert normalise_url(url) == expected


@given(urls)
@example("http:// .")
@example("http://a/%%34%31")
@example("http://a/b;jsessionid=1/..;jsessionid=2/c")
def test_a_normal_url_stays_as_it_is(url: str):
    once = normalise_url(url)
    assert normalise_url(once) == once


@given(st.lists(st.sampled_from(["a", "b", ".", "..", "c.d"]), max_size=8).map("/".join))
def test_dot_segments_go_as_browsers_have_them_go(path: str):
    expected = urljoin("http://example.org", f"/x/{path}").rstrip("/")
    assert normalise_url(f"http://example.org/x/{path}") == expected


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("http://www.example.org/a/", "HTTPS://example.org/a?utm_campaign=x", True),
        ("http://example.org/a?b=1&a=2", "http://example.org/a?a=2&b=1", True),
        ("http://example.org/a", "http://example.org/A", False),
        ("http://example.org/a?id=1", "http://example.org/a?id=2", False),
        ("http://example.org/www.", "http://example.org/", False),
    ],
)
def test_keys_are_of_pages(first: str, second: str, same: bool):
    assert (compute_url_key(first) == compute_url_key(second)) is same
    assert len(compute_url_key(first)) == 16


@pytest.mark.parametrize("piece", ["/", "/.", "/a", "%", "?", "&", "@", ":", ".a", ";jsessionid="])
def test_no_url_takes_more_than_linear_time(piece: str):
    normalise_url(f"http://example.org{piece * 200_000}\n|")
