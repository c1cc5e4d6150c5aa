"""What can be said of a run before it starts."""

from typing import Any

from trainrig import storage
from trainrig.config import RunFile
from trainrig.corpus.curation import Curation
from trainrig.corpus.dedup.minhash import MinHash
from trainrig.manifest import MANIFEST
from trainrig.models.decoder import count_parameters
from trainrig.posttrain import sft
from trainrig.posttrain.sft import FineTuning
from trainrig.tokens.tokenizer import TOKENIZER_FILE
from trainrig.train import pretrain
from trainrig.train.run import Pretraining

_SIMILARITIES = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9)


def describe(run: RunFile) -> dict[str, Any]:
    """Facts about `run`: for training, its parameters and the positions of its rows; for curation,
    how likely its near-duplicates are to be found.

    Raises InputError if its parts do not fit each other or its inputs. An input that an earlier
    stage has still to make is no error; what depends on it is left out.
    """
    if isinstance(run, Pretraining):
        facts: dict[str, Any] = {"positions": run.batches.positions(run.training.steps)}
        if storage.exists(storage.join(run.tokens, MANIFEST)):
            batches = pretrain.open_batches(run.tokens, run.batches, run.cache)
            epochs = batches.check_epochs(run.training.steps)
            rounded = {f"epochs_of_{source}": round(n, 3) for source, n in epochs.items()}
            return _sizes(pretrain.prepare(run).model) | facts | rounded
        if run.model is not None and run.model.vocabulary is not None:
            return _sizes(run.model) | facts
        missing = storage.join(run.tokens, TOKENIZER_FILE)
        return facts | {
            "parameters": f"not known before {missing} is there, or model.vocabulary set"
        }
    if isinstance(run, FineTuning) and storage.list_files(run.checkpoint):
        job, _, counted = sft.prepare(run)
        return _sizes(job.model) | counted
    if isinstance(run, Curation):
        return _of_pairs(run.near_duplicates)
    return {}


def _of_pairs(near: MinHash) -> dict[str, Any]:
    """The curve 1 - (1 - s^rows)^bands, at a few similarities s."""
    found = {
        f"compared at similarity {similarity}": round(near.candidate_probability(similarity), 4)
        for similarity in sorted({*_SIMILARITIES, near.threshold})
    }
    return {"near_duplicates.bands": near.bands, "near_duplicates.rows": near.rows, **found}


def _sizes(model: Any) -> dict[str, Any]:
    count = count_parameters(model)
    return {"parameters": count.total, "parameters_of_embedding": count.embedding}
