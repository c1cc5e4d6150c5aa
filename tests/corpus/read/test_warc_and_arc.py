import gzip
import hashlib
import json
import os
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fastwarc.warc import ArchiveIterator, WarcRecordType
from hypothesis import example, given
from hypothesis import strategies as st
from support.archives import read_warc

from trainrig.corpus.read import ReadSettings, cut_pieces, find_files
from trainrig.corpus.read import read as read_piece
from trainrig.corpus.read.page_types import mark_wide
from trainrig.corpus.read.raw_pages import LARGEST_BODY, RawPage, Unreadable
from trainrig.corpus.read.warc_and_arc import write_warc
from trainrig.errors import DataError

PAGE = RawPage("http://example.org/", "text/html", b"<p>hello</p>", "2024-05-18T01:58:10Z", "utf-8")
NOISE = random.Random(0).randbytes(3_000)

urls = st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Cf", "Zl", "Zp", "Zs", "Cn", "Co")), min_size=1
).map(lambda path: f"http://example.org/{path}")
pages = st.builds(
    RawPage,
    url=urls,
    content_type=st.sampled_from(["text/html", "text/plain", "application/xhtml+xml"]),
    body=st.binary(max_size=2_000),
    date=st.datetimes().map(lambda at: f"{at:%Y-%m-%dT%H:%M:%SZ}"),
    charset=st.sampled_from([None, "utf-8", "ISO-8859-1", "Shift_JIS"]),
    headers=st.sampled_from([{}, {"tdm-reservation": "1", "x-robots-tag": "noai\nbot: none"}]),
)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


def record(
    block: bytes,
    *,
    kind: str = "response",
    url: str = "http://example.org/",
    length: int | str | None = None,
    content_type: str = "application/http; msgtype=response",
) -> bytes:
    head = (
        f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: {url}\r\n"
        "WARC-Date: 2020-01-01T00:00:00Z\r\nWARC-Record-ID: <urn:uuid:0>\r\n"
        f"Content-Type: {content_type}\r\n"
        f"Content-Length: {len(block) if length is None else length}\r\n\r\n"
    )
    return head.encode() + block + b"\r\n\r\n"


