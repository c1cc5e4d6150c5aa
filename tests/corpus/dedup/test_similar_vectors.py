"""Duplicates among vectors against a loop over all pairs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig.corpus.dedup import exact_vectors
from trainrig.corpus.dedup.exact_vectors import compute_cosines, find_duplicates, round_finely


def find_by_loop(vectors, threshold):
    """Decide vector after vector, by their cosines with all kept ones."""
    fine = round_finely(vectors)
    kept = []
    found = []
    for number in range(len(vectors)):
        cosines = [compute_cosines(fine[[number]], fine[[other]])[0, 0] for other in kept]
        best = int(np.argmax(cosines)) if cosines else -1
        if cosines and cosines[best] >= threshold:
            found.append((kept[best], cosines[best]))
        else:
            found.append((-1, None))
            kept.append(number)
    return found


@st.composite
def vectors_with_copies(draw):
    """Draw vectors of few directions, so that chains and equal cosines are frequent."""
    rows = draw(st.integers(0, 30))
    seed = draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)
    directions = random.normal(size=(4, 3))
    noise = random.choice([0.0, 0.05, 0.3], size=(rows, 1)) * random.normal(size=(rows, 3))
    return (directions[random.integers(0, 4, rows)] + noise).astype(np.float32)


@pytest.mark.parametrize(("block", "columns"), [(512, 8_192), (4, 3), (1, 1)])
@given(vectors=vectors_with_copies(), threshold=st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_duplicates_are_those_of_a_loop(block, columns, vectors, threshold):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact_vectors, "_BLOCK", block)
        patch.setattr(exact_vectors, "_COLUMNS", columns)
        partners, cosines = find_duplicates(vectors, threshold)
    wanted = find_by_loop(vectors, threshold)
    assert partners.tolist() == [partner for partner, _ in wanted]
    assert [None if np.isnan(c) else c for c in cosines] == [cosine for _, cosine in wanted]


def test_the_ends_of_a_chain_stay():
    angles = np.radians([0, 10, 20])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    partners, cosines = find_duplicates(vectors, 0.97)  # the cosine of 14 degrees
    assert partners.tolist() == [-1, 0, -1]
    assert cosines[1] == pytest.approx(np.cos(np.radians(10)))
