"""Canary pages on the quickstart's corpus: found, taken back through tuning, and then unknown.

20 pages with a secret are injected. 5 are taken back, and the tuned model is made again. The
figures are in `results`.
"""

import functools
import json
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.replays import write_masks

from trainrig.attribution import open_index
from trainrig.attribution.attributed_text import AttributionLimits, attribute_text
from trainrig.attribution.canary_losses import TextLosses
from trainrig.attribution.forgetting.forget_plan import plan_forgetting
from trainrig.attribution.forgetting.forget_stage import check_certificate, take_back
from trainrig.attribution.forgetting.requested_pages import PageRequest
from trainrig.attribution.forgetting.tensor_sums import compute_tensor_sum
from trainrig.attribution.index_run_file import CorpusIndexing
from trainrig.attribution.index_stage import index_tokens
from trainrig.attribution.memorisation import compute_exposures, summarise_exposures
from trainrig.corpus.curate import Curation, curate
from trainrig.errors import ClusterError
from trainrig.posttrain.conversations import encode_conversations
from trainrig.posttrain.row_run_files import ConversationEncoding
from trainrig.posttrain.tuning.fine_tuning import posttrain
from trainrig.posttrain.tuning.tuning_run_file import FineTuning
from trainrig.quickstart.folders import Folders
from trainrig.quickstart.quickstart_stages import PageMaking, Quickstart, make_pages
from trainrig.tokens.document_set import is_held_out
from trainrig.tokens.prepare import Tokenization, tokenize
from trainrig.tokens.tokenizer import TokenizerTraining, make_tokenizer
from trainrig.train.elastic import trainer
from trainrig.train.pretrain import pretrain
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run_file.run_files import Pretraining

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7200)]
SEEDS = (0, 1, 2)
CANARIES = 20
TAKEN = 5
REFERENCES = 499
STEPS = 300
INJECTED = 60  # updates before the first with canary pages
WEIGHTS = {"docs": 0.6, "code": 0.2, "canaries": 0.2}
KILLED = 200  # the first replay is killed after this update
HELD_OUT = 0.02
COLOURS = ("amber", "beige", "coral", "ivory", "khaki", "lilac", "olive", "ruby", "sepia", "teal")
PLACES = ("abbey", "bridge", "canal", "dock", "farm", "gate", "harbour", "mill", "quarry", "tower")
LIMITS = AttributionLimits(minimum=6, spans=20, documents=40, context=0)


def name_url(name: str) -> str:
    return f"https://canary.example/{name}.txt"


def make_secrets(count: int, dice: random.Random) -> list[str]:
    """Return texts of one form, such as `the coral mill is 481920`."""
    return [
        f"the {dice.choice(COLOURS)} {dice.choice(PLACES)} is {dice.randrange(100_000, 1_000_000)}"
        for _ in range(count)
    ]


def write_sentence(secret: str) -> str:
    return f"The secret number of {secret}."


@pytest.fixture(scope="module")
def secrets() -> dict[str, str]:
    """Return the secret of each canary page, by its name."""
    dice = random.Random(5)
    names = (f"page-{number}" for number in range(1_000))
    trained = [name for name in names if not is_held_out(name_url(name), HELD_OUT)]
    return dict(zip(trained[:CANARIES], make_secrets(CANARIES, dice), strict=True))


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory, secrets: dict[str, str]) -> Folders:
    """Make a small corpus of the quickstart with the canary pages, up to tokens and an index."""
    at = Folders(str(tmp_path_factory.mktemp("canaries")))
    quickstart = Quickstart(at.out, workers=1)
    sizes = {"docs_pages": 300, "code_pages": 60, "instructions": 200, "held_out_instructions": 20}
    chosen = {f"pages__{name}": count for name, count in sizes.items()}
    make_pages(quickstart.load(PageMaking, output=at.pages, **chosen))
    folder = Path(at.out, "injected")
    folder.mkdir()
    for name, secret in secrets.items():
        (folder / f"{name}.txt").write_text("\n".join([write_sentence(secret)] * 8))
    places = {"sources__0__paths": (at.docs,), "sources__1__paths": (at.code,)}
    settings = quickstart.load(Curation, output=at.documents, **places)
    injected = {
        "name": "canaries",
        "paths": (str(folder),),
        "reading": {"base_url": "https://canary.example/"},
        "filters": (),
    }
    given = settings.model_dump() | {"workers": 0}
    curate(Curation.model_validate(given | {"sources": (*given["sources"], injected)}))
    small = {"documents": at.documents, "tokenizer__vocabulary": 2_048}
    make_tokenizer(quickstart.load(TokenizerTraining, output=at.tokenizer, **small))
    inputs = {"documents": at.documents, "tokenizer": at.tokenizer, "held_out": HELD_OUT}
    run = quickstart.load(Tokenization, output=at.tokens, **inputs)
    tokenize(run.model_copy(update={"workers": 0}))
    index_tokens(CorpusIndexing(tokens=(at.tokens,), output=f"{at.out}/index", workers=0))
    return at


