"""The commands `export` and `import`.

They import their dependencies when they run.
"""

import json
import sys
from dataclasses import dataclass
from typing import Annotated

from trainrig import command_line, config
from trainrig.command_line import Checkpoint, Json, argument, flag, option
from trainrig.errors import ConfigError

NumberFormat = Annotated[
    str | None,
    option(
        "DTYPE",
        help="Number format of the weights: float32, bfloat16 or float16.  "
        "[default: as imported, else float32]",
        autocompletion=command_line.make_word_completion("float32", "bfloat16", "float16"),
    ),
]
Keep = Annotated[
    bool, flag("--keep", help="Accept an OUT that holds exactly this model, and leave it as is.")
]


@dataclass(frozen=True)
class CardOptions:
    """Options of `export` for the model card."""

    scores: Annotated[
        list[str] | None,
        option(
            "DIR",
            help="Folder of an evaluation of this checkpoint, for the model card; repeatable.",
        ),
    ] = None
    license_: Annotated[
        str | None,
        option(
            "NAME",
            "--license",
            help="License for the model card, by its name on the Hub. [default: none]",
        ),
    ] = None
    base_model: Annotated[
        str | None, option("OWNER/MODEL", help="Base model, for the model card. [default: none]")
    ] = None
    dataset: Annotated[
        list[str] | None,
        option("OWNER/DATASET", help="Training data set, for the model card; repeatable."),
    ] = None


def export(
    checkpoint: Checkpoint,
    out: Annotated[str, argument("OUT", help="Folder to write; must be new.")],
    dtype: NumberFormat = None,
    adapter: Annotated[
        bool, flag("--adapter", help="Write the adapter alone, for PEFT, instead of merging it.")
    ] = False,
    generator: Annotated[
        bool, flag("--generator", help="Write the generator of a model that finds replaced tokens.")
    ] = False,
    *,
    card: CardOptions,
    keep: Keep = False,
    as_json: Json = False,
) -> None:
    """Export a checkpoint as a Hugging Face folder that Transformers, or PEFT, can load.

    The files that the model was imported with (tokenizer, chat template, generation config) are
    copied unchanged. The model card lists the stages that made the model, and its scores.
    """
    from trainrig.evaluate.model_card import describe_checkpoint
    from trainrig.models.huggingface import HubFolder
    from trainrig.posttrain.huggingface.model_folders import export_checkpoint
    from trainrig.posttrain.huggingface.peft_adapters import export_adapter
    from trainrig.storage.writable import check_folder

    if adapter and any(vars(card).values()):
        raise ConfigError(
            "export --adapter: an adapter gets no model card; leave out --scores, --license, "
            "--base-model and --dataset"
        )
    if adapter and keep:
        raise ConfigError("export --keep: it is for whole models; leave out --adapter or --keep")
    if adapter and generator:
        raise ConfigError("export: an adapter has no generator; leave out --adapter or --generator")
    check_folder(out)
    settings = config.build(HubFolder, {"dtype": dtype}, "export --dtype")
    settings = settings.model_copy(
        update={
            "license": card.license_,
            "base_model": card.base_model,
            "datasets": tuple(card.dataset or ()),
            "sections": "" if adapter else describe_checkpoint(checkpoint, card.scores or ()),
        }
    )
    facts = (
        export_adapter(checkpoint, out)
        if adapter
        else export_checkpoint(checkpoint, out, settings, generator, keep)
    )
    print(json.dumps(facts) if as_json else f"{out}: step {facts['step']} of {facts['checkpoint']}")


def import_folder(
    folder: Annotated[str, argument("HF_DIR", help="Hugging Face folder, on disk or in a bucket.")],
    out: Annotated[str, argument("OUT", help="Run folder to write; must be new.")],
    role: Annotated[
        list[str] | None,
        option(
            "ROLE=TOKEN",
            help="Special token for a role that the folder's files do not name: begin, end, pad, "
            "end_of_turn, user, assistant or system; repeatable.",
        ),
    ] = None,
    add_token: Annotated[
        list[str] | None,
        option(
            "TOKEN",
            help="Special token to add; its embedding begins as the mean of all embeddings; "
            "repeatable.",
        ),
    ] = None,
    base: Annotated[
        str | None,
        option("CKPT", help="Checkpoint that is the base of a PEFT folder. [default: none]"),
    ] = None,
    keep: Keep = False,
    as_json: Json = False,
) -> None:
    """Import a Hugging Face folder as a checkpoint to train, evaluate or tune.

    Supported: Llama, Mistral, Qwen 2 and 3, OLMo 2, Gemma 2 and 3 (text), GPT-2, and models of the
    same architectures.
    """
    from trainrig.posttrain.huggingface.model_folders import import_checkpoint
    from trainrig.posttrain.huggingface.peft_adapters import import_adapter

    if base and keep:
        raise ConfigError("import --keep: it is for whole models; leave out --base or --keep")
    if base:
        adapter = import_adapter(folder, base, out)
        print(json.dumps(adapter) if as_json else f"{out}: {adapter['parameters']:,} parameters")
        return
    roles = dict(_parse_role(assignment) for assignment in role or ())
    facts = import_checkpoint(folder, out, roles, add_token or (), keep)
    if as_json:
        print(json.dumps(facts))
        return
    print(f"{out}: {facts['parameters']:,} parameters, {facts['vocabulary']:,} entries")
    for name, token in facts["special_tokens"].items():
        print(f"{name}: {token or 'none'}")
    if dropouts := facts["dropouts_left_out"]:
        shares = ", ".join(f"{key} = {share:g}" for key, share in dropouts.items())
        print(f"config.json: {shares} is left out; trainrig imports no dropout", file=sys.stderr)


def _parse_role(given: str) -> tuple[str, str]:
    name, equals, token = given.partition("=")
    if not equals or not token:
        raise ConfigError(f"--role {given}: write it as ROLE=TOKEN, such as end_of_turn=<|im_end|>")
    return name, token
