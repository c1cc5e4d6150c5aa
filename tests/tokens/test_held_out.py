import pytest
from hypothesis import given
from hypothesis import settings as tries
from hypothesis import strategies as st

from trainrig.tokens.document_set import _normalise_parts, is_held_out, normalise_url


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("HTTP://Example.COM:80/A/?b=2&a=1#top", "http://example.com/A?a=1&b=2"),
        ("https://example.com:443/", "https://example.com"),
        ("https://example.com:80/", "https://example.com:80"),
        ("http://user@Example.com/x//", "http://user@example.com/x"),
        ("https://example.com/x//y//", "https://example.com/x//y"),
        ("https://example.com//", "https://example.com"),
        ("http://[2001:DB8::1]:80/x", "http://[2001:db8::1]/x"),
        ("  http://example.com/x ", "http://example.com/x"),
        ("http://example.com/?", "http://example.com"),
        ("http://example.com:notaport/", "http://example.com:notaport/"),
        ("http://[broken", "http://[broken"),
        ("", ""),
    ],
)
def test_spellings_of_a_url_are_normalised(url, expected):
    assert normalise_url(url) == expected
    assert normalise_url(expected) == expected


hosts = st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,9}\.[A-Za-z]{2,3}", fullmatch=True)
paths = st.from_regex(r"(/[A-Za-z0-9._~%-]{0,5}){0,3}", fullmatch=True)
queries = st.lists(st.from_regex(r"[a-z]{1,3}=[A-Za-z0-9]{0,3}", fullmatch=True), max_size=3)


@tries(deadline=None)
@given(hosts, paths, queries, st.randoms())
def test_normalising_ignores_irrelevant_parts_and_is_idempotent(host, path, query, random):
    shuffled = random.sample(query, len(query))
    one = f"https://{host}{path}?{'&'.join(query)}"
    other = f"HTTPS://{host.swapcase()}:443{path}/?{'&'.join(shuffled)}#{path}"
    assert normalise_url(one) == normalise_url(other) == normalise_url(normalise_url(one))


@tries(max_examples=400)
@given(
    st.sampled_from(["http", "https", "Http"]),
    st.text(st.sampled_from("aZ0.-:@[%"), max_size=6),
    st.text(st.characters(min_codepoint=9, max_codepoint=130), max_size=10).map("/{}".format)
    | st.text(st.sampled_from("/a?#;=&%"), max_size=8),
)
def test_the_short_way_with_plain_urls_is_the_long_way(scheme, host, path):
    url = f"{scheme}://{host}{path}"
    assert normalise_url(url) == _normalise_parts(url)


@tries(deadline=None)
@given(st.text())
def test_any_text_is_on_one_side(url):
    assert is_held_out(url, 1.0) and not is_held_out(url, 0.0)


def test_about_the_given_share_is_held_out():
    # For 20,000 draws at 5%, a standard deviation is 31 documents, so 200 is beyond six.
    out = sum(is_held_out(f"https://site{n % 97}.example/{n}", 0.05) for n in range(20_000))
    assert abs(out - 1_000) < 200


def test_a_larger_share_holds_out_all_that_a_smaller_one_did():
    urls = [f"https://a.example/{n}" for n in range(500)]
    small = {url for url in urls if is_held_out(url, 0.1)}
    large = {url for url in urls if is_held_out(url, 0.2)}
    assert small < large


def test_the_split_is_the_same_as_ever():
    # Recorded values: a change would move documents between training and held-out.
    out = [n for n in range(60) if is_held_out(f"https://a.example/{n}", 0.1)]
    assert out == [5, 28, 33, 34, 57]
