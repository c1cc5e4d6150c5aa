import hashlib
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainrig.corpus.extract import (
    Extracted,
    MainContent,
    NotExtracted,
    PlainText,
    Resiliparse,
    Trafilatura,
    extract,
)
from trainrig.corpus.extract.extract_page import decode
from trainrig.corpus.extract.html_page import tidy
from trainrig.corpus.read import RawPage

SENTENCE = "The mill stands by the river, and its wheel has turned there for two hundred years. "
ARTICLE = f"""<html lang="en-GB"><head><title> The
mill </title><style>p {{color: red}}</style></head><body>
<nav><ul><li><a href="/">Home</a></li><li><a href="/about">About us</a></li></ul></nav>
<article><h1>The mill</h1><p>{SENTENCE * 3}</p><p>{SENTENCE * 2}</p><script>alert(1)</script>
</article><footer>Imprint and cookies</footer></body></html>"""


def make_page(body: bytes, content_type: str = "text/html", charset: str | None = None) -> RawPage:
    return RawPage("http://example.org/", content_type, body, "2024-01-01T00:00:00Z", charset)


def extract_text(body: bytes, **about: str) -> str:
    found = extract(make_page(body, **about), Resiliparse())
    assert isinstance(found, Extracted)
    return found.text


def test_an_article_loses_its_navigation_footer_scripts_and_styles():
    found = extract(make_page(ARTICLE.encode()), Resiliparse())
    assert isinstance(found, Extracted)
    assert (found.title, found.language_hint) == ("The mill", "en")
    assert SENTENCE.strip() in found.text
    for unwanted in ("Home", "Imprint", "alert", "color"):
        assert unwanted not in found.text


def test_everything_is_kept_without_main_content_extraction():
    found = extract(make_page(ARTICLE.encode()), Resiliparse(main_content=False))
    assert isinstance(found, Extracted)
    assert "Home" in found.text


def test_a_page_may_claim_no_title_and_no_language():
    assert extract(make_page(b"<p>x"), Resiliparse()) == Extracted("x", "", "")


@pytest.mark.parametrize(
    ("body", "charset", "expected"),
    [
        ("naïve".encode(), None, "naïve"),
        # Valid UTF-8 is read as UTF-8, whatever is declared.
        ("naïve".encode(), "iso-8859-1", "naïve"),
        ("naïve".encode("latin-1"), "iso-8859-1", "naïve"),
        ("Thé, café et naïveté".encode("latin-1"), "no-such-charset", "Thé, café et naïveté"),
        ("Привет, мир".encode("cp1251"), "windows-1251", "Привет, мир"),
        (b'<meta charset="windows-1251">' + "Привет".encode("cp1251"), None, "Привет"),
        ("日本語".encode("shift_jis"), "Shift_JIS", "日本語"),
        ("日本語".encode("iso2022_jp"), "iso-2022-jp", "日本語"),
        ("\ufeffnaïve".encode("utf-16-le"), None, "naïve"),
        ("\ufeffnaïve".encode("utf-16-be"), "utf-8", "naïve"),
        ("\ufeffnaïve".encode(), "iso-8859-1", "naïve"),
        ("cut na\u00ef".encode()[:-1], "iso-8859-1", "cut na"),
    ],
)
def test_the_encoding_is_found(body: bytes, charset: str | None, expected: str):
    assert decode(make_page(body, charset=charset)).endswith(expected)


FRENCH = "Le café était fermé, et l'été à Genève est très agréable. "
RUSSIAN = "Привет, мир. Это проверка кодировки страницы, на которой есть текст. "
JAPANESE = "これは日本語のページです。文字コードを判定します。"
KOREAN = "이것은 한국어 페이지입니다. 문자 인코딩을 감지합니다. "


@pytest.mark.parametrize(
    ("text", "encoding", "claimed"),
    [
        (FRENCH, "latin-1", "utf-8"),
        (FRENCH, "cp1252", "utf-8"),
        (RUSSIAN, "cp1251", "utf-8"),
        (RUSSIAN, "cp1251", "iso-8859-1"),
        (RUSSIAN, "koi8-r", "iso-8859-1"),
        (JAPANESE, "shift_jis", "utf-8"),
        (JAPANESE, "shift_jis", "iso-8859-1"),
        (JAPANESE, "euc_jp", "utf-8"),
        (JAPANESE, "euc_jp", "windows-1252"),
        (KOREAN, "euc_kr", None),
        (KOREAN, "euc_kr", "utf-8"),
        (FRENCH + "\N{ROLLING ON THE FLOOR LAUGHING}", "utf-8", "iso-8859-1"),
    ],
)
@pytest.mark.parametrize("meta", ["", '<meta charset="utf-8">'])
def test_a_wrong_label_gives_way_to_the_evidence(text: str, encoding: str, claimed, meta: str):
    body = f"<html><head>{meta}</head><p>{text * 3}".encode(encoding)
    assert text * 3 in decode(make_page(body, charset=claimed))


