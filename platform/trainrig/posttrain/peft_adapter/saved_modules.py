"""Head modules that PEFT saves whole, in `modules_to_save`."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from trainrig.errors import DataError
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.decoder_fields import Head
from trainrig.models.architecture.lora_settings import (
    LoRA,
    is_of_head,
)
from trainrig.models.lora import (
    is_adapter,
    list_adapter_shapes,
    merge,
)
from trainrig.posttrain.peft_adapter.names import find_tensors, split_key
from trainrig.train import checkpoint
from trainrig.train.checkpoint.reader import find_fresh_parameters

# Heads that a PEFT task can mean; without a task, the first head whose tensors are there.
HEADS: Mapping[str | None, tuple[Head, ...]] = {
    "SEQ_CLS": ("classes",),
    "QUESTION_ANS": ("spans",),
    None: ("classes", "spans"),
}


@dataclass(frozen=True)
class Base:
    """The checkpoint that an adapter belongs to."""

    path: str
    config: DecoderConfig
    tokenizer: str

    @cached_property
    def weights(self) -> Mapping[str, Tensor]:
        """The tensors of the checkpoint, read on first use."""
        return checkpoint.open_model(self.path).weights

    def find_missing(self, config: DecoderConfig) -> set[str]:
        """Return the parameters that a model of `config` has and the checkpoint lacks."""
        return set(find_fresh_parameters(checkpoint.read_entries(self.path), config))


def find_head(
    folder: str, base: Base, task: str | None, stored: Mapping[str, Tensor]
) -> DecoderConfig:
    """Return the config of `base` with the head that the PEFT folder saved whole.

    A base that already has such a head is returned unchanged. `stored` are the folder's tensors.
    Raises DataError for an encoder's head of one number.
    """
    config = base.config
    if config.head not in ("tokens", "replaced"):
        return config
    whole = {
        name: value for key, value in stored.items() for name, last in [split_key(key)] if not last
    }
    for head in HEADS.get(task, ()):
        two = ("LABEL_0", "LABEL_1") if head == "classes" else ()
        name = find_tensors(base.path, config.with_head(head, two)).get("head.weight")
        if name not in whole:
            continue
        count = len(whole[name])
        if head == "spans":
            return config.with_head(head)
        if count > 1:
            return config.with_head(head, tuple(f"LABEL_{number}" for number in range(count)))
        if not config.bidirectional:
            return config.with_score_head()
        raise DataError(
            f"{folder}: {name} gives one number for each text, which an encoder in trainrig "
            "can't; use a classifier with two labels or more"
        )
    return config


def fill_head(
    folder: str,
    base: Base,
    config: DecoderConfig,
    lora: LoRA,
    tensors: Mapping[str, Tensor],
    whole: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Return the adapter `tensors` of `lora` with the tensors of a head that is trained whole.

    Head tensors come from `whole`, or else from `base` with the changes of `tensors` merged. Raises
    DataError for a head tensor that is in neither, and for other tensors of `whole` that differ
    from the base.
    """
    theirs = find_tensors(base.path, config)
    found = {name: value for name, value in tensors.items() if not is_of_head(config, name)}
    changes = {name: value for name, value in tensors.items() if name not in found}
    wanted = {name for name in list_adapter_shapes(config, lora) if not is_adapter(name)}
    missing = base.find_missing(config) if wanted - whole.keys() else set()
    for name in sorted(wanted):
        if name in whole:
            found[name] = whole[name].float()
        elif name in missing:
            raise DataError(
                f"{folder}: {theirs[name]} is neither in this folder nor in the base at "
                f"{base.path}; import the whole model that was the base in PEFT, and name it"
            )
        else:
            module = name.rpartition(".")[0]
            own = {n: tensor for n, tensor in changes.items() if n.rpartition(".")[0] == module}
            plain = {name: base.weights[name]}
            found[name] = merge(plain, own if name.endswith(".weight") else {}, lora)[name]
    for name in whole.keys() - wanted:
        there = base.weights[name]
        if whole[name].shape != there.shape or not torch.equal(whole[name].float(), there):
            raise DataError(
                f"{folder}: {theirs[name]} is saved whole, which trainrig supports only for "
                "heads of classes, scores or spans; merge the adapter with PEFT's "
                "merge_and_unload(), and import the merged model"
            )
    return found
