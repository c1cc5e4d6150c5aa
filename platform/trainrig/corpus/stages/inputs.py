"""What a curation reads: the files that its sources name, cut into splits."""

from trainrig import manifest, storage
from trainrig.corpus.read import cut_pieces, find_files, serialise_piece
from trainrig.corpus.run_file import Curation
from trainrig.splits import Split


def plan_splits(run: Curation) -> tuple[list[Split], dict[str, str]]:
    """The splits of all sources, and by source the fingerprint of what it reads.

    A split is a group of pieces of about one size. Raises DataError for a pattern that names
    nothing, and for a file of no known format.
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
