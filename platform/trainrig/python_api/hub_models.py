"""Models in Hugging Face folders as functions: import one to train it, and export what came out."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainrig import config
from trainrig.evaluate.model_card import describe_checkpoint
from trainrig.models.huggingface import HubFolder
from trainrig.posttrain.huggingface.model_folders import export_checkpoint, import_checkpoint
from trainrig.python_api.html_tables import render_html_table

AnyPath = str | os.PathLike[str]


@dataclass(frozen=True)
class ModelFolder:
    """Folder of an imported or exported model; pass it where a stage takes a checkpoint."""

    output: str  # folder that was written
    facts: Mapping[str, Any]  # Content of the command's `--json`.

    def __fspath__(self) -> str:
        return self.output

    def _repr_html_(self) -> str:
        return render_html_table(self.output, self.facts)


def import_model(
    folder: AnyPath,
    out: AnyPath,
    /,
    *,
    roles: Mapping[str, str] | None = None,
    add_tokens: Sequence[str] = (),
) -> ModelFolder:
    """Import a Hugging Face folder as a checkpoint to train, evaluate or tune.

    `roles` maps roles to special tokens that the folder's files do not name, such as
    `{"end_of_turn": "<|im_end|>"}`. `add_tokens` are special tokens to add to the model. A folder
    `out` that holds exactly this import is left as it is. Raises OutputTaken if it holds others.

    >>> model = trainrig.import_model("hf-folder", "imported")
    >>> trainrig.posttrain(checkpoint=model, conversations="conversations", output="tuned")
    """
    facts = import_checkpoint(os.fspath(folder), os.fspath(out), roles, add_tokens, keep=True)
    return ModelFolder(os.fspath(out), facts)


def export_model(
    checkpoint: AnyPath,
    out: AnyPath,
    /,
    *,
    dtype: str | None = None,
    scores: Sequence[AnyPath] = (),
    **card: Any,
) -> ModelFolder:
    """Export a checkpoint as a Hugging Face folder that Transformers can load.

    `dtype` is float32, bfloat16 or float16; None keeps that of the imported model. The model card
    lists the stages that made the model, and the `scores`, folders of evaluations. `card` may have
    `license`, `base_model` and `datasets`. A folder `out` that holds exactly this model is left as
    it is. Raises OutputTaken if it holds others.

    >>> trainrig.export_model("tuned", "hf-folder", dtype="bfloat16")
    """
    settings = config.build(HubFolder, {"dtype": dtype, **card}, "export_model")
    evaluations = [os.fspath(folder) for folder in scores]
    sections = describe_checkpoint(os.fspath(checkpoint), evaluations)
    settings = settings.model_copy(update={"sections": sections})
    facts = export_checkpoint(os.fspath(checkpoint), os.fspath(out), settings, keep=True)
    return ModelFolder(os.fspath(out), facts)
