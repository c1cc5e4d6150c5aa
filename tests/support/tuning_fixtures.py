"""Tiny models and conversations, and sums to learn, for tests of tuning."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.sums import SumsBench
from trainrig.manifest import Manifest
from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.posttrain.conversations import encode_conversations
from trainrig.posttrain.row_run_files import ConversationEncoding
from trainrig.posttrain.tuning.tuning_run_file import FineTuning
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.train.checkpoint import write_model


@pytest.fixture(scope="session")
def encoder(tokens: str) -> Encoder:
    """Return the tokenizer of the usual tokens."""
    return Encoder.load(f"{tokens}/tokenizer.json")


@pytest.fixture(scope="session")
def fresh(tmp_path_factory: pytest.TempPathFactory, encoder: Encoder) -> str:
    """Return a run folder with an untrained model."""
    folder = str(tmp_path_factory.mktemp("fresh") / "run")
    config = DecoderConfig(layers=2, channels=32, heads=4, kv_heads=2, positions=48, vocabulary=320)
    model = Decoder(config)
    initialise(model, seed=1)
    write_model(folder, config, encoder.text, model.state_dict())
    return folder


@pytest.fixture
def encode_rows(tokens: str, tmp_path: Path) -> Callable[..., Manifest]:
    """Return a function that runs the stage `conversations` in this process on given rows.

    It returns the manifest of `output`.
    """

    def encode(given_rows: Sequence[Any], output: str = "encoded", **settings: Any) -> Manifest:
        path = tmp_path / f"{output}.jsonl"
        lines = [row if isinstance(row, str) else json.dumps(row) for row in given_rows]
        path.write_text("".join(f"{line}\n" for line in lines))
        source = {"source": "chats", **settings.pop("source", {}), "paths": (str(path),)}
        given = {
            "stage": "conversations",
            "sources": (source,),
            "tokenizer": tokens,
            "output": str(tmp_path / output),
            "workers": 0,
            "sequence_length": 64,
            "held_out": 0,
            **settings,
        }
        return encode_conversations(ConversationEncoding.model_validate(given))

    return encode


@pytest.fixture
def bench(make_tokens: Callable[..., str], tmp_path: Path, without_ray: None) -> SumsBench:
    """Return a bench with the sums as conversations, named `sums`."""
    found = SumsBench(tmp_path, make_tokens(tmp_path / "made", entries=264))
    found.encode("sums", [found.train])
    return found


def build_tuning(
    checkpoint: str,
    conversations: str,
    output: Path | str,
    objective: str | None = None,
    training: Mapping[str, Any] | None = None,
    /,
    **changes: Any,
) -> FineTuning:
    """Return a run file of a few steps on rows of 47 tokens.

    `training` is added to the usual table, and `changes` replace other tables.
    """
    given = {
        "stage": "posttrain",
        "checkpoint": checkpoint,
        "conversations": conversations,
        "output": str(output),
        "batches": {"sequence_length": 47, "global_batch": 4, "micro_batch": 2},
        "training": {"steps": 6, "optimizer": {"kind": "AdamW", "lr": 0.01}, **(training or {})},
    }
    if objective is not None:
        given["objective"] = {"kind": objective}
    return FineTuning.model_validate(given | changes)
