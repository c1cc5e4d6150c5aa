"""Reference log-probabilities of each pair in a folder that `conversations` wrote.

They are computed once, before training, so a training step needs no second model. They are stored
beside the shards in `references/KEY`, a stage folder whose manifest names the checksums of its
files. KEY is a hash of the reference model and the conversations, so another model, or rewritten
conversations, has another folder. A file that was changed is refused.

Shapes: N pairs of a split, those of its first source first.
"""

import functools
import io
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from trainrig import manifest, storage
from trainrig.config import OUTPUT, Field, RunFile
from trainrig.errors import ConfigError
from trainrig.posttrain.tuning.answer_batches import Answers, fill_rows
from trainrig.tokens.permutation import Integers
from trainrig.tokens.shards.block_cache import BlockCache
from trainrig.tokens.shards.token_shards import HELD_OUT, TRAIN, TokenShards
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.train import checkpoint

if TYPE_CHECKING:
    from torch import nn


log = logging.getLogger(__name__)
FOLDER = "references"  # Folder name, below the folder of conversations.
KEY_LENGTH = 16
# Pairs of a forward pass. It is constant, so that the result has the same bits everywhere.
AT_ONCE = 8


class ReferenceScoring(RunFile):
    """The settings that the manifest of a references folder records."""

    verb: ClassVar[str] = "references"
    resumes: ClassVar[bool] = True

    stage: Literal["references"] = "references"
    output: Annotated[str, OUTPUT]  # Folder to write.
    sequence_length: int = Field(ge=1)  # Longest answer with its prompt, in tokens.
    pairs_at_once: int = AT_ONCE  # Number of pairs in a forward pass.


@dataclass(frozen=True)
class StoredReferences:
    """Reference log-probabilities of one split, read from storage at the first call."""

    folder: str
    split: str
    shards: TokenShards

    def __call__(
        self, source: str, numbers: Integers
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the references of the chosen and the rejected answers of pairs, [n] each.

        Raises DataError if the file was changed.
        """
        found_N2 = self._values_N2[self._first[source] + numbers]
        return found_N2[:, 0], found_N2[:, 1]

    @functools.cached_property
    def _values_N2(self) -> NDArray[np.float64]:
        data = manifest.read_file(self.folder, f"{self.split}.npy")
        stored: NDArray[np.float64] = np.load(io.BytesIO(data))
        return stored

    @functools.cached_property
    def _first(self) -> dict[str, int]:
        """The row of the first pair of each source."""
        pairs = [self.shards.count_documents(source) // 2 for source in self.shards.sources]
        return dict(zip(self.shards.sources, np.cumsum([0, *pairs]).tolist(), strict=False))


def find_reference_folder(conversations: str, model: str, sequence_length: int) -> str:
    """Return the folder for the references of `conversations` under the checkpoint `model`."""
    written = manifest.read_input(conversations, "conversations").content
    key = manifest.digest(
        [written, checkpoint.compute_content_key(model), sequence_length, AT_ONCE]
    )
    return storage.join(conversations, FOLDER, key[:KEY_LENGTH])


def find_reference(path: str | None, start: str, encoder: Encoder, sequence_length: int) -> str:
    """Return the checkpoint that preferences are measured from: at `path`, or `start`.

    Raises ConfigError for a model with another tokenizer than `encoder`, or with fewer positions
    than `sequence_length`.
    """
    if path is None:
        return start
    found = checkpoint.resolve(storage.make_absolute(path))
    if Encoder.of(checkpoint.read_tokenizer_files(found)).fingerprint != encoder.fingerprint:
        raise ConfigError(
            f"reference: {found} has another tokenizer than the model to fine-tune, so their "
            "log-probabilities can't be compared; name a model with the same tokenizer"
        )
    positions = checkpoint.describe(found)[0].positions
    if sequence_length > positions:
        raise ConfigError(
            f"reference: {found} has {positions} positions, but batches.sequence_length is "
            f"{sequence_length}; name a model with {sequence_length} positions or more, or "
            f"lower sequence_length to {positions}"
        )
    return found


def compute_references(
    conversations: str, model: str, sequence_length: int, cache: BlockCache | None = None
) -> str:
    """Compute the reference log-probabilities of all pairs; return their folder.

    Existing results are kept. The bytes are the same on every machine of one kind.
    """
    folder = find_reference_folder(conversations, model, sequence_length)
    run = ReferenceScoring(output=folder, sequence_length=sequence_length)
    inputs = {
        "conversations": manifest.read_input(conversations, "conversations").content,
        "model": checkpoint.compute_content_key(model),
    }
    stage = manifest.claim(folder, run, inputs)
    if stage.finished:
        manifest.verify_files(folder, stage.finished)
        return folder
    # Imported here, because existing references need no torch.
    from trainrig.parallel.mesh import find_local_device

    opened = checkpoint.open_model(model)
    decoder = opened.build().to(find_local_device())
    files = {}
    counts = {}
    for split in (TRAIN, HELD_OUT):
        shards = TokenShards.open(storage.join(conversations, split), cache)
        answers = Answers(shards, sequence_length, per_row=2)
        found = [
            pairs_N2
            for source in shards.sources
            for pairs_N2 in _compute_source(
                decoder, answers, source, shards.count_documents(source) // 2
            )
        ]
        of_N2 = np.concatenate([np.empty((0, 2)), *found])
        data = io.BytesIO()
        np.save(data, of_N2)
        name = f"{split}.npy"
        storage.write(stage.build_path(name), data.getvalue())
        files[name], counts[f"{split}_pairs"] = (
            manifest.compute_file_sum(stage.build_path(name)),
            len(of_N2),
        )
    stage.finish(counts, files)
    log.info(
        "%s: wrote the reference's log-probabilities of %d pairs", folder, sum(counts.values())
    )
    return folder


def _compute_source(
    model: "nn.Module", answers: Answers, source: str, pairs: int
) -> Iterator[NDArray[np.float64]]:
    import torch

    from trainrig.objectives.log_probabilities import read_completions

    device = next(model.parameters()).device
    for first in range(0, pairs, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, pairs))
        read = [answers.read_answer(source, 2 * pair + side) for side in (0, 1) for pair in numbers]
        ids_BT, targets_BT = fill_rows(read, max(len(ids) for ids, _ in read) - 1, padding=0)
        sides = [
            (
                torch.from_numpy(ids_BT[side]).to(device),
                torch.from_numpy(targets_BT[side]).to(device),
            )
            for side in (slice(len(numbers)), slice(len(numbers), None))
        ]
        with torch.no_grad():
            completions, _ = read_completions(model, *sides)
        yield torch.stack([completion.sums_B for completion in completions], dim=1).cpu().numpy()
