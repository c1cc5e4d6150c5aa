"""Reads an adapter from a folder of PEFT.

Of its settings, those are read that LoRA here has; any other that changes what is computed is
refused.
"""

from collections.abc import Mapping
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from trainrig import storage
from trainrig.config import build
from trainrig.errors import DataError, OutputTaken
from trainrig.models.decoder_config import DecoderConfig
from trainrig.models.lora.layers import adapter_shapes
from trainrig.models.lora.settings import LoRA
from trainrig.posttrain.peft_adapter.names import module_names, our_targets, split_key
from trainrig.posttrain.peft_adapter.settings import WEIGHTS, read_settings
from trainrig.storage.writable import check_folder
from trainrig.train import checkpoint
from trainrig.train.job import Adapter


def import_adapter(folder: str, base: str, out: str) -> dict[str, Any]:
    """Write the PEFT folder `folder`, an adapter of the newest checkpoint at `base`, as step 0 of
    the run folder `out`. Raises DataError for what would compute something else here."""
    check_folder(out)
    if storage.list_files(out):
        raise OutputTaken(f"{out}: not empty; name a new folder")
    path = checkpoint.resolve(storage.absolute(base))
    config, tokenizer = checkpoint.describe(path)
    settings = read_settings(folder)
    stored = load_file(storage.local_path(storage.join(folder, WEIGHTS)))
    ours = {theirs: name for name, theirs in module_names(path, config).items()}
    tensors: dict[str, Tensor] = {}
    for key, value in stored.items():
        module, last = split_key(key)
        if module not in ours or last is None:
            raise DataError(
                f"{folder}: tensor {key!r} has no place in the model at {path}; is it an adapter "
                "of another base?"
            )
        if ours[module] == "embedding" and config.tie_embeddings:
            raise DataError(
                f"{folder}: changes the embedding but not the head that shares its table, which "
                "can't be told apart here"
            )
        tensors[f"{ours[module]}.{last}"] = value.T if "embedding" in key else value
    chosen = {name.rpartition(".")[0] for name in tensors}
    lora = build(LoRA, settings | {"targets": our_targets(chosen, set(ours.values()))}, folder)
    _check_sizes(folder, config, lora, tensors)
    adapter = Adapter(lora, path, checkpoint.manifest_sum(path))
    beside = checkpoint.tokenizer_files(path).beside
    written = checkpoint.write_adapter(out, config, tokenizer, adapter, tensors, beside)
    parameters = sum(value.numel() for value in tensors.values())
    return {"output": out, "checkpoint": written, "base": path, "parameters": parameters}


def _check_sizes(
    folder: str, config: DecoderConfig, lora: LoRA, tensors: Mapping[str, Tensor]
) -> None:
    wanted = adapter_shapes(config, lora)
    if odd := sorted(wanted.keys() ^ tensors.keys()):
        raise DataError(f"{folder}: {odd[0]} is {'missing' if odd[0] in wanted else 'too much'}")
    for name, shape in wanted.items():
        if tensors[name].shape != shape:
            raise DataError(
                f"{folder}: {name} is {tuple(tensors[name].shape)}, the base wants {tuple(shape)}; "
                "is it an adapter of another base?"
            )
