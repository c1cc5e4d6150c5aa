import gzip
from pathlib import Path

import numpy as np
import pytest

from trainrig.corpus.models.arpa import read_arpa, write_arpa
from trainrig.errors import DataError

# As SRILM may write one: there is no "b c", though "a b c" exists, and `<s>` has a probability of
# -99.
SPARSE = r"""
written by another tool

\data\
ngram 1=6
ngram 2=3
ngram 3=1

\1-grams:
-1.5	<unk>
-99	<s>	-0.5
-1.0	</s>
-0.7	a	-0.25
-0.8	b	-0.125
-0.9	c

\2-grams:
-0.4	<s> a	-0.1
-0.3	a b	-0.0625
-0.2	c </s>

\3-grams:
-0.05	a b c

\end\
"""


@pytest.mark.parametrize("name", ["model.arpa", "model.arpa.gz"])
def test_a_written_model_is_read_back_bit_exactly(tmp_path, trained, text, name):
    model = trained(text, 4, tmp_path)
    path = str(tmp_path / name)
    write_arpa(path, model.trie, model.vocabulary)
    trie, vocabulary = read_arpa(path)
    assert vocabulary == model.vocabulary
    assert all(np.array_equal(a, b) for a, b in zip(trie, model.trie, strict=True))
    before = Path(path).read_bytes()
    write_arpa(path, model.trie, model.vocabulary)
    assert Path(path).read_bytes() == before


def test_an_n_gram_left_out_scores_as_backing_off_gives(tmp_path):
    path = tmp_path / "sparse.arpa"
    path.write_text(SPARSE)
    trie, vocabulary = read_arpa(str(path))
    ids = {word: number for number, word in enumerate(vocabulary)}
    stream = np.array(
        [ids[word] for word in ("<s>", "a", "b", "c", "</s>", "<s>", "b", "c")], np.uint32
    )
    # "b c" scores as the word c plus the back-off of b. </s> after "a b c" scores as the
    # bigram "c </s>".
    expected = [0, -0.4, -0.1 - 0.3, -0.05, -0.2, 0, -0.5 - 0.8, -0.125 - 0.9]
    assert trie.score(stream) == pytest.approx(expected, abs=1e-6)


def test_a_compressed_file_is_recognised_by_its_bytes(tmp_path):
    path = tmp_path / "sparse.arpa"
    path.write_bytes(gzip.compress(SPARSE.encode()))
    assert read_arpa(str(path))[1][3:] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("\\data\\", "data"), "no \\data\\"),
        (("ngram 2=3", "ngram 2=4"), "3 2-grams, but states 4"),
        (("ngram 2=3", "ngram 2=2"), "more than 2 lines"),
        (("a b c", "a b x"), "`x` is not among its 1-grams"),
        (("-0.2\tc </s>", "-0.2\tc"), "is not a number, 2 words"),
        (("ngram 3=1", "ngram 4=1"), "expected ngram 3=…"),
        (("\\2-grams:", "\\3-grams:"), "expected \\2-grams:"),
    ],
)
def test_a_broken_file_is_refused_with_the_line(tmp_path, change, message):
    path = tmp_path / "broken.arpa"
    path.write_text(SPARSE.replace(*change))
    with pytest.raises(DataError) as error:
        read_arpa(str(path))
    assert message in str(error.value) and "\n" not in str(error.value)
    assert "broken.arpa" in str(error.value)


def test_a_torn_packed_file_is_refused(tmp_path):
    path = tmp_path / "torn.arpa.gz"
    path.write_bytes(gzip.compress(SPARSE.encode())[:-20])
    with pytest.raises(DataError, match="is truncated"):
        read_arpa(str(path))