def ok(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", "Content-Type: text/html", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def compress(*records: bytes) -> bytes:
    return b"".join(gzip.compress(record) for record in records)


def read(folder: Path, data: bytes) -> list[RawPage | Unreadable]:
    path = folder / "some.warc"
    path.write_bytes(data)
    return list(read_warc(str(path)))


def list_outcomes(found: list[RawPage | Unreadable]) -> list[bytes | str]:
    return [page.body if isinstance(page, RawPage) else page.reason for page in found]


@given(st.lists(pages, min_size=1, max_size=5))
@example([replace(PAGE, url="http://example.org/日本語?q=é&x=<y>")])
@example([replace(PAGE, body=b"\r\n\r\nWARC/1.0\r\nWARC-Type: response\r\n\r\n")])
@example([replace(PAGE, body=b"\x1f\x8b\x08")])
def test_written_archives_are_read_back(folder: Path, written: list[RawPage]) -> None:
    path = str(folder / "round.warc.gz")
    write_warc(path, written)
    # a body that is UTF-16 without a mark gets one
    marked = [replace(page, body=mark_wide(page.body, page.charset)) for page in written]
    assert list(read_warc(path)) == marked


def test_the_same_pages_give_the_same_bytes_under_any_name(tmp_path: Path) -> None:
    write_warc(str(tmp_path / "a.warc.gz"), [PAGE, PAGE])
    write_warc(str(tmp_path / "b.warc.gz"), [PAGE, PAGE])
    assert (tmp_path / "a.warc.gz").read_bytes() == (tmp_path / "b.warc.gz").read_bytes()


def test_no_gzip_member_carries_a_time(tmp_path: Path) -> None:
    write_warc(str(tmp_path / "a.warc.gz"), [PAGE])
    assert (tmp_path / "a.warc.gz").read_bytes()[4:8] == bytes(4)


def test_each_page_has_its_own_gzip_member_and_id(tmp_path: Path) -> None:
    path = tmp_path / "a.warc.gz"
    write_warc(str(path), [PAGE, replace(PAGE, body=b"other")])
    with path.open("rb") as stream:
        records = [(r.record_id, r.stream_pos) for r in ArchiveIterator(stream)]
    data = path.read_bytes()
    assert len({record_id for record_id, _ in records}) == 2
    assert records[0][1] == 0
    assert gzip.decompress(data[records[1][1] :]).startswith(b"WARC/1.1")


@pytest.mark.parametrize(
    "page",
    [
        replace(PAGE, url="http://example.org/\r\nWARC-Type: request"),
        replace(PAGE, date="2024-05-18\n"),
        replace(PAGE, content_type="text/html\x00"),
        replace(PAGE, content_type=""),
        replace(PAGE, url="http://example.org/\ud800"),
    ],
)
def test_a_page_that_fits_no_header_line_is_refused_and_leaves_no_file(
    tmp_path: Path, page: RawPage
) -> None:
    with pytest.raises(DataError):
        write_warc(str(tmp_path / "a.warc.gz"), [PAGE, page])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (ok(b"plain"), b"plain"),
        (ok(b"gone", status="404 Not Found"), "not_http_200"),
        (b"no protocol at all", "not_http"),
        (ok(b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n", "Transfer-Encoding: chunked"), b"abcde"),
        (ok(b"<p>never chunked</p>", "Transfer-Encoding: chunked"), b"<p>never chunked</p>"),
        (ok(b"3\r\nabc\r\nff\r\nde", "Transfer-Encoding: chunked"), "bad_chunks"),
        (ok(gzip.compress(b"squeezed"), "Content-Encoding: gzip"), b"squeezed"),
        (ok(b"unpacked already", "content-encoding: gzip"), b"unpacked already"),
        (ok(gzip.compress(NOISE)[:-900], "Content-Encoding: gzip"), "bad_content_encoding"),
        (ok(gzip.compress(bytes(LARGEST_BODY + 1)), "Content-Encoding: gzip"), "too_large"),
    ],
)
def test_a_response_gives_its_body_or_a_reason(
    tmp_path: Path, block: bytes, expected: bytes | str
) -> None:
    assert list_outcomes(read(tmp_path, record(block))) == [expected]


@pytest.mark.parametrize("kind", ["warcinfo", "request", "metadata"])
def test_ordinary_records_pass_in_silence(tmp_path: Path, kind: str) -> None:
    assert list_outcomes(read(tmp_path, record(b"x", kind=kind) + record(ok(b"page")))) == [b"page"]


@pytest.mark.parametrize("kind", ["revisit", "continuation"])
def test_records_that_refer_to_others_are_counted(tmp_path: Path, kind: str) -> None:
    assert list_outcomes(read(tmp_path, record(ok(b""), kind=kind))) == [kind]


def test_a_resource_has_its_type_from_the_record(tmp_path: Path) -> None:
    data = record(b"text", kind="resource", content_type="Text/Plain; Charset='UTF-8'")
    (page,) = read(tmp_path, data)
    assert page == RawPage(
        "http://example.org/", "text/plain", b"text", "2020-01-01T00:00:00Z", "UTF-8"
    )


def test_a_dns_answer_is_no_page(tmp_path: Path) -> None:
    data = record(b"1.2.3.4", url="dns:example.org", content_type="text/dns")
    assert list_outcomes(read(tmp_path, data)) == ["not_a_page"]


def test_a_field_continues_in_lines_that_begin_with_a_space(tmp_path: Path) -> None:
    data = record(ok(b""), url="http://example.org/a\r\n\tb\r\n  c")
    (page,) = read(tmp_path, data)
    assert isinstance(page, RawPage)
    assert page.url == "http://example.org/a b c"


def test_angle_brackets_around_a_url_are_removed(tmp_path: Path) -> None:
    (page,) = read(tmp_path, record(ok(b""), url="<http://example.org/a>"))
    assert isinstance(page, RawPage)
    assert page.url == "http://example.org/a"


A = record(ok(b"a" * 1_000))
B = record(ok(NOISE))
C = record(ok(b"c" * 1_000))
WRONG = record(ok(b"b" * 1_000), length=500)
TOO_LONG = record(ok(b"b" * 1_000), length=1_200)
GZIP_B = bytearray(gzip.compress(B))
GZIP_B[1_500] ^= 0xFF
GZIP_B_HEAD = bytearray(gzip.compress(B))
GZIP_B_HEAD[200] ^= 0xFF


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"no record\n" + A, ["not_a_record", b"a" * 1_000]),
        ((A + B)[:-1_000], [b"a" * 1_000, "truncated"]),
        (compress(A, B)[:-1_000], [b"a" * 1_000, "truncated"]),
        (A + WRONG + C, [b"a" * 1_000, "wrong_content_length", b"c" * 1_000]),
        (compress(A, WRONG, C), [b"a" * 1_000, "wrong_content_length", b"c" * 1_000]),
        (compress(A, TOO_LONG, C), [b"a" * 1_000, "wrong_content_length", b"c" * 1_000]),
        (
            compress(A, record(ok(b""), length="many"), C),
            [b"a" * 1_000, "wrong_content_length", b"c" * 1_000],
        ),
        (compress(A) + GZIP_B + compress(C), [b"a" * 1_000, "damaged_gzip", b"c" * 1_000]),
        (compress(A) + GZIP_B_HEAD + compress(C), [b"a" * 1_000, "damaged_gzip", b"c" * 1_000]),
        (bytes(GZIP_B_HEAD) + compress(C), ["damaged_gzip", b"c" * 1_000]),
        (compress(A) + b"\0" * 100 + compress(C), [b"a" * 1_000, "damaged_gzip", b"c" * 1_000]),
    ],
)
def test_damage_loses_one_record_and_reading_continues(
    tmp_path: Path, data: bytes, expected: list[bytes | str]
) -> None:
    assert list_outcomes(read(tmp_path, data)) == expected


