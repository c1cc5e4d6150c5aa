"""Linear probes and retrieval, compared with brute force, torch, and whole evaluations."""

import json
import math

import numpy as np
import pytest
import torch

from trainrig.errors import ConfigError, DataError
from trainrig.evaluate.engine.text_embedder import TextEmbedder
from trainrig.evaluate.engine.vector_scores import compute_ranks, fit_classifier, score_ranks
from trainrig.evaluate.engine.vector_tasks import LinearProbe, load_vector_task
from trainrig.evaluate.evaluation import evaluate
from trainrig.evaluate.evaluation_run_file import Evaluation
from trainrig.evaluate.paired_comparison import compare
from trainrig.evaluate.scorecards import read_scorecard
from trainrig.models.architecture.encoder_configs import EncoderConfig
from trainrig.models.decoder import initialise
from trainrig.models.encoder import build_model
from trainrig.tokens.tokenizers.tokenizer_kinds import ByteLevelBPE
from trainrig.train import checkpoint

TOKENIZER = ByteLevelBPE(vocabulary=264, extra=("<|mask|>",)).train([]).decode()
SIZES = {"layers": 2, "channels": 32, "heads": 4, "vocabulary": 320, "positions": 32}
WORDS = {"sea": "the sea is grey {}", "sum": "1 + {} = 7"}
ROWS = [{"text": text.format(n), "label": label} for n in range(8) for label, text in WORDS.items()]
PROBE = 'kind = "LinearProbe"\nname = "probe"\ntrain = "train.jsonl"\nrows = "test.jsonl"\n'
RETRIEVAL = (
    'kind = "Retrieval"\nname = "search"\nqueries = "queries.jsonl"\n'
    'documents = "documents.jsonl"\nrelevance = "relevance.jsonl"\nrecall_at = [1, 3]\n'
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Write an untrained encoder and return its run folder."""
    config = EncoderConfig.model_validate(SIZES)
    network = build_model(config)
    initialise(network, 3)
    folder = str(tmp_path_factory.mktemp("models") / "encoder")
    checkpoint.write_model(folder, config, TOKENIZER, network.state_dict())
    return folder


@pytest.fixture
def files(tmp_path):
    """Write rows and task files, and return a function that replaces rows: `files(name, rows)`."""

    def write(name, rows):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(lines)

    write("train", ROWS[4:])
    write("test", ROWS[:4])
    write("queries", [{"id": n, "text": f"sea {n} sea"} for n in range(3)])
    write("documents", [{"id": f"d{n}", "text": f"{'grey ' * (n % 3)}sea {n}"} for n in range(9)])
    pairs = [(0, "d0", 2), (0, "d4", 1), (1, "d1", 1), (1, "d2", 0)]
    write("relevance", [{"query": q, "document": d, "relevance": g} for q, d, g in pairs])
    (tmp_path / "probe.toml").write_text(PROBE)
    (tmp_path / "search.toml").write_text(RETRIEVAL)
    return write


@pytest.fixture
def evaluation(model, files, tmp_path):
    def make(*tasks, output="scores", **settings):
        given = {
            "checkpoint": model, "output": str(tmp_path / output), "task_rows": str(tmp_path),
            "vector_tasks": tuple(str(tmp_path / f"{task}.toml") for task in tasks),
        }  # fmt: skip
        return Evaluation.model_validate(given | settings)

    return make


@pytest.mark.parametrize("standardise", [True, False])
def test_a_probe_is_at_the_minimum_that_torch_finds(standardise):
    generator = np.random.default_rng(5)
    vectors = generator.normal(size=(60, 6)) * [1, 2, 3, 0.5, 1, 0] + 1
    classes = (vectors[:, 0] + generator.normal(size=60) > 1).astype(np.int64) + (vectors[:, 1] > 2)
    found = fit_classifier(vectors, classes, 3, 0.5, standardise)
    scaled = torch.from_numpy((vectors - found.means_C) / found.scales_C)
    assert (np.abs(scaled.std(0, unbiased=False) - 1)[:5] < 1e-9).all() == standardise
    weights = torch.zeros(3, 7, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weights], max_iter=500, tolerance_grad=1e-10, line_search_fn="strong_wolfe"
    )

    def loss():
        optimizer.zero_grad()
        logits = scaled @ weights[:, :6].T + weights[:, 6]
        nats = torch.nn.functional.cross_entropy(logits, torch.from_numpy(classes), reduction="sum")
        total = nats + 0.25 * weights[:, :6].square().sum()
        total.backward()
        return total

    for _ in range(5):
        optimizer.step(loss)
    theirs = weights.detach().numpy()
    np.testing.assert_allclose(found.weights_KC, theirs[:, :6], atol=1e-4)
    # Biases are determined only up to a common constant.
    ours = found.bias_K - found.bias_K.mean()
    np.testing.assert_allclose(ours, theirs[:, 6] - theirs[:, 6].mean(), atol=1e-4)
    again = fit_classifier(vectors, classes, 3, 0.5, standardise)
    assert (again.weights_KC == found.weights_KC).all()


def rank_by_brute_force(queries, documents, wanted, grades, at):
    """Return ranks and scores by sorting all documents of each query."""
    found = []
    for query, numbers, own in zip(queries, wanted, grades, strict=True):
        products = [float(np.float32(query @ d)) for d in documents]
        order = sorted(range(len(documents)), key=lambda n: (-products[n], n))
        gain = dict(zip(numbers.tolist(), own, strict=True))
        reached = sum(gain.get(d, 0) / math.log2(p + 2) for p, d in enumerate(order[:10]))
        ideal = sum(g / math.log2(p + 2) for p, g in enumerate(sorted(own, reverse=True)[:10]))
        first = next(p for p, d in enumerate(order) if d in gain)
        recalls = {f"recall@{k}": len(set(order[:k]) & set(gain)) / len(gain) for k in at}
        found.append({"ndcg@10": reached / ideal, "mrr": 1 / (first + 1)} | recalls)
    return found


def test_ranks_and_scores_equal_sorting_all_documents():
    generator = np.random.default_rng(2)
    # Small whole numbers make products exact and ties frequent.
    queries = generator.integers(-2, 3, (70, 4)).astype(np.float32)
    documents = generator.integers(-2, 3, (40, 4)).astype(np.float32)
    wanted = [generator.choice(40, size=n % 14 + 1, replace=False) for n in range(70)]
    grades = [generator.integers(1, 4, len(relevant)).tolist() for relevant in wanted]
    ranks = compute_ranks(queries, documents, wanted)
    found = [score_ranks(r, g, (1, 5)) for r, g in zip(ranks, grades, strict=True)]
    for ours, theirs in zip(
        found, rank_by_brute_force(queries, documents, wanted, grades, (1, 5)), strict=True
    ):
        assert ours == pytest.approx(theirs)


@pytest.mark.slow
def test_an_evaluation_has_both_with_errors_rows_and_a_page(evaluation, model, tmp_path):
    assert evaluate(evaluation("probe", "search")).counts["tasks"]["probe"] >= 0.5
    card = read_scorecard(str(tmp_path / "scores"))
    probe = card.tasks["probe"]
    search = card.tasks["search"]
    assert (probe.metric, probe.rows) == ("accuracy", 4)
    assert list(search.metrics) == ["ndcg@10", "mrr", "recall@1", "recall@3"]
    assert search.rows == 2 and search.headline.error is not None  # the third query has no document
    page = (tmp_path / "scores/report.html").read_text()
    assert "accuracy" in page and "ndcg@10" in page
    # Sort all documents by the vectors of `embed`.
    task = load_vector_task(str(tmp_path / "search.toml"), str(tmp_path))
    embedder = TextEmbedder.open(model, None)
    queries = embedder.embed(["sea 0 sea", "sea 1 sea"], task)
    documents = embedder.embed([f"{'grey ' * (n % 3)}sea {n}" for n in range(9)], task)
    wanted = [np.array([0, 4]), np.array([1])]
    by_hand = rank_by_brute_force(queries, documents, wanted, [[2, 1], [1]], (1, 3))
    for name, score in search.metrics.items():
        assert score.value == pytest.approx(np.mean([scores[name] for scores in by_hand]))
    again = evaluation("probe", "search", output="again")
    evaluate(again)
    for name in ("probe", "search"):
        rows = [tmp_path / out / "rows" / name / "00000.jsonl" for out in ("scores", "again")]
        assert rows[0].read_bytes() == rows[1].read_bytes()
    (pair,) = compare([str(tmp_path / "scores"), str(tmp_path / "again")])
    assert {compared.task for compared in pair.tasks} == {"probe", "search"}


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("test", [{"text": "a", "label": "new"}], r"label 'new'.*no row"),
        ("test", [{"text": "", "label": "sea"}], r"row 1: `text`.*''"),
        (
            "train",
            [{"text": "a", "label": 0.5}],
            "`label` must be a text or a whole number, but is 0.5",
        ),
        ("train", [{"text": "a", "label": "x"}], "all rows have the label 'x'"),
        ("queries", [{"text": "a"}], r"row 1.*field `id`"),
        ("documents", [{"id": 1, "text": "a"}] * 2, "`id` 1 is repeated"),
        ("relevance", [{"query": 9, "document": "d0"}], "query '9' is not in"),
        ("relevance", [{"query": 0, "document": "d99"}], "document 'd99' is not in"),
        ("relevance", [{"query": 0, "document": "d0"}] * 2, "with document 'd0' is repeated"),
        ("relevance", [{"query": 0, "document": "d0", "relevance": "x"}], "must be a number"),
        (
            "relevance",
            [{"query": 0, "document": "d0", "relevance": 0}],
            "no row relates a document",
        ),
    ],
)
def test_unusable_rows_are_refused_with_their_position(name, rows, message, evaluation, files):
    files(name, rows)
    task = "probe" if name in ("train", "test") else "search"
    with pytest.raises(DataError, match=message):
        evaluate(evaluation(task))


def test_invalid_task_files_are_refused(evaluation, files, tmp_path):
    (tmp_path / "odd.toml").write_text('kind = "Probe"\n')
    with pytest.raises(ConfigError, match="must be LinearProbe or Retrieval"):
        evaluate(evaluation("odd"))
    with pytest.raises(ConfigError, match=r"set `task_rows`.*folder"):
        load_vector_task(str(tmp_path / "probe.toml"), None)
    with pytest.raises(ConfigError, match="2 tasks are named 'probe'"):
        evaluate(evaluation("probe", "probe"))
    with pytest.raises(ValueError, match="nothing to evaluate"):
        evaluation()
    (tmp_path / "test.jsonl").unlink()
    with pytest.raises(DataError, match=r"no such file.*'probe'"):
        evaluate(evaluation("probe"))
    assert LinearProbe.model_validate(
        {"name": "a", "train": "t", "rows": "r"}
    ).penalty == pytest.approx(1)
