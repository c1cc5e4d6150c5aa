"""Inputs of a curation: the files of its sources, grouped into splits."""

from trainrig import manifest, storage
from trainrig.corpus.read import cut_pieces, find_files, serialise_piece
from trainrig.corpus.run_file import Curation
from trainrig.splits import Split


def plan_splits(run: Curation) -> tuple[list[Split], dict[str, str]]:
    """Return the splits of all sources, and a fingerprint of each source's input.

    A split is a group of pieces of files; splits have about the same size. Raises DataError if a
    pattern matches no file, or if a file has an unknown format.
    """
    lists = [storage.compute_content_key(path) for path in run.urls.list_files()]
    splits: list[Split] = []
    inputs = {"urls": manifest.digest(lists)} if lists else {}
    for scorer in run.scorers:
        inputs[f"scorer {scorer.column}"] = manifest.digest(scorer.read_content_keys())
    for index, source in enumerate(run.sources):
        files = find_files(source.paths)
        keys = [(file.name, storage.compute_content_key(file.path)) for file in files]
        inputs[source.name] = manifest.digest(keys)
        for number, group in enumerate(cut_pieces(files, source.reading)):
            name = f"{source.name}-{number:05d}"
            task = {
                "name": name,
                "source": index,
                "pieces": [serialise_piece(piece) for piece in group],
            }
            splits.append(Split(name, task))
    return splits, inputs
