"""Shared code of stages in which a model answers prompts: checks, splits of the work, output.

Prompts are answered in batches of a fixed size, counted from the start of each output file. So the
batch of a prompt, and with it the answer, does not depend on the number of workers.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from trainrig import manifest, storage
from trainrig.errors import ConfigError
from trainrig.manifest import FileSum
from trainrig.posttrain.prompt_text import PromptEncoder
from trainrig.posttrain.rollouts.prompts import FORMAT, PromptSet, read_prompt_set
from trainrig.posttrain.sampling.run_file import PromptedRunFile
from trainrig.randomness import RandomKey, draw_words
from trainrig.splits import Split
from trainrig.tokens.document_set import (
    find_paths,
    name_files,
)
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.train import checkpoint

if TYPE_CHECKING:  # torch takes seconds to import
    from trainrig.models.token_sampling import Sampling

Run = TypeVar("Run", bound=PromptedRunFile)


@dataclass(frozen=True)
class Asked:
    """Model, its prompt encoder, and the prompts that fit it."""

    model: str  # path of the checkpoint
    encoder: PromptEncoder
    prompts: PromptSet

    def build_splits(self, shard_prompts: int) -> list[Split]:
        """Return one split for each run of `shard_prompts` prompts, in order."""
        return [
            Split(f"{number:05d}", {"name": f"{number:05d}", "first": first})
            for number, first in enumerate(range(0, len(self.prompts.prompts), shard_prompts))
        ]


def make_prompts_absolute(run: Run) -> Run:
    """Return a copy of `run` that lists every prompt file by its absolute path."""
    paths = tuple(map(storage.make_absolute, find_paths(FORMAT, run.prompts.paths)))
    return run.model_copy(update={"prompts": run.prompts.model_copy(update={"paths": paths})})


def open_asked(run: PromptedRunFile, model: str, columns: Sequence[str] = ()) -> Asked:
    """Open the checkpoint `model` and read the prompts of `run` whose rows have all `columns`.

    Raises ConfigError if the model is no language model or has too few positions, DataError if no
    row has a usable prompt.
    """
    config, _ = checkpoint.describe(model)
    if config.head != "tokens":
        raise ConfigError(
            f"checkpoint: {model} is {config.description}, which generates no text; name a "
            "language model"
        )
    if run.prompt_tokens + run.maximum_tokens > config.positions:
        raise ConfigError(
            f"prompt_tokens ({run.prompt_tokens}) and maximum_tokens ({run.maximum_tokens}) "
            f"add up to more than the model's {config.positions} positions; lower one of them"
        )
    encoder = PromptEncoder(Encoder.of(checkpoint.read_tokenizer_files(model)))
    prompts = read_prompt_set(run.prompts, encoder, run.prompt_tokens, tuple(columns))
    return Asked(model, encoder, prompts)


def hash_prompted_inputs(run: PromptedRunFile, model: str) -> dict[str, str]:
    """Return the fingerprints of the checkpoint and of the prompt files of `run`."""
    paths = run.prompts.paths
    keys = zip(name_files(paths), map(storage.compute_content_key, paths), strict=True)
    return {
        "checkpoint": checkpoint.compute_content_key(model),
        "prompts": manifest.digest([list(pair) for pair in keys]),
    }


def build_sampling(run: PromptedRunFile, purpose: str, prompt: int, sample: int) -> "Sampling":
    """Return the sampling settings of one answer, with a random seed for that answer alone.

    The seed follows from the run's seed, `purpose`, the row number `prompt`, and `sample`, the
    number of the answer among those to the same prompt.
    """
    from trainrig.models.token_sampling import Sampling

    key = RandomKey(run.seed, purpose, sample)
    seed = int(draw_words(key, np.zeros(1, dtype=np.int64), np.array([prompt]))[0])
    return Sampling(
        temperature=run.temperature,
        top_p=run.top_p,
        maximum_tokens=run.maximum_tokens,
        stop=run.stop,
        seed=seed & (2**63 - 1),
    )


def write_rows(
    folder: str, name: str, files: Mapping[str, Iterable[Mapping[str, Any]]]
) -> dict[str, FileSum]:
    """Write rows as FOLDER/KIND/NAME.jsonl for each kind in `files`; return the files' sums."""
    sums = {}
    for kind, rows in files.items():
        lines = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
        below = f"{kind}/{name}.jsonl"
        storage.write(storage.join(folder, below), lines.encode("utf-8", "replace"))
        sums[below] = manifest.compute_file_sum(storage.join(folder, below))
    return sums
