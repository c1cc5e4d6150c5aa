"""What can be said of a run before it starts."""

from typing import Any

from trainrig import storage
from trainrig.config import RunFile
from trainrig.manifest import MANIFEST
from trainrig.models.decoder import count_parameters
from trainrig.posttrain import sft
from trainrig.posttrain.sft import FineTuning
from trainrig.tokens.tokenizer import TOKENIZER_FILE
from trainrig.train import pretrain
from trainrig.train.run import Pretraining


def describe(run: RunFile) -> dict[str, Any]:
    """Facts about `run`: for training, its parameters and the positions of its rows.

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
    return {}


def _sizes(model: Any) -> dict[str, Any]:
    count = count_parameters(model)
    return {"parameters": count.total, "parameters_of_embedding": count.embedding}
