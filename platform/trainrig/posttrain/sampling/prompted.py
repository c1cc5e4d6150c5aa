"""What stages that have a model answer prompts share: what is checked, how the work is cut.

Prompts are answered in batches of a fixed size, from the begin of each output file: what a prompt's
batch is does not depend on the number of workers, and so neither does what is said.
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
from trainrig.tokens.documents.files import find_paths, name_files
from trainrig.tokens.encoding.encode import Encoder
from trainrig.train import checkpoint

if TYPE_CHECKING:  # torch takes seconds to import
    from trainrig.models.generation.sampling import Sampling

Run = TypeVar("Run", bound=PromptedRunFile)


@dataclass(frozen=True)
class Asked:
    """A model and the prompts that it can be asked."""

    model: str  # checkpoint
    encoder: PromptEncoder
    prompts: PromptSet

    def build_splits(self, shard_prompts: int) -> list[Split]:
        """The prompts in order, so many at a time."""
        return [
            Split(f"{number:05d}", {"name": f"{number:05d}", "first": first})
            for number, first in enumerate(range(0, len(self.prompts.prompts), shard_prompts))
        ]


def make_prompts_absolute(run: Run) -> Run:
    """`run` with each file of prompts by itself, wherever a worker is."""
    paths = tuple(map(storage.make_absolute, find_paths(FORMAT, run.prompts.paths)))
    return run.model_copy(update={"prompts": run.prompts.model_copy(update={"paths": paths})})


def open_asked(run: PromptedRunFile, model: str, columns: Sequence[str] = ()) -> Asked:
    """The prompts of `run` that the checkpoint `model` can be asked and that have `columns`.

    Raises ConfigError for a model that does not speak or has too few positions, DataError if not
    one row can be asked.
    """
    config, _ = checkpoint.describe(model)
    if config.head != "tokens":
        raise ConfigError(
            f"checkpoint: {model} is {config.description}, which does not speak; name a "
            "language model"
        )
    if run.prompt_tokens + run.maximum_tokens > config.positions:
        raise ConfigError(
            f"prompt_tokens ({run.prompt_tokens}) and maximum_tokens ({run.maximum_tokens}) are "
            f"more than the model's {config.positions} positions; lower one of them"
        )
    encoder = PromptEncoder(Encoder.of(checkpoint.read_tokenizer_files(model)))
    prompts = read_prompt_set(run.prompts, encoder, run.prompt_tokens, tuple(columns))
    return Asked(model, encoder, prompts)


def hash_prompted_inputs(run: PromptedRunFile, model: str) -> dict[str, str]:
    """Fingerprints of what `run` reads."""
    paths = run.prompts.paths
    keys = zip(name_files(paths), map(storage.compute_content_key, paths), strict=True)
    return {
        "checkpoint": checkpoint.compute_content_key(model),
        "prompts": manifest.digest([list(each) for each in keys]),
    }


def build_sampling(run: PromptedRunFile, purpose: str, prompt: int, sample: int) -> "Sampling":
    """How one answer is drawn: by dice of its own, keyed by what it is for, the number of its
    prompt's row, and which of several it is."""
    from trainrig.models.generation.sampling import Sampling

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
    """Write rows of JSON as FOLDER/KIND/NAME.jsonl, by kind; the sums of the files."""
    sums = {}
    for kind, rows in files.items():
        lines = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
        below = f"{kind}/{name}.jsonl"
        storage.write(storage.join(folder, below), lines.encode("utf-8", "replace"))
        sums[below] = manifest.compute_file_sum(storage.join(folder, below))
    return sums
