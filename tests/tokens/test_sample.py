import itertools

from hypothesis import given
from hypothesis import settings as tries
from hypothesis import strategies as st

from trainrig.tokens.sample import draw_sample
from trainrig.tokens.train import ByteLevelBPE

TEXTS = [f"the cat {n} sat on the mat; the hat of cat {n % 7} is flat" for n in range(400)]
SETTINGS = ByteLevelBPE(vocabulary=290)

TRAIN_AND_HASH = """
import hashlib
from trainrig.tokens.train import ByteLevelBPE, train_tokenizer
texts = [f"{n:x} words {n * n} and word {n % 11} of {n * 7919}" for n in range(5_000)]
print(hashlib.sha256(train_tokenizer(ByteLevelBPE(vocabulary=600), texts)).hexdigest())
"""


def test_a_sample_is_the_texts_of_the_lowest_ids_cut_where_it_is_full():
    documents = [("d", "ffff"), ("b", "bb"), ("a", "aaa"), ("c", "cccc")]
    assert draw_sample(documents, 7) == ["aaa", "bb", "cc"]
    assert draw_sample(documents, 9) == ["aaa", "bb", "cccc"]
    assert draw_sample(documents, 2) == ["aa"]
    assert draw_sample(documents, 100) == ["aaa", "bb", "cccc", "ffff"]
    assert draw_sample([], 5) == []


def test_a_sample_that_ends_inside_a_character_leaves_that_out():
    assert draw_sample([("a", "aé")], 2) == ["a"]


@tries(deadline=None)
@given(
    texts=st.lists(st.text(max_size=6), max_size=8),
    sample_bytes=st.integers(1, 30),
    data=st.data(),
)
def test_a_sample_does_not_depend_on_the_order_and_is_a_prefix_by_id(texts, sample_bytes, data):
    documents = list(zip(map(str, itertools.count(10)), texts, strict=False))
    sample = draw_sample(data.draw(st.permutations(documents)), sample_bytes)
    prefix = "".join(texts).encode()[:sample_bytes].decode(errors="ignore")
    assert "".join(sample) == prefix