@pytest.mark.parametrize(
    "data", [b"", b"<html>", b"just text\n" * 500, gzip.compress(b"text", mtime=0)]
)
def test_a_file_without_a_record_is_not_an_archive(tmp_path: Path, data: bytes) -> None:
    assert read(tmp_path, data) == [Unreadable("some.warc", "not_an_archive")]


def test_where_names_the_byte_of_the_record_and_no_folder(tmp_path: Path) -> None:
    data = compress(A, record(ok(b"", status="500 Oh")))
    found = read(tmp_path, data)[1]
    assert isinstance(found, Unreadable)
    assert found.reason == "not_http_200"
    assert found.where == f"some.warc: record at byte {len(compress(A))}"


@given(
    st.sampled_from([A + B + C, compress(A, B, C)]),
    st.lists(st.tuples(st.integers(0, 10_000), st.binary(min_size=1, max_size=40)), max_size=4),
    st.integers(0, 10_000),
)
def test_no_damage_is_fatal(
    folder: Path, whole: bytes, overwritten: list[tuple[int, bytes]], cut: int
) -> None:
    data = bytearray(whole[: max(1, len(whole) - cut % len(whole))])
    for at, patch in overwritten:
        at %= len(data)
        data[at : at + len(patch)] = patch
    assert read(folder, bytes(data))


def test_a_record_is_found_across_the_blocks_of_the_search(tmp_path: Path) -> None:
    # The wrong length is discovered early. The next record begins at every offset near 1 MiB.
    for shift in range(-8, 4):
        start = record(ok(b"b" * 2**20), length=100)
        start = record(ok(b"b" * (2**21 + shift - len(start))), length=100)
        assert len(start) == 2**20 + shift
        assert list_outcomes(read(tmp_path, start + C))[-1] == b"c" * 1_000


@pytest.fixture
def data() -> Path:
    folder = os.environ.get("TRAINRIG_TEST_DATA")
    if not folder:
        pytest.skip("TRAINRIG_TEST_DATA is not set")
    return Path(folder)


@pytest.mark.data
def test_every_page_of_a_real_crawl_has_the_bytes_of_its_manifest(data: Path) -> None:
    expected: dict[str, list[tuple[str, str]]] = {}
    for line in (data / "crawl/manifest.jsonl").read_text().splitlines():
        row = json.loads(line)
        url = row["url"].replace(" ", "%20")
        expected.setdefault(row["shard"], []).append((url, row["sha256"]))
    for shard, rows in expected.items():
        found = [
            (page.url, hashlib.sha256(page.body).hexdigest())
            for page in read_warc(str(data / "crawl" / shard))
            if isinstance(page, RawPage)
        ]
        assert found == rows


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "pages", "reasons"),
    [
        ("aut-example.arc.gz", 0, {"not_an_archive": 1}),
        ("aut-example.docs.warc.gz", 9, {}),
        ("aut-example.warc.gz", 214, {"not_http_200": 47, "not_a_page": 38}),
        ("aut-issue-493.warc", 9, {"revisit": 5, "not_http_200": 1}),
        ("ukwa-flashfrozen-jwat-recompressed.warc.gz", 39, {"not_a_page": 3}),
        ("ukwa-gov.uk-revisit-1.warc.gz", 57, {"not_http_200": 5, "not_a_page": 3}),
        ("ukwa-transfer_compression_gzip.warc", 1, {"not_a_page": 1}),
        ("warcio-example-bad-non-chunked.warc.gz", 1, {"revisit": 1}),
        ("warcio-example-bad.warc.gz.bad", 1, {"revisit": 1, "not_http_200": 1}),
        ("warcio-example-resource.warc.gz", 1, {}),
        ("warcio-example.warc.gz", 1, {"revisit": 1}),
        ("warcio-post-test.warc.gz", 3, {}),
        ("whirlwind.warc.gz", 1, {}),
        ("whirlwind.warc.wat.gz", 0, {}),
        ("whirlwind.warc.wet.gz", 1, {}),
    ],
)
def test_odd_archives_give_all_their_pages(
    data: Path, name: str, pages: int, reasons: dict[str, int]
) -> None:
    found = list(read_warc(str(data / "archives" / name)))
    assert sum(isinstance(page, RawPage) for page in found) == pages
    assert Counter(page.reason for page in found if isinstance(page, Unreadable)) == reasons


