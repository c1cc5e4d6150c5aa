import time

import pytest
from resiliparse.parse.html import HTMLTree

from trainrig.corpus.extract.html_page import (
    contains_more_attributes,
    expand_self_closed,
    find_article_in_json,
    find_date,
    list_linked_data,
    parse_day,
)


def date(html: str) -> str:
    return find_date(HTMLTree.parse(html), html)


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ('<meta property="article:published_time" content="2024-05-18T01:58:10Z">', "2024-05-18"),
        ('<meta name="DC.date" content="2019/03/04">', "2019-03-04"),
        ('<meta itemprop="datePublished" content="20190304">', "2019-03-04"),
        (
            '<meta name="date" content="2001-01-01">'
            '<meta property="article:published_time" content="2002-02-02">',
            "2002-02-02",
        ),
        ('<script>{"a": 1, "datePublished" : "2020-10-11T00"}</script>', "2020-10-11"),
        ('<p>on <time datetime="2021-12-13">last week</time>', "2021-12-13"),
        ('<meta name="date" content="last week"><time datetime="2021-12-13">', "2021-12-13"),
        ('<p>2021-12-13 <meta name="date">', ""),
        ("", ""),
    ],
)
def test_the_day_of_publication(html: str, expected: str):
    assert date(html) == expected


@pytest.mark.parametrize(
    "text", ["2021-13-01", "1969-01-01", "2021-1-1", "yesterday", "２０２１０１０１"]
)
def test_invalid_dates_are_empty(text: str):
    assert parse_day(text) == ""


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ('<title/><script src="a.js"/>', '<title></title><script src="a.js"></script>'),
        ("<br/><img src='a/b'/><hr />", "<br/><img src='a/b'/><hr />"),
        ('<a title="/>"/>b</a>', '<a title="/>"></a>b</a>'),
        ("<p>1 < 2/>", "<p>1 < 2/>"),
        ("<link/><linkage/>", "<link/><linkage></linkage>"),
    ],
)
def test_self_closed_elements_of_xhtml_get_an_end_tag(html: str, expected: str):
    assert expand_self_closed(html) == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ('{"articleBody": "one\\n\\ntwo"}', "one\n\ntwo"),
        ('{"@graph": [{"a": {"articleBody": "short"}}, {"articleBody": "longest"}]}', "longest"),
        ('{"articleBody": "a &amp; b"}', "a & b"),
        ('{"articleBody": "<p>one</p><p>two</p>"}', "one\n\ntwo"),
        ('{"articleBody": ["no text"]}', ""),
        ('{"articleBody": "cut', ""),
        ('{"headline": "a"}', ""),
        ("[" * 100_000 + '"articleBody"', ""),
    ],
)
def test_the_article_in_json_ld(data: str, expected: str):
    html = f'<script type="application/ld+json">{data}</script>'
    assert find_article_in_json(html) == expected


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        (
            "<script type=application/ld+json>1</script>"
            "<SCRIPT type='Application/LD+json'>2</SCRIPT>",
            "12",
        ),
        ("<script>1</script><script type=application/ld+json>2</script>", "2"),
        ("<script type=application/ld+json>cut", ""),
        ("<script type=application/ld+json", ""),
    ],
)
def test_scripts_of_json_ld(html: str, expected: str):
    assert "".join(list_linked_data(html)) == expected


def name_attributes(count: int, value: str = "") -> str:
    return " ".join(f"name{n}{value}" for n in range(count))


@pytest.mark.parametrize("value", ["", "=1", '="a value"', "='x'", ' = "1 2"'])
@pytest.mark.parametrize("after", [">", "/>", ""])
def test_tags_with_too_many_attributes_are_found(value: str, after: str):
    before = "<p>a text</p>" * 9
    tag = f"<div {name_attributes(101, value)}{after}"
    assert contains_more_attributes(before + tag + before[:5], 100)
    assert contains_more_attributes(tag, 100)
    assert not contains_more_attributes(before + tag, 101)


@pytest.mark.parametrize("start", ["<p = ", "<p =a ", "<p a=1 =b ", "<p a='1'= ", '<p a="1"=2 '])
def test_names_that_begin_with_an_equals_sign_hide_no_attributes(start: str):
    assert contains_more_attributes(f"<p>a text</p>{start}{name_attributes(101)}>", 100)


@pytest.mark.parametrize(
    "html",
    [
        "<p>" + name_attributes(500),
        f"<p>{name_attributes(500)}</p>",
        "<p " + "a=1 " * 500 + ">",
        '<p a="' + name_attributes(500) + '">',
        f"<script>for(i=0;i<n {name_attributes(500)};)</script>",
        f"<STYLE>a<n {name_attributes(500)}</STYLE >",
        f"<!-- <p {name_attributes(500)} -->",
        f"<title>1<n {name_attributes(500)}",
        f"1 < {name_attributes(500)}",
        "",
    ],
)
def test_what_only_looks_like_attributes_does_not_count(html: str):
    assert not contains_more_attributes(html, 100)
    assert contains_more_attributes(f"{html}<b></title></b><p {name_attributes(200)}>", 100)


@pytest.mark.parametrize(
    "part",
    [
        "<",
        ">",
        "<a ",
        "<a b='",
        '<a "',
        '<a b="c',
        " b=' ",
        "x" * 50,
        "<script>a<b c ",
        "x" * 101 + ">",
        "<" + "x" * 101,
    ],
)
def test_attributes_are_counted_in_linear_time(part: str):
    seconds = []
    for count in (20_000, 80_000):
        html = part * count
        began = time.process_time()
        contains_more_attributes(html, 50)
        seconds.append(time.process_time() - began)
    assert seconds[1] < 12 * seconds[0] + 0.05


@pytest.mark.parametrize("start", ["<script type=application/ld+json>", "<script "])
def test_scripts_that_never_end_take_linear_time(start: str):
    seconds = []
    for count in (20_000, 80_000):
        begin = time.process_time()
        assert list_linked_data(start * count) == []
        seconds.append(time.process_time() - begin)
    assert seconds[1] < 12 * seconds[0] + 0.1