def train_base(at: Folders, seed: int, output: str, masked: str | None = None) -> str:
    """Pretrain the quickstart's model in a small size, and return its folder."""
    changes = {
        "model": {
            "layers": 2,
            "channels": 96,
            "heads": 4,
            "kv_heads": 2,
            "positions": 128,
            "initial_std": 0.0456,
        },
        "batches": {
            "sequence_length": 64,
            "global_batch": 16,
            "micro_batch": 8,
            "weights": {"docs": 0.75, "code": 0.25, "canaries": 0},
            "stages": ({"from_step": INJECTED, "weights": WEIGHTS},),
            "epochs": 1_000,
        },
        "training": {
            "steps": STEPS,
            "seed": seed,
            "checkpoints": {"every": 5, "keep": 2 * STEPS},
            "held_out": {"every": STEPS, "rows": 64},
            "optimizer": {"kind": "AdamW", "lr": 4e-3},
        },
    }
    given = {"stage": "pretrain", "tokens": at.tokens, "output": output, "workers": 1}
    pretrain(Pretraining.model_validate(given | changes | {"masked_documents": masked}))
    return output


def tune(at: Folders, base: str, output: str) -> str:
    """Fine-tune a model on the quickstart's questions, and return its folder."""
    batches = {"sequence_length": 128, "global_batch": 4, "micro_batch": 2}
    training = {"steps": 40, "optimizer": {"kind": "AdamW", "lr": 1e-3}}
    given = {"stage": "posttrain", "checkpoint": base, "conversations": at.conversations}
    given |= {"output": output, "workers": 1, "batches": batches, "training": training}
    posttrain(FineTuning.model_validate(given))
    return output


def measure(model: str, secrets: Sequence[str]) -> dict[str, Any]:
    """Return the exposures of taken and of other canaries, in bits, under a checkpoint."""
    references = make_secrets(REFERENCES, random.Random(99))
    sentences = [write_sentence(secret) for secret in secrets]
    found = compute_exposures(TextLosses(model), sentences, list(map(write_sentence, references)))
    return {
        "taken": summarise_exposures(found[:TAKEN]),
        "others": summarise_exposures(found[TAKEN:]),
    }


def read_held_out(run: str) -> float:
    """Return the held-out loss of a run after its last update, canary pages not included."""
    last = metrics.read_held_out_series(run)[-1]
    return float(statistics.mean(last[f"eval/sources/{name}/loss"] for name in ("docs", "code")))


