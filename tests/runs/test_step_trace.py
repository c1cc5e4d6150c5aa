import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainrig.config import to_toml
from trainrig.errors import ConfigError, DataError
from trainrig.runs.step_trace import trace
from trainrig.tokens.batches import IGNORE
from trainrig.tokens.prepare import Tokenization, tokenize
from trainrig.tokens.rows.packing import PackingPlan
from trainrig.tokens.shards.token_shards import TRAIN, TokenShards
from trainrig.train.pretrain import pretrain
from trainrig.train.run.metrics import read_series
from trainrig.train.run_file.run_files import Pretraining
from trainrig.train.run_report.run_page import write_report

STEPS = 4


@pytest.fixture
def run(make_run: Callable[..., Pretraining], tmp_path: Path) -> Pretraining:
    return make_run(tmp_path / "model", training={"steps": STEPS, "threads": 1})


@pytest.fixture
def run_file(run: Pretraining, tmp_path: Path) -> str:
    (tmp_path / "run.toml").write_text(to_toml(run))
    return str(tmp_path / "run.toml")


def list_windows(run: Pretraining) -> dict[str, dict[tuple[int, ...], list[str]]]:
    """Return the ids and the documents of each window, by source, by brute force."""
    shards = TokenShards.open(f"{run.tokens}/{TRAIN}")
    length = run.batches.sequence_length
    found: dict[str, dict[tuple[int, ...], list[str]]] = {}
    for source in shards.sources:
        ids = shards.read_window(source, 0, shards.tokens(source)).tolist()
        documents = [shards.read_documents(source, place, 1)[0].id for place in range(len(ids))]
        found[source] = {
            tuple(ids[start : start + length]): documents[start : start + length]
            for start in range(0, len(ids) - length, length)
        }
    return found


@pytest.mark.slow
def test_every_sequence_of_every_step_names_the_documents_its_ids_are_of(
    run: Pretraining, run_file: str
) -> None:
    windows = list_windows(run)
    for step in range(1, STEPS + 1):
        traced = trace(run_file, step)
        assert len(traced.sequences) == run.batches.global_batch
        for sequence in traced.sequences:
            expected = windows[sequence.source][sequence.ids]
            named = [d.id for d in sequence.documents for _ in range(d.tokens)]
            assert named == expected
            assert all(f"//{sequence.source}.example/" in d.url for d in sequence.documents)
            assert sequence.targets == sum(target != IGNORE for target in sequence.target_ids)


def test_padding_is_no_documents_token_and_lengths_add_up(
    run: Pretraining, make_run: Callable[..., Pretraining], tmp_path: Path
) -> None:
    tokens = str(tmp_path / "planned")
    make = Tokenization(
        documents=f"{Path(run.tokens).parent}/curated",
        tokenizer=f"{Path(run.tokens).parent}/tokenizer",
        output=tokens,
        workers=0,
        plans=PackingPlan(best_fit=(32,)),
    )
    tokenize(make)
    best_fit = make_run(tmp_path / "model", batches={"packing": {"kind": "BestFit"}})
    run_file = str(tmp_path / "best_fit.toml")
    Path(run_file).write_text(to_toml(best_fit).replace(run.tokens, tokens))
    sequences = [s for step in range(1, STEPS + 1) for s in trace(run_file, step).sequences]
    filled = [sum(document.tokens for document in s.documents) for s in sequences]
    assert min(filled) < 32 and max(filled) == 32
    for sequence, tokens_of in zip(sequences, filled, strict=True):
        assert set(sequence.target_ids[tokens_of:]) <= {IGNORE}
        assert sequence.epoch >= 0


