import re
from pathlib import Path

import datasketch
import numpy as np
import pytest

from trainrig import config
from trainrig.corpus.signatures.minhash import (
    MinHash,
    choose_banding,
    compute_match_curve,
    compute_match_probability,
)
from trainrig.errors import ConfigError

DEFAULT = MinHash()
FINEWEB = MinHash(bands=14, rows=8)


@pytest.mark.parametrize(
    ("similarity", "probability"), [(0.70, 0.565), (0.75, 0.772), (0.80, 0.924), (0.85, 0.988)]
)
def test_finewebs_curve_is_the_published_one(similarity, probability):
    assert FINEWEB.compute_candidate_probability(similarity) == pytest.approx(probability, abs=5e-4)


def test_datasketchs_own_optimum_misses_more_than_half_at_the_threshold():
    index = datasketch.MinHashLSH(threshold=0.8, num_perm=128)
    assert (index.b, index.r) == (9, 13)
    assert compute_match_probability(0.8, index.b, index.r) == pytest.approx(0.399, abs=5e-4)


def test_the_default_finds_the_pairs_at_its_threshold():
    assert (DEFAULT.bands, DEFAULT.rows) == (18, 7)
    assert DEFAULT.compute_candidate_probability(0.8) == pytest.approx(0.9855, abs=5e-5)
    assert 1 - DEFAULT.compute_candidate_probability(0.9) == pytest.approx(8.2e-6, abs=1e-7)


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7, 0.75, 0.8, 0.9, 0.95, 1.0])
@pytest.mark.parametrize("permutations", [64, 112, 128, 256, 500])
def test_the_chosen_banding_finds_the_wanted_share_and_one_row_more_would_not(
    threshold, permutations
):
    for recall in (0.9, 0.95, 0.99):
        chosen = MinHash(threshold=threshold, permutations=permutations, recall=recall)
        assert chosen.compute_candidate_probability(threshold) >= recall
        assert permutations - chosen.rows < chosen.bands * chosen.rows <= permutations
        for rows in range(chosen.rows + 1, permutations + 1):
            assert compute_match_probability(threshold, permutations // rows, rows) < recall


def test_bands_and_rows_that_are_given_are_taken():
    given = MinHash(bands=20, rows=13, permutations=260, threshold=0.8)
    assert (given.bands, given.rows) == (20, 13)
    assert MinHash(rows=6).bands == 21


def run_file(**keys: object) -> MinHash:
    return config.build(MinHash, keys, "run.toml")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"bands": 20, "rows": 13},
            "20 bands of 13 rows need 260 permutations, more than 128; set permutations = 260, or "
            "leave bands and rows out",
        ),
        (
            {"threshold": 0.1, "permutations": 20},
            "20 bands of 1 rows find 87.8% of the pairs at the threshold, less than recall = 0.95; "
            "raise permutations or lower recall",
        ),
        (
            {"bands": 5},
            "5 bands of 7 rows find 69.2% of the pairs at the threshold, less than recall = 0.95; "
            "raise permutations or lower recall",
        ),
        ({"threshold": "high"}, "input should be a valid number, found 'high'"),
        ({"threshold": 1.2}, "input should be less than or equal to 1, found 1.2"),
        ({"permutations": 0}, "input should be greater than or equal to 1, found 0"),
    ],
)
def test_invalid_settings_are_refused_in_one_line(keys, message):
    with pytest.raises(ConfigError) as error:
        run_file(**keys)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_run_file_with_everything_written_out_means_the_same():
    for settings in (DEFAULT, MinHash(threshold=0.6), FINEWEB, MinHash(rows=6)):
        lines = config.to_toml(settings)
        again = config.build(MinHash, config.parse(lines, "all.toml"), "all.toml")
        assert again == settings
    assert "rows = 7  # default" in config.to_toml(DEFAULT)


def test_the_curve_has_the_probability_of_each_similarity():
    similarities, probabilities = compute_match_curve(DEFAULT)
    assert similarities[[0, 80, 100]].tolist() == [0, 0.8, 1]
    expected = [DEFAULT.compute_candidate_probability(similarity) for similarity in similarities]
    assert probabilities == pytest.approx(np.array(expected), abs=1e-12)


def test_chosen_bandings_are_the_known_ones():
    assert choose_banding(0.8, 128, 0.95) == (18, 7)
    assert choose_banding(0.8, 112, 0.95) == (16, 7)
    assert choose_banding(0.75, 112, 0.95) == (18, 6)
    assert choose_banding(0.8, 136, 0.95) == (17, 8)
    assert choose_banding(0.1, 3, 0.95) == (3, 1)  # finds too few, but no other choice finds more


def test_all_pages_say_the_same_share_found_at_the_threshold():
    found = f"{DEFAULT.compute_candidate_probability(0.8):.1%}"
    pages = Path(__file__).parents[3] / "docs"
    (dedup,) = re.findall(r"18 bands of 7 for \.8: ([\d.]+%)", (pages / "dedup.md").read_text())
    (row,) = re.findall(r"^\| 18 × 7,.*?\| ([\d.]+%)", (pages / "signatures.md").read_text(), re.M)
    assert dedup == row == found


def test_the_docs_show_the_defaults():
    docs = Path(__file__).parents[3] / "docs" / "signatures.md"
    (text,) = re.findall(r"```toml\n(.*?)```", docs.read_text(encoding="utf-8"), re.DOTALL)
    shown = config.parse(text, str(docs))["near_duplicates"]
    assert config.build(MinHash, shown, str(docs)) == DEFAULT
    assert [(b, r) for b, r in re.findall(r"^# bands = (\d+).*\n# rows = (\d+)", text, re.M)] == [
        (str(DEFAULT.bands), str(DEFAULT.rows))
    ]