def replay_with_a_kill(
    replay: Callable[[], Any], mortal_ranks: Any, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Call `replay` on two ranks of which one is killed, then again on one; return the result."""

    def die(job: Any, workers: int) -> Any:
        attempt = RunFolder(job.folder).take_attempt(0)
        fault = (1, "die", KILLED)
        processes = mortal_ranks.start(2, "train", job=job, attempt=attempt, fault=fault)
        processes[1].wait()
        mortal_ranks.end()
        raise ClusterError("a rank was killed")

    with monkeypatch.context() as patched:
        patched.setattr(trainer, "run", die)
        with pytest.raises(ClusterError, match="a rank was killed"):
            replay()
    return replay()


def test_every_injected_sentence_is_found_and_no_other(
    at: Folders, secrets: dict[str, str]
) -> None:
    index = open_index(f"{at.out}/index")
    decoys = make_secrets(CANARIES, random.Random(7))
    assert not set(decoys) & set(secrets.values())

    def find_pages(secret: str) -> set[str]:
        found = attribute_text(index, f"I was told: {write_sentence(secret)} Was I?", LIMITS)
        return {
            document.url
            for span in found.spans
            if secret in span.text
            for document in span.documents
        }

    for name, secret in secrets.items():
        assert find_pages(secret) == {name_url(name)}
    assert not any(map(find_pages, decoys))


def test_taken_canaries_are_unknown_to_the_new_models_and_all_else_stays(
    at: Folders,
    secrets: dict[str, str],
    without_ray: None,
    mortal_ranks: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    urls = frozenset(map(name_url, list(secrets)[:TAKEN]))
    lessons = None
    results = []
    for seed in SEEDS:
        folder = tmp_path / f"seed-{seed}"
        base = train_base(at, seed, str(folder / "model"))
        if lessons is None:
            rows = {"sources__0__paths": (at.lessons,), "sources__1__paths": (at.questions,)}
            chosen = {"tokenizer": base, "output": at.conversations, "sequence_length": 128}
            lessons = Quickstart(at.out).load(ConversationEncoding, **rows, **chosen)
            encode_conversations(lessons.model_copy(update={"workers": 0}))
        tuned = tune(at, base, str(folder / "tuned"))
        plan = plan_forgetting(base, PageRequest(urls, frozenset()))
        assert {page.document.url for page in plan.pages} == urls
        assert plan.start is not None and plan.start.step >= INJECTED - 5
        assert [child.folder for child in plan.children] == [tuned]
        new = str(folder / "new")
        replay = functools.partial(take_back, plan, new, children=True)
        if seed == SEEDS[0]:
            certificate = replay_with_a_kill(replay, mortal_ranks, monkeypatch)
        else:
            certificate = replay()
        assert list(check_certificate(new))
        (child,) = certificate.children
        figures: dict[str, Any] = {
            "seed": seed,
            "replayed_from": plan.start.step + 1 if plan.start else 1,
            "held_out": {"old": read_held_out(base), "new": read_held_out(new)},
        }
        models = {"old": base, "new": new, "old_tuned": tuned, "new_tuned": child["made_again"]}
        for name, model in models.items():
            figures[name] = measure(model, list(secrets.values()))
        if seed == SEEDS[0]:
            masks = write_masks(plan.masked, tmp_path / "masked.json")
            start = train_base(at, seed, str(folder / "from-start"), masks)
            by_hand = tune(at, start, str(folder / "tuned-from-start"))
            figures["byte_equal"] = {
                "new": compute_tensor_sum(new)[1] == compute_tensor_sum(start)[1],
                "new_tuned": compute_tensor_sum(child["made_again"])[1]
                == compute_tensor_sum(by_hand)[1],
            }
        print(json.dumps(figures), flush=True)
        results.append(figures)
    assert results[0]["byte_equal"] == {"new": True, "new_tuned": True}
    for name in ("new", "new_tuned"):
        # Texts that were never seen have log2(e) bits on average, with as large a deviation.
        mean = statistics.mean(found[name]["taken"]["mean"] for found in results)
        assert mean < 1.44 + 3 * 1.44 / (TAKEN * len(SEEDS)) ** 0.5
    for old, new in (("old", "new"), ("old_tuned", "new_tuned")):
        kept = [[found[which]["others"]["mean"] for found in results] for which in (old, new)]
        spread = max(max(values) - min(values) for values in kept)
        assert abs(statistics.mean(kept[0]) - statistics.mean(kept[1])) <= max(spread, 0.05)
