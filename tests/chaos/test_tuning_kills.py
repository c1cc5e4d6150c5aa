"""Fine-tuning that is killed and resumes with fewer workers gives the same results."""

import dataclasses
import json
import os
import signal

import pytest
from support import faults, trouble

from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.posttrain.conversations import encode_conversations
from trainrig.posttrain.row_run_files import ConversationEncoding
from trainrig.posttrain.tuning.fine_tuning import prepare
from trainrig.posttrain.tuning.references import compute_references
from trainrig.posttrain.tuning.tuning_run_file import FineTuning
from trainrig.tokens.special_tokens import TokenizerFiles
from trainrig.train.checkpoint import keep_base, resolve, write_model
from trainrig.train.run.run_folder import RunFolder

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.chaos]

ANSWERS = {"pairs": ("chosen", "rejected"), "conversations": ("completion",), "classified": ()}


@pytest.fixture
def tuning_job(tokens, tmp_path):
    """Return a function that makes fine-tuning jobs.

    `tuning_job("pairs", objective={…}, lora={…})` returns the job of a run on rows of that kind.
    """

    def make(rows, **changes):
        said = dict(zip(ANSWERS[rows], ("is a grey {} mirror", "buy {} cats"), strict=False))
        given = [
            {"prompt": f"the sea {n}", **{name: text.format(n) for name, text in said.items()}}
            for n in range(32)
        ]
        if rows == "classified":
            given = [{"text": f"the sea {'is ' * (n % 7)}{n}", "label": n % 3} for n in range(32)]
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in given))
        encoded = str(tmp_path / "encoded")
        base = str(tmp_path / "base")
        encode_conversations(
            ConversationEncoding(
                rows=rows,
                sources=({"paths": (str(path),), "source": "chats"},),
                tokenizer=tokens,
                output=encoded,
                workers=0,
                sequence_length=47,
                held_out=0.2,
            )
        )
        sizes = {"layers": 2, "channels": 32, "heads": 4, "positions": 48, "vocabulary": 320}
        model = Decoder(DecoderConfig(**sizes))
        initialise(model, seed=1)
        write_model(base, model.config, TokenizerFiles.read(tokens).tokenizer, model.state_dict())
        run = FineTuning.model_validate(
            {
                "checkpoint": base,
                "conversations": encoded,
                "output": str(tmp_path / "straight"),
                "batches": {"sequence_length": 47, "global_batch": 8, "micro_batch": 2},
                "training": {
                    "steps": 40,
                    "optimizer": {"kind": "AdamW", "lr": 0.003},
                    "checkpoints": {"every": 4, "keep": 2},
                    "held_out": {"every": 10, "rows": 4},
                    "faults": {"hang_seconds": 3.0, "max_restarts": 9},
                },
                **changes,
            }
        )
        if rows == "pairs":
            compute_references(encoded, resolve(base), 47)
        job, _, _ = prepare(run)
        if job.adapter:
            keep_base(job.adapter, job.folder)
        return job

    return make


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("rows", "changes"),
    [
        ("conversations", {"lora": {"rank": 4, "base": "int8"}}),
        ("pairs", {"objective": {"kind": "DPO"}}),
        pytest.param(
            "classified", {"objective": {"kind": "Classification"}}, marks=pytest.mark.soak
        ),
    ],
    ids=["lora", "dpo", "classes"],
)
def test_fine_tuning_gives_the_same_results_after_kills_and_with_fewer_workers(
    rows, changes, tuning_job, ranks, start_driver, assert_equal, tmp_path
):
    straight = tuning_job(rows, **changes)
    ranks(1, "train", job=straight, attempt=RunFolder(straight.folder).take_attempt(0))
    job = trouble.slowed(straight, str(tmp_path / "run"), seconds=0.05)
    save = trouble.DeadlySave(job.make_batches, step=8, marker=str(tmp_path / "in save"))
    job = dataclasses.replace(job, make_batches=save)
    events = faults.Events(job.folder)
    first = start_driver(job, 2)
    events.wait("attempt_failed")  # rank 0 died in its save
    events.wait_for_a_step()
    os.kill(events.ranks()[1], signal.SIGKILL)
    events.wait("attempt_failed", 2)
    events.wait("checkpoint", len(events.all("checkpoint")) + 1)
    first.kill()
    first.wait()
    second = start_driver(job, 1)
    assert second.wait(timeout=300) == 0, second.stderr.read()
    assert len(events.all("attempt_failed")) >= 2
    assert events.folder.read_attempts()[-1].resumed_step >= 4
    assert_equal(job, straight)
