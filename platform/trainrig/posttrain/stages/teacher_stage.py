"""The stage `teacher`: it stores a model's token probabilities for a student to learn.

A part is computed from its conversations alone, in batches of a fixed size. So the bytes are the
same at any number of workers.

Shapes: B conversations of a forward pass, T positions, N targets, R rows of logits at a time, V
vocabulary entries, E entries that are kept.
"""

import functools
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trainrig import manifest, storage
from trainrig.errors import ConfigError
from trainrig.manifest import FileSum, Manifest
from trainrig.posttrain.row_run_files import TeacherScoring
from trainrig.posttrain.stages.model_pass import map_with_model
from trainrig.posttrain.tuning import teacher_probabilities
from trainrig.posttrain.tuning.answer_batches import Answers, fill_rows
from trainrig.ray_runtime.split_processing import Progress
from trainrig.splits import Split, Work
from trainrig.tokens.batches import IGNORE
from trainrig.tokens.permutation import Integers
from trainrig.tokens.shards.token_shards import HELD_OUT, TRAIN, TokenShards, check_rows
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.train import checkpoint

if TYPE_CHECKING:
    from torch import Tensor, nn


def store_teacher(run: TeacherScoring, progress: Progress | None = None) -> Manifest:
    """Write the teacher's probabilities of all targets; return the manifest of the folder.

    Raises ConfigError for a model that generates no text, has another tokenizer or fewer positions
    than the conversations, and for rows that are not conversations.
    """
    folder = storage.make_absolute(run.conversations)
    written = manifest.read_input(folder, "conversations")
    model = checkpoint.resolve(storage.make_absolute(run.checkpoint))
    longest = int(written.config["sequence_length"])
    _check(run, model, longest)
    inputs = {"conversations": written.content, "checkpoint": checkpoint.compute_content_key(model)}
    stage = manifest.claim(run.output, run, inputs)
    if stage.finished:
        return stage.finished
    with stage.undo_if_refused():
        splits = [
            Split(part.name, {"split": split, **asdict(part)})
            for split in (TRAIN, HELD_OUT)
            for part in teacher_probabilities.cut_parts(
                _open(folder, split), split, run.part_tokens
            )
        ]
        make = functools.partial(_make_work, run, model, folder, longest)
        summed, files = map_with_model(
            stage, model, run.workers, make, splits, "teacher: predict tokens", progress
        )
    targets = max(1, summed["targets"])
    counts = {
        "conversations": summed["conversations"],
        "targets": summed["targets"],
        # Mean share of the teacher's probability that the kept entries have.
        "covered": round(summed["covered"] / targets, 6),
    }
    return stage.finish(counts, files)


def _open(folder: str, split: str) -> TokenShards:
    return TokenShards.open(storage.join(folder, split))


def _check(run: TeacherScoring, model: str, longest: int) -> None:
    shards = _open(storage.make_absolute(run.conversations), TRAIN)
    check_rows(shards, "conversations")
    config, _ = checkpoint.describe(model)
    if config.head != "tokens":
        raise ConfigError(
            f"checkpoint: {model} is {config.description}, which predicts no tokens; name a "
            "language model"
        )
    encoder = Encoder.of(checkpoint.read_tokenizer_files(model))
    if encoder.fingerprint != shards.vocabulary.fingerprint:
        raise ConfigError(
            f"checkpoint: {model} has another tokenizer than {run.conversations}, so its "
            "probabilities are of other tokens; use its answers as text instead, with "
            "`trainrig sample`"
        )
    if longest > config.positions:
        raise ConfigError(
            f"checkpoint: {model} has {config.positions} positions, but the conversations "
            f"have up to {longest} tokens; run `conversations` with sequence_length = "
            f"{config.positions}"
        )
    if run.entries > encoder.vocabulary_size:
        raise ConfigError(
            f"entries ({run.entries}) must be at most the {encoder.vocabulary_size} entries "
            "of the tokenizer; lower it"
        )


def _make_work(run: TeacherScoring, model: str, folder: str, longest: int) -> Work:
    """Return the function that computes one part."""
    from trainrig.parallel.mesh import find_local_device
    from trainrig.posttrain.row_scorers import use_threads

    decoder = checkpoint.open_model(model).build().to(find_local_device())
    opened = {split: _open(folder, split) for split in (TRAIN, HELD_OUT)}
    vocabulary = opened[TRAIN].vocabulary.size

    def read(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
        given = dict(task)
        shards = opened[given.pop("split")]
        part = teacher_probabilities.TeacherPart(**given)
        answers = Answers(shards, longest, per_row=1)
        found = []
        with use_threads(run.threads):
            for first in range(part.first, part.past, run.batch):
                numbers = range(first, min(first + run.batch, part.past))
                rows = [answers.read_answer(part.source, number) for number in numbers]
                found.append(_compute_expected(decoder, rows, run, vocabulary))
        ids_NE, log_NE, rest_N = (np.concatenate(blocks) for blocks in zip(*found, strict=True))
        arrays = {
            teacher_probabilities.IDS: ids_NE.astype(
                teacher_probabilities.choose_dtype(vocabulary)
            ),
            teacher_probabilities.LOG: log_NE,
            teacher_probabilities.REST: rest_N,
        }
        counts = {
            "conversations": part.past - part.first,
            "targets": len(rest_N),
            "covered": float(np.exp(log_NE.astype(np.float64)).sum()),
        }
        return counts, teacher_probabilities.write_part(run.output, part.name, arrays)

    return read


def _compute_expected(
    model: "nn.Module",
    rows: list[tuple[Integers, Integers]],
    run: TeacherScoring,
    vocabulary: int,
) -> tuple[Integers, NDArray[np.float32], NDArray[np.float32]]:
    """Return the teacher's probabilities for the targets of `rows`, in one forward pass.

    `rows` are pairs of ids and weights. The result is that of `find_likeliest`.
    """
    import torch

    ids_BT, targets_BT = fill_rows(rows, max(len(ids) for ids, _ in rows) - 1, padding=0)
    device = next(model.parameters()).device
    places_N = torch.from_numpy(np.flatnonzero(targets_BT != IGNORE)).to(device)
    with torch.inference_mode():
        output = model(torch.from_numpy(ids_BT).to(device), places_N=places_N)
        found = find_likeliest(output.hidden, output.head, run.entries, run.temperature, vocabulary)
    ids_NE, log_NE, rest_N = (tensor.cpu().numpy() for tensor in found)
    return ids_NE, log_NE, rest_N


def find_likeliest(
    hidden_NC: "Tensor", head: Any, entries: int, temperature: float, vocabulary: int
) -> "tuple[Tensor, Tensor, Tensor]":
    """Return the likeliest `entries` of the first `vocabulary` entries at each place.

    The result is ids [N, E], their log-probabilities at `temperature` [N, E], and the
    log-probability of all other entries [N]. Logits are computed for a block of rows at a time, to
    save memory.
    """
    import torch

    from trainrig.objectives.chunked_head import cut_blocks

    ids = []
    logs = []
    rests = []
    for rows in cut_blocks(len(hidden_NC), head.weight_VC):
        logits_RV = head(hidden_NC[rows])[:, :vocabulary].float() / temperature
        log_RV = logits_RV.log_softmax(-1)
        log_RE, ids_RE = log_RV.topk(entries)
        rests.append(log_RV.scatter_(1, ids_RE, -torch.inf).logsumexp(1))
        ids.append(ids_RE)
        logs.append(log_RE)
    return torch.cat(ids), torch.cat(logs), torch.cat(rests)
