"""Search for the model that post-training starts from, at any kind of path."""

from trainrig import storage
from trainrig.train import checkpoint

# Suffix of the folder beside the run folder that holds an imported Hugging Face model.
IMPORTED = ".start"


def is_hub_folder(path: str) -> bool:
    """Return whether `path` is a model in the Hugging Face format."""
    return storage.exists(storage.join(path, "config.json"))


def open_initial_model(path: str, output: str) -> str:
    """Return the newest checkpoint at `path`: a run, a checkpoint or a Hugging Face folder.

    A Hugging Face folder is imported once, into a folder beside the run folder `output`, because a
    run folder must be empty before its first claim. Raises DataError if `path` is none of the
    three.
    """
    if not is_hub_folder(path):
        return checkpoint.resolve(path)
    imported = output.rstrip("/") + IMPORTED
    if not storage.list_files(imported):
        # Imported here, so that a start from a checkpoint does not wait for torch.
        from trainrig.posttrain.huggingface import import_checkpoint

        import_checkpoint(path, imported)
    return checkpoint.resolve(imported)