def test_a_damaged_page_of_utf_8_stays_utf_8():
    body = (FRENCH * 9).encode()
    damaged = body[:4] + b"\xff" + body[4:]
    for claimed in (None, "utf-8", "iso-8859-1"):
        text = decode(make_page(damaged, charset=claimed))
        assert text.count("\ufffd") == 1
        assert text.replace("\ufffd", "") == FRENCH * 9


@pytest.mark.parametrize(
    "body",
    [
        b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8,
        b"%PDF-1.4\n" + b"1 0 obj << /Type /Catalog >> endobj\n" * 200,
        hashlib.shake_256(b"random").digest(5_000),
        b"PK\x03\x04" + b"word/document.xml " * 100,
        bytes(3_000),
    ],
)
@pytest.mark.parametrize("content_type", ["text/html", "text/plain"])
def test_bytes_that_are_no_text_are_reported_as_binary(body: bytes, content_type: str):
    for extractor in (Resiliparse(), MainContent(), PlainText()):
        assert extract(make_page(body, content_type), extractor) == NotExtracted("binary")


def test_a_few_stray_controls_do_not_make_a_text_binary():
    found = extract(make_page(b"<p>a\0b\x07c\x08 " + b"word " * 300), Resiliparse())
    assert isinstance(found, Extracted)


@pytest.mark.parametrize("content_type", ["text/plain", "text/markdown"])
def test_plain_text_passes_through(content_type: str):
    assert (
        extract_text(b"a < b\r\n\r\n  indented", content_type=content_type) == "a < b\n\n  indented"
    )


def test_a_page_of_no_stated_type_is_looked_at():
    assert extract_text(
        b"<!DOCTYPE html><html><body><p>hello</p></body></html>", content_type=""
    ) == ("hello")


@pytest.mark.parametrize("content_type", ["image/png", "application/json"])
def test_content_that_is_no_text_is_reported(content_type: str):
    assert extract(make_page(b"{}", content_type), Resiliparse()) == NotExtracted("not_text")


def test_plain_text_takes_any_page_as_it_stands():
    found = extract(make_page(b"<b>{}</b>", "application/json"), PlainText())
    assert found == Extracted("<b>{}</b>", "", "")


@pytest.mark.parametrize("extractor", [Resiliparse(max_bytes=10), PlainText(max_bytes=10)])
def test_a_large_page_is_refused_and_the_largest_is_not(extractor):
    assert extract(make_page(b"x" * 11), extractor) == NotExtracted("too_large")
    assert isinstance(extract(make_page(b"x" * 10), extractor), Extracted)


@pytest.mark.parametrize("tag", ["<div>", "<b>", "<ul><li>", "<table><tr><td>", "<svg>"])
def test_a_hundred_thousand_nested_tags_are_refused_at_once(tag: str):
    # Without the depth limit, the extraction of these pages takes minutes.
    assert extract(make_page(tag.encode() * 100_000 + b"deep"), Resiliparse()) == NotExtracted(
        "too_deep"
    )


@pytest.mark.parametrize("extractor", [MainContent(), Resiliparse(), Trafilatura()])
def test_a_tag_with_a_hundred_thousand_attributes_is_refused_at_once(extractor):
    # Without the limit, the parser takes half a minute for this page.
    attributes = b" ".join(b"name%d=1" % n for n in range(100_000))
    page = b"<p>A text.</p><p " + attributes + b">Another text.</p>"
    assert extract(make_page(page), extractor) == NotExtracted("too_many_attributes")
    same = re.sub(rb"name\d+", b"name", page)
    assert isinstance(extract(make_page(same), extractor), Extracted)


def test_a_page_of_many_tags_that_is_not_deep_is_extracted():
    body = b"<p>word <b>bold</b></p>" * 20_000
    assert extract_text(body).count("bold") == 20_000


