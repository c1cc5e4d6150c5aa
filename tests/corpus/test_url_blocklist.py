import gzip
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus import url_blocklist
from trainrig.corpus.url_blocklist import URL_COLUMNS, HashSet, Substrings, UrlLists, UrlSignals
from trainrig.errors import DataError

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def file(*lines: str, name: str = "list.txt") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
        return str(path)

    return file


def blocked(lists: UrlLists, *urls: str) -> list[int]:
    return UrlSignals(lists).measure(urls)["url_blocked_domain"].tolist()


@pytest.mark.parametrize(
    ("entry", "url", "expected"),
    [
        ("bad.example", "http://bad.example/a", 1),
        ("bad.example", "https://WWW.Bad.Example:8080", 1),
        ("bad.example", "http://a.b.bad.example./?q", 1),
        ("bad.example", "http://ann:pw@bad.example/", 1),
        ("bad.example", "http://notbad.example/", 0),
        ("bad.example", "http://good.org/bad.example", 0),
        ("bad.example", "http://good.org?u=//bad.example", 0),
        ("bad.example", "http://bad.example.org/", 0),
        ("a.bad.example", "http://bad.example/", 0),
        ("*.bad.example", "http://bad.example/", 1),
        (".bad.example", "http://bad.example/", 1),
        ("http://www.bad.example/", "http://bad.example/", 1),
        ("0.0.0.0 bad.example # hosts", "http://bad.example/", 1),
        ("0.0.0.0\tbad.example", "http://bad.example/", 1),
        # A suffix does not match domains registered below it.
        ("co.uk", "http://example.co.uk/", 0),
        ("uk", "http://example.co.uk/", 0),
        ("blogspot.com", "http://a.blogspot.com/", 1),  # registered, by one company
        ("8.8.8.8", "http://8.8.8.8/", 1),
        ("8.8", "http://8.8.8.8/", 0),
        ("bad.example/shop", "http://bad.example/shop/1?q#f", 1),
        ("bad.example/shop", "http://www.bad.example/shop", 1),
        ("bad.example/shop", "http://bad.example/shopping", 0),
        ("bad.example/shop", "http://bad.example/", 0),
    ],
)
def test_domains_block_their_subdomains(write: Write, entry: str, url: str, expected: int):
    assert blocked(UrlLists(domains=(write("# a list", "", entry),)), url) == [expected]


def test_folders_of_lists_and_gzip_are_read(write: Write, tmp_path: Path):
    write("bad.example", name="adult/domains")
    write("half.example/bad", name="adult/urls")
    write("ignored.example", name="adult/usage")
    (tmp_path / "games").mkdir()
    (tmp_path / "games/domains").write_bytes(gzip.compress(b"play.example\n"))
    lists = UrlLists(domains=(str(tmp_path),))
    assert [Path(path).relative_to(tmp_path).as_posix() for path in lists.list_files()] == [
        "adult/domains",
        "adult/urls",
        "games/domains",
    ]
    urls = (f"http://{host}.example/bad" for host in ("bad", "half", "ignored", "play"))
    assert blocked(lists, *urls) == [1, 1, 0, 1]


@pytest.mark.parametrize(
    ("url", "strict", "hard", "soft"),
    [
        ("http://example.org/red-blue/green", 0, 1, 1),
        ("http://example.org/RE-D.fox", 1, 0, 0),  # redfox, with any characters in between
        ("http://redfoxes.org/redfox", 1, 0, 0),  # counted once, however often it occurs
        ("http://example.org/blueish/greens", 0, 0, 0),
        ("http://example.org/?a=green&b=yellow+green", 0, 0, 2),
        ("//blue", 0, 1, 0),
        ("blue://example.org", 0, 0, 0),
        ("blue", 0, 1, 0),
        ("http://example.org/a\nblue", 0, 1, 0),
        ("", 0, 0, 0),
    ],
)
def test_words_are_counted(write: Write, url: str, strict: int, hard: int, soft: int):
    signals = UrlSignals(
        UrlLists(
            strict_words=(write("Red Fox", name="strict"),),
            hard_words=(write("blue", name="hard"),),
            soft_words=(write("green", "yellow", name="soft"),),
        )
    ).measure(["http://other.org/", url, "http://blue.org/"])
    assert tuple(signals) == URL_COLUMNS
    assert [int(signals[column][1]) for column in URL_COLUMNS] == [0, strict, hard, soft]


def test_without_a_list_signals_are_empty():
    signals = UrlSignals(UrlLists()).measure(["http://example.org/", "no url"])
    assert {column: values.tolist() for column, values in signals.items()} == {
        column: [0, 0] for column in URL_COLUMNS
    }
    assert [len(values) for values in UrlSignals(UrlLists()).measure([]).values()] == [0] * 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the list has no entry; write one per line"),
        (b"# only this\n\n", "the list has no entry"),
        (b"\x7fELF\0\0", "the file is not text (byte 4 is NUL)"),
        (b"\x1f\x8bbroken", "cannot be read: "),
        (gzip.compress(b"bad.example")[:-4], "cannot be read: "),
        (b"ok.example\ntwo words\n", "line 2: 'two words' is neither a domain"),
    ],
)
def test_a_bad_list_is_named_in_one_line(tmp_path: Path, content: bytes, message: str):
    path = tmp_path / "list"
    path.write_bytes(content)
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        UrlSignals(UrlLists(domains=(str(path),)))
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_list_that_is_missing_is_named(tmp_path: Path):
    with pytest.raises(DataError, match="nothing: no such file"):
        UrlSignals(UrlLists(soft_words=(str(tmp_path / "nothing"),)))


def test_a_word_of_signs_alone_is_refused(write: Write):
    with pytest.raises(DataError, match="line 2: '--' has no letter"):
        UrlSignals(UrlLists(hard_words=(write("blue", "--"),)))


def test_suffixes_need_no_network_and_leave_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    def refuse(*_: object) -> None:
        raise AssertionError("the network was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    url_blocklist._load_extractor.cache_clear()
    url_blocklist.is_public_suffix.cache_clear()
    asked = ("co.uk", "uk", "bbc.co.uk", "blogspot.com", "8.8.8.8", "example", "")
    assert [host for host in asked if url_blocklist.is_public_suffix(host)] == ["co.uk", "uk"]
    assert list(tmp_path.iterdir()) == []


words = st.sets(st.text("ab ", min_size=1, max_size=6).map(str.encode), max_size=6)


@given(words, st.lists(st.text("abc ", max_size=12).map(str.encode), min_size=1, max_size=5))
def test_substrings_are_those_that_python_finds(wanted: set[bytes], lines: list[bytes]):
    assert Substrings(wanted).count_words(b"\n".join(lines)).tolist() == [
        sum(word in line for word in wanted) for line in lines
    ]


@given(st.sets(st.text(st.characters())), st.lists(st.text(st.characters())))
def test_a_hash_set_equals_a_set(held: set[str], asked: list[str]):
    both = [*asked, *sorted(held)]
    assert HashSet(held).holds(both).tolist() == [key in held for key in both]