def test_samples_are_numbered_through_the_steps(run_file: str) -> None:
    numbers = [s.sample for step in (1, 2) for s in trace(run_file, step).sequences]
    assert numbers == list(range(16))
    places = [(s.micro_batch, s.row) for s in trace(run_file, 1).sequences]
    assert places == [(number // 2, number % 2) for number in range(8)]


def test_a_corpus_row_leads_back_to_the_text(run: Pretraining, run_file: str) -> None:
    import pyarrow.parquet as pq

    kept = Path(run.tokens).parent / "curated" / "kept"
    for sequence in trace(run_file, 1).to_json()["sequences"]:
        first = sequence["documents"][0]
        row = pq.read_table(kept / first["corpus_file"]).to_pylist()[first["corpus_row"]]
        assert row["id"] == first["id"]
        if len(sequence["documents"]) == 1:
            assert sequence["text"] in row["text"] + "<|end_of_text|>"


@pytest.mark.slow
@pytest.mark.usefixtures("without_ray")
def test_a_run_folder_brings_the_loss_and_the_workers_own_logs(
    run: Pretraining, run_file: str, tmp_path: Path
) -> None:
    pretrain(run)
    traced = trace(run.output, 2)
    planned = trace(run_file, 2)
    assert traced.log == "agrees"
    assert traced.loss == read_series(run.output)[1]["train/loss"]
    assert traced.sequences == planned.sequences
    assert (planned.log, planned.loss) == ("not asked", None)
    assert "the workers logged the same samples" in traced.verdict
    log = next(Path(run.output).glob("samples/*/rank-00000.bin"))
    pairs = np.fromfile(log, dtype="<i8").reshape(-1, 2)
    pairs[pairs[:, 0] == 2, 1] += 1_000
    pairs.tofile(log)
    assert trace(run.output, 2).log == "differs"
    assert trace(run.output, 3).log == "agrees"


@pytest.mark.slow
@pytest.mark.usefixtures("without_ray")
def test_a_run_folder_is_traced_from_any_folder_and_when_it_was_moved_with_its_tokens(
    run: Pretraining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tmp_path / "before"
    after = tmp_path / "after"
    shutil.copytree(run.tokens, before / "tokens")
    monkeypatch.chdir(before)
    relative = run.model_copy(update={"tokens": "tokens", "output": "runs/model"})
    pretrain(relative)
    monkeypatch.chdir("/")
    assert trace(f"{before}/runs/model", 2).log == "agrees"
    assert write_report(f"{before}/runs/model") == f"{before}/runs/model/report.html"
    before.rename(after)
    assert trace(f"{after}/runs/model", 2).log == "agrees"
    # The path as earlier versions wrote it.
    Path(after, "runs/model/run.toml").write_text(to_toml(relative))
    assert trace(f"{after}/runs/model", 2).log == "agrees"


def test_sequences_of_one_source_alone(run_file: str) -> None:
    whole = trace(run_file, 1)
    some = trace(run_file, 1, "books")
    assert some.sequences == tuple(s for s in whole.sequences if s.source == "books")
    assert 0 < len(some.sequences) < len(whole.sequences)


def test_the_view_shows_each_sequence_with_its_documents(run_file: str) -> None:
    traced = trace(run_file, 1)
    texts = [text.plain for text in traced.render_texts(tokens=None)]
    assert len(texts) == len(traced.sequences)
    for text, sequence in zip(texts, traced.sequences, strict=True):
        assert f"sample {sequence.sample} " in text
        assert all(f"┃ {document.url}: " in text for document in sequence.documents)
    assert json.dumps(traced.to_json())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"step": 0}, ConfigError, "has the steps 1 to 4"),
        ({"step": 5}, ConfigError, "has the steps 1 to 4"),
        ({"source": "boks"}, ConfigError, r"no source 'boks'.*'books'"),
        ({"path": "nowhere"}, ConfigError, r"nowhere: no such file or folder"),
    ],
)
def test_missing_parts_of_the_run_are_named(
    run_file: str, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        trace(**{"path": run_file, "step": 1} | arguments)


def test_tokens_that_are_gone_and_other_stages_are_named(
    run: Pretraining, run_file: str, tmp_path: Path
) -> None:
    text = Path(run_file).read_text()
    Path(run_file).write_text(text.replace(run.tokens, f"{tmp_path}/gone"))
    with pytest.raises(DataError, match="gone does not exist"):
        trace(run_file, 1)
    Path(run_file).write_text('stage = "tokenize"')
    with pytest.raises(ConfigError, match=r"`tokenize`.*`pretrain`"):
        trace(run_file, 1)
