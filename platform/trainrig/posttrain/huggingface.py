"""Checkpoints to Hugging Face folders and back, with tokenizer and chat template."""

from typing import Any

from trainrig import storage
from trainrig.errors import OutputTaken
from trainrig.models.decoder_config import count_parameters
from trainrig.models.hf import HubFolder, HubTokenizer, export_llama, import_llama
from trainrig.posttrain.chat import TEMPLATE
from trainrig.storage.writable import check_folder
from trainrig.tokens.special import END_OF_TEXT, END_OF_TURN, PAD
from trainrig.train import checkpoint


def export_checkpoint(path: str, out: str, settings: HubFolder) -> dict[str, Any]:
    """Write the newest checkpoint at `path` as the Hugging Face folder `out`; what was written."""
    check_folder(out)
    opened = checkpoint.open_model(path)
    tokenizer = HubTokenizer(
        json=opened.tokenizer,
        end_of_text=END_OF_TEXT,
        pad=PAD,
        end_of_turn=END_OF_TURN,
        chat_template=TEMPLATE,
    )
    export_llama(opened.weights, opened.config, tokenizer, out, settings)
    return {"output": out, "checkpoint": opened.path, "step": opened.step}


def import_checkpoint(folder: str, out: str) -> dict[str, Any]:
    """Write the Hugging Face folder `folder` as step 0 of the run folder `out`."""
    check_folder(out)
    if storage.list_files(out):
        raise OutputTaken(f"{out}: not empty; name a new folder")
    weights, config, tokenizer = import_llama(folder)
    try:
        path = checkpoint.write_model(out, config, tokenizer, weights)
    except BaseException:  # also when it is stopped: what is left would be refused as not empty
        storage.delete_folder(out)
        raise
    return {"output": out, "checkpoint": path, "parameters": count_parameters(config).total}
