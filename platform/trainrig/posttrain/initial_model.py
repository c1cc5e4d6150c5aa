"""The model that post-training begins with, wherever it lies."""

from trainrig import storage
from trainrig.train import checkpoint

# Beside the run folder, after its name: what was made of a folder of Hugging Face.
IMPORTED = ".start"


def is_hub_folder(path: str) -> bool:
    """Whether `path` is a model in the form of Hugging Face."""
    return storage.exists(storage.join(path, "config.json"))


def open_initial_model(path: str, output: str) -> str:
    """The newest checkpoint at `path`: a run folder, a checkpoint, or a folder of Hugging Face.

    The last is brought into the form of a checkpoint once, beside the run folder `output`: a run
    folder is claimed by what it begins with. Raises DataError if `path` is none of them.
    """
    if not is_hub_folder(path):
        return checkpoint.resolve(path)
    imported = output.rstrip("/") + IMPORTED
    if not storage.list_files(imported):
        # Here, as it needs torch, and whoever starts from a checkpoint should not wait for it.
        from trainrig.posttrain.huggingface import import_checkpoint

        import_checkpoint(path, imported)
    return checkpoint.resolve(imported)
