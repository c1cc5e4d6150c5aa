import numpy as np

from trainrig.corpus.dedup.dedup_decisions import digest_rows, find_repeated_documents


def test_half_a_digest_in_common_makes_no_repeat_and_the_best_comes_first():
    words = np.array([[7, 1], [7, 2], [7, 1], [7, 1], [8, 1]], np.uint64)
    ranks = np.array([5, 0, 3, 3, 0], np.uint64)
    ids = np.array([[1, 0], [2, 0], [9, 0], [4, 0], [5, 0]], np.uint64)
    found = find_repeated_documents(
        digest_rows(words, ranks, ids, np.arange(10, 15, dtype=np.uint64))
    )
    # 13 has the best rank, and the lower id among equal ranks.
    assert found.tolist() == [(12, 13, 4, 0), (10, 13, 4, 0)]
