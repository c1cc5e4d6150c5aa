"""Stages whose native code dies on one record: it is quarantined, and the rest is as without it."""

import functools
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from trainrig import manifest, storage
from trainrig.corpus import curate as curation
from trainrig.corpus.curation_settings import Curation, CurationSource
from trainrig.evaluate.engine import embed_stage
from trainrig.evaluate.engine.embed_run_file import DocumentEmbedding
from trainrig.models.architecture.encoder_configs import EncoderConfig
from trainrig.models.decoder import initialise
from trainrig.models.encoder import build_model
from trainrig.posttrain import conversations
from trainrig.posttrain.row_run_files import ConversationEncoding
from trainrig.ray_runtime import ray_session
from trainrig.tokens import prepare
from trainrig.tokens.document_set import JSONL
from trainrig.tokens.tokenizers.tokenizer_kinds import ByteLevelBPE
from trainrig.train import checkpoint

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.chaos]

DEADLY = "is deadly"
ROWS = 6
AT = 4  # number of the deadly row


@pytest.fixture(scope="module", autouse=True)
def local_ray() -> Iterator[None]:
    os.environ.pop("RAY_ADDRESS", None)
    ray_session.connect(2, "tests")
    import ray

    # Workers cannot import a test file by its name.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def die_on(owner: Any, name: str, find_texts: Callable[..., Any]) -> None:
    """Make the function `name` of `owner` kill its process on a deadly text."""
    original = getattr(owner, name)

    def function(*arguments: Any, **keywords: Any) -> Any:
        if DEADLY in str(find_texts(*arguments)):
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **keywords)

    setattr(owner, name, function)


def patch_curate() -> None:
    from trainrig.corpus.operators import text_operators

    die_on(text_operators, "measure", lambda texts, *rest: texts)


def patch_tokenize() -> None:
    from trainrig.tokens.tokenizers.encode import Encoder

    die_on(Encoder, "encode_batch", lambda self, texts: texts)


def patch_conversations() -> None:
    from trainrig.posttrain import conversations

    die_on(conversations, "build_samples", lambda renderer, example, rules: example)


def patch_embed() -> None:
    from trainrig.evaluate.engine.text_embedder import TextEmbedder

    die_on(TextEmbedder, "embed", lambda self, texts, run: texts)


def make_deadly_work(make_work: Callable[..., Any], patch: Callable[[], None], *given: Any) -> Any:
    """Return the work of a stage, in a process that dies on a deadly text."""
    patch()
    return make_work(*given)


def write_rows(path: Path, rows: Sequence[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def make_texts(folder: Path) -> str:
    words = ("the sea", "a mirror", "no wind", "two cats", DEADLY, "a lamp")
    rows = [{"url": f"http://a/{n}", "text": f"{text} " * 20} for n, text in enumerate(words)]
    return write_rows(folder / "rows.jsonl", rows)


def run_curate(folder: Path, output: str, workers: int, tokens: str) -> manifest.Manifest:
    source = CurationSource(name="web", paths=(make_texts(folder),), filters=())
    return curation.curate(Curation(output=output, workers=workers, sources=(source,)))


def run_tokenize(folder: Path, output: str, workers: int, tokens: str) -> manifest.Manifest:
    tokenizer = folder / "tokenizer.json"
    tokenizer.write_bytes(ByteLevelBPE(vocabulary=263).train([]))
    documents = (JSONL(paths=(make_texts(folder),), source="web", url="url"),)
    return prepare.tokenize(
        prepare.Tokenization(
            documents=documents,
            tokenizer=str(tokenizer),
            output=output,
            workers=workers,
            held_out=0,
        )
    )


def run_conversations(folder: Path, output: str, workers: int, tokens: str) -> manifest.Manifest:
    rows = [{"prompt": DEADLY if n == AT else f"a {n}", "completion": "b"} for n in range(ROWS)]
    source = {"source": "chats", "paths": (write_rows(folder / "rows.jsonl", rows),)}
    given = {
        "sources": (source,),
        "tokenizer": tokens,
        "output": output,
        "workers": workers,
        "sequence_length": 64,
        "held_out": 0,
    }
    return conversations.encode_conversations(ConversationEncoding.model_validate(given))


def run_embed(folder: Path, output: str, workers: int, tokens: str) -> manifest.Manifest:
    model = folder / "model"
    if not model.exists():
        tokenizer = ByteLevelBPE(vocabulary=264, extra=("<|mask|>",)).train([]).decode()
        sizes = {"layers": 1, "channels": 16, "heads": 2, "vocabulary": 320, "positions": 24}
        config = EncoderConfig.model_validate(sizes)
        built = build_model(config)
        initialise(built, 3)
        checkpoint.write_model(str(model), config, tokenizer, built.state_dict())
    documents = (JSONL(paths=(make_texts(folder),), source="web", url="url"),)
    return embed_stage.embed(
        DocumentEmbedding(
            checkpoint=str(model), documents=documents, output=output, workers=workers
        )
    )


# The module of each stage, its function that makes the work, what kills, and the stage's call; then
# the manifest's count of finished records, and that of records in quarantine.
STAGES: dict[str, tuple[Any, str, Callable[[], None], Callable[..., manifest.Manifest], str, str]]
STAGES = {
    "curate": (
        *(curation, "read_all_pages", patch_curate, run_curate),
        *("documents_extracted", "quarantined"),
    ),
    "tokenize": (
        *(prepare, "_make_work", patch_tokenize, run_tokenize),
        *("train_documents", "refused"),
    ),
    "conversations": (
        *(conversations, "_make_work", patch_conversations, run_conversations),
        *("train_conversations", "quarantined"),
    ),
    "embed": (
        *(embed_stage, "_make_work", patch_embed, run_embed),
        *("documents", "refused"),
    ),
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("stage", STAGES)
def test_a_record_that_kills_its_process_is_quarantined_and_the_stage_finishes(
    tmp_path: Path, tokens: str, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, name, patch, run, finished, quarantined = STAGES[stage]
    straight = run(tmp_path, str(tmp_path / "straight"), 0, tokens)
    deadly = functools.partial(make_deadly_work, getattr(module, name), patch)
    made = []
    for workers in (1, 2):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, deadly)
            made.append(run(tmp_path, str(tmp_path / f"out-{workers}"), workers, tokens))
    assert made[0].content == made[1].content
    assert made[0].counts == made[1].counts
    lines = [
        json.loads(line)
        for path in storage.list_files(str(tmp_path / "out-2" / "quarantine"))
        for line in storage.read(path).splitlines()
    ]
    assert [line["reason"] for line in lines] == ["crashed"]
    where = lines[0].get("where", lines[0].get("file"))
    assert where == (f"http://a/{AT}" if stage == "curate" else Path(where).name)
    assert made[0].counts[quarantined] == {"crashed": 1}
    assert straight.counts[finished] == ROWS
    assert made[0].counts[finished] == ROWS - 1
    manifest.verify_files(str(tmp_path / "out-2"), made[1])
