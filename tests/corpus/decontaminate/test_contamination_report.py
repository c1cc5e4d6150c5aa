import dataclasses
import json
from pathlib import Path

from trainrig.corpus.decontaminate.benchmark_index import Examples, Index
from trainrig.corpus.decontaminate.contamination_report import (
    CONTEXT,
    SAMPLES,
    CommonRow,
    ContaminationTallies,
    pick_samples,
    sample,
    tally_contamination,
)
from trainrig.corpus.decontaminate.decide import Touch, decide
from trainrig.corpus.decontaminate.decontamination_settings import (
    GPT3,
    Decontamination,
    Llama2,
    PaLM,
    Style,
)
from trainrig.corpus.decontaminate.document_matches import match, merge

TWENTY = [f"w{i}" for i in range(20)]
SET = Examples(
    "twenties",
    (1, 2, 3, 4),
    tuple((" ".join(words),) for words in (TWENTY, reversed(TWENTY), TWENTY[::2] * 2, TWENTY[:5])),
)
SHORT = Examples("short", (1,), (("one two",),))


def tally(style: Style, folder: Path, *texts: str) -> ContaminationTallies:
    index = Index.from_examples(Decontamination(folder="-", style=style), [SET, SHORT])
    matches = match(index, texts)
    matches.save(str(folder / "m"))
    totals = merge(index, [str(folder / "m")])
    decision = decide(index, matches, totals)
    samples = [
        sample(
            touch, f"id{touch.document}", f"http://e.org/{touch.document}", texts[touch.document]
        )
        for touch in decision.touches
    ]
    return tally_contamination(index, totals, decision.compute_counts(), samples)


def test_under_gpt3_one_n_gram_makes_an_example_dirty(tmp_path: Path):
    found = tally(GPT3(), tmp_path, "x " + " ".join(TWENTY[3:16]), "nothing")
    row = found.benchmarks[0]
    # The fifth percentile of four examples is the shortest: 5 words, so n is 8.
    assert (row.words, row.examples, row.found, row.dirty, row.clean) == (8, 4, 1, 1, 2)
    assert (row.not_looked_for, row.between, row.common_only) == (1, 0, 0)
    assert (row.documents, row.documents_fallen, row.documents_cut) == (1, 1, 0)
    assert (found.documents, found.contaminated, found.style) == (2, 1, "GPT3")
    # 6 of its 13 n-grams are found.
    shares = {share.least_share: share.examples for share in found.shares[:5]}
    assert shares == {0.2: 1, 0.5: 0, 0.7: 0, 0.8: 0, 1.0: 0}
    short = found.benchmarks[1]
    assert (short.examples, short.not_looked_for, short.clean, short.dirty) == (1, 1, 0, 0)


def test_finds_by_common_phrases_alone_are_separated(tmp_path: Path):
    texts = ["a " + " ".join(TWENTY[:8])] * 3
    found = tally(GPT3(most_documents=2), tmp_path, *texts, "é " + " ".join(TWENTY[1:9]))
    assert found.common == (CommonRow(" ".join(TWENTY[:8]), 3, "twenties"),)
    assert tally(GPT3(), tmp_path, *texts).common == ()
    row = tally(GPT3(most_documents=2), tmp_path, *texts).benchmarks[0]
    assert (row.found, row.common_only, row.dirty, row.documents) == (1, 1, 1, 0)


def test_examples_are_held_by_all_documents_together(tmp_path: Path):
    halves = [" ".join(TWENTY[:14]), " ".join(TWENTY[7:])]
    found = tally(PaLM(), tmp_path, *halves)
    assert (found.benchmarks[0].dirty, found.benchmarks[0].documents) == (1, 0)
    assert found.shares[4].examples == 1  # each of its n-grams is in one half or the other


def test_under_llama2_there_is_something_between_clean_and_dirty(tmp_path: Path):
    row = tally(Llama2(), tmp_path, " ".join(TWENTY[:12]), " ".join(TWENTY[::2])).benchmarks[0]
    # The four examples have 12 of 20 units, none, all 20 (by ten words that occur twice), and 5
    # units that cannot be found.
    assert (row.clean, row.between, row.dirty, row.not_looked_for) == (1, 1, 1, 1)


def test_samples_show_the_common_text(tmp_path: Path):
    text = "a" * 200 + " " + " ".join(TWENTY) + " " + "b" * 200
    start = text.index("w0")
    shown = sample(Touch(0, "s", 4, start, text.index(" b")), "id", "http://e.org", text)
    assert shown.text == " ".join(TWENTY)
    assert shown.before == "a" * (CONTEXT - 1) + " "
    assert shown.after == " " + "b" * (CONTEXT - 1)
    many = [dataclasses.replace(shown, id=f"{i:02}") for i in (9, 3, 7, 1, 5)]
    assert [picked.id for picked in pick_samples(many)] == ["01", "03", "05"][:SAMPLES]
    assert pick_samples(pick_samples(many[:3]) + pick_samples(many[3:])) == pick_samples(many)


def test_the_account_is_json(tmp_path: Path):
    found = tally(GPT3(), tmp_path, "<b> " + " ".join(TWENTY), "nothing")
    assert json.loads(json.dumps(dataclasses.asdict(found)))["benchmarks"][0]["dirty"] == 1