@given(
    st.binary(max_size=400), st.sampled_from([None, "utf-8", "utf-16", "Shift_JIS", "hex", "\0"])
)
@example(b"\x1b$B\xff", "iso-2022-jp")
@example(b"\xff\xfe\x00", None)
def test_any_bytes_at_all_are_extracted(body: bytes, charset: str | None):
    for content_type in ("text/html", "text/plain", ""):
        assert extract(make_page(body, content_type, charset), Resiliparse()) is not None


# One label of each encoding in the WHATWG standard.
WEB_CHARSETS = """
utf-8 ibm866 iso-8859-2 iso-8859-3 iso-8859-4 iso-8859-5 iso-8859-6 iso-8859-7 iso-8859-8
iso-8859-8-i iso-8859-10 iso-8859-13 iso-8859-14 iso-8859-15 iso-8859-16 koi8-r koi8-u macintosh
windows-874 windows-1250 windows-1251 windows-1252 windows-1253 windows-1254 windows-1255
windows-1256 windows-1257 windows-1258 x-mac-cyrillic gbk gb18030 big5 euc-jp iso-2022-jp shift_jis
euc-kr replacement utf-16be utf-16le x-user-defined
"""


@pytest.mark.parametrize("charset", WEB_CHARSETS.split())
def test_every_charset_of_the_web_can_be_decoded(charset: str):
    assert isinstance(decode(make_page(b"caf\xe9 \xfe", charset=charset)), str)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\r\nb\rc\u2028d", "a\nb\nc\nd"),
        ("a\xa0b\u3000c", "a b c"),
        ("  a  \n\n\n\n  b\t\n", "a\n\n  b"),
        ("so\xadft\u200b\0\ud800\x07", "soft"),
        ("\u0646\u200c\u0647", "\u0646\u200c\u0647"),
    ],
)
def test_text_is_tidied(text: str, expected: str):
    assert tidy(text) == expected


@given(st.text(st.characters(), max_size=100))
@example("a \0\n \x07\n\n\xa0\n\nb")
def test_tidy_text_stays_as_it_is_and_can_be_written(text: str):
    once = tidy(text)
    assert tidy(once) == once
    assert "\0" not in once
    assert not re.search(r"\n\n\n|[ \t]\n", once)
    once.encode("utf-8")


HTML_EXTRACTORS = [Resiliparse, MainContent, Trafilatura]


@pytest.mark.parametrize("kind", HTML_EXTRACTORS)
def test_a_page_with_too_many_tags_is_refused_and_one_at_the_limit_is_not(kind):
    body = b"<p>word " * 100
    assert extract(make_page(body), kind(max_nodes=99)) == NotExtracted("too_many_nodes")
    assert isinstance(extract(make_page(body), kind(max_nodes=100)), Extracted)


@pytest.mark.parametrize("kind", HTML_EXTRACTORS)
def test_a_page_as_deep_as_allowed_is_extracted_and_one_level_more_is_not(kind):
    # The depth is computed only for pages with many tags.
    limit = 50
    shallow = b"<br>" * 250

    def nested(levels: int) -> RawPage:
        around = 2  # html and body
        return make_page(shallow + b"<div>" * (levels - around) + b"deep")

    assert extract(nested(limit), kind(max_depth=limit)) != NotExtracted("too_deep")
    assert extract(nested(limit + 1), kind(max_depth=limit)) == NotExtracted("too_deep")


def test_a_page_of_a_hundred_megabytes_is_refused_unread():
    assert extract(make_page(b"<p>" * 33_000_000), MainContent()) == NotExtracted("too_large")


@pytest.mark.parametrize("content_type", ["text/html", "text/plain"])
def test_a_page_without_text_is_reported_as_empty(content_type: str):
    for body in (b"", b" \n\xc2\xa0"):
        assert extract(make_page(body, content_type), Resiliparse()) == NotExtracted("empty")
    assert extract(make_page(b""), MainContent()) == NotExtracted("empty")


def test_a_self_closed_element_of_xhtml_does_not_hide_the_page():
    body = b'<html><head><title/><script src="a.js"/></head><body><p>hello</p></body></html>'
    for kind in (Resiliparse, MainContent):
        found = extract(make_page(body, "application/xhtml+xml"), kind())
        assert isinstance(found, Extracted)
        assert found.text == "hello"