def test_a_last_record_cut_anywhere_is_never_lost_in_silence(tmp_path: Path) -> None:
    first = compress(A)
    second = compress(C)
    for kept in range(1, len(second) - 8):  # the rest is gzip's checksum and length
        whole, *cut = list_outcomes(read(tmp_path, first + second[:kept]))
        assert whole == b"a" * 1_000
        assert len(cut) == 1, f"{kept} bytes of the record kept"
        # A header cut in its length can declare less than the original.
        assert cut[0] in ("truncated", "not_http", "unknown_type", b"", b"c" * 1_000)
    assert list_outcomes(read(tmp_path, first)) == [b"a" * 1_000]


SOUND = [
    "aut-example.docs.warc.gz",
    "aut-example.warc.gz",
    "aut-issue-493.warc",
    "ukwa-flashfrozen-jwat-recompressed.warc.gz",
    "ukwa-gov.uk-revisit-1.warc.gz",
    "ukwa-transfer_compression_gzip.warc",
    "warcio-example-bad-non-chunked.warc.gz",
    "warcio-example-resource.warc.gz",
    "warcio-example.warc.gz",
    "warcio-post-test.warc.gz",
    "whirlwind.warc.gz",
    "whirlwind.warc.wat.gz",
    "whirlwind.warc.wet.gz",
]


@pytest.mark.data
@pytest.mark.parametrize("name", SOUND)
def test_fastwarc_finds_the_same_pages(data: Path, name: str) -> None:
    path = data / "archives" / name
    with path.open("rb") as stream:
        kinds = WarcRecordType.response | WarcRecordType.resource | WarcRecordType.conversion
        records = ArchiveIterator(stream, record_types=kinds, parse_http=True)
        theirs = [
            (record.headers["WARC-Target-URI"].strip("<>"), record.headers["WARC-Date"])
            for record in records
            if (record.http_headers is None or record.http_headers.status_code == 200)
            and not record.headers["WARC-Target-URI"].strip("<>").startswith(("dns:", "metadata:"))
        ]
    ours = [(page.url, page.date) for page in read_warc(str(path)) if isinstance(page, RawPage)]
    assert ours == theirs


@pytest.mark.data
@pytest.mark.parametrize("name", [*SOUND, "aut-example.arc.gz"])
def test_warcio_finds_the_same_bodies(data: Path, name: str) -> None:
    if "non-chunked" in name:
        pytest.skip("warcio refuses members of several records")
    warcio = pytest.importorskip("warcio.archiveiterator", reason="warcio is not installed")
    path = str(data / "archives" / name)
    theirs = Counter[bytes]()
    with Path(path).open("rb") as stream:
        for record in warcio.ArchiveIterator(stream):
            url = record.rec_headers.get_header(
                "uri" if record.format == "arc" else "WARC-Target-URI"
            )
            page = record.rec_type in ("response", "resource", "conversion")
            status = record.http_headers.get_statuscode() if record.http_headers else "200"
            if page and status == "200" and not url.startswith(("dns:", "metadata:")):
                theirs[hashlib.sha256(record.content_stream().read()).digest()] += 1
    (group,) = cut_pieces(find_files([path]), ReadSettings())
    found = (page for page in read_piece(group[0], ReadSettings()) if isinstance(page, RawPage))
    assert Counter(hashlib.sha256(page.body).digest() for page in found) == theirs
