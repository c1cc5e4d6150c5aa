"""Copies of requested pages, by the clusters of near-duplicates that curation found.

`curate` compares the MinHash signatures of all documents, and stores with each document, kept or
dropped, the cluster of near-duplicates that it is in. So no text is compared again here.
"""

from collections.abc import Iterator

from trainrig import manifest, storage
from trainrig.attribution.forgetting.requested_pages import PageRequest
from trainrig.corpus.documents import KEPT, read_column_names, read_columns
from trainrig.errors import ConfigError

DROPPED = "dropped"
CLUSTER = "cluster"


def add_copies(request: PageRequest, corpus: str) -> PageRequest:
    """Return `request` with all kept documents in the clusters of its pages.

    `corpus` is the folder of `curate` that the tokens were made of. A page that curation dropped as
    a copy adds the document that was kept in its place. Raises DataError if `corpus` is no such
    folder, and ConfigError if near-duplicates were not searched there.
    """
    corpus = corpus.rstrip("/")
    made = manifest.read_input(corpus, "curate")
    if not made.config.get("near_duplicates"):
        raise ConfigError(
            f"--near-duplicates {corpus}: its run file has no near_duplicates, so no clusters of "
            "copies are known; name the copies by --urls"
        )
    clusters = {
        cluster
        for folder in (KEPT, DROPPED)
        for page, url, cluster in _iterate_rows(corpus, folder, made)
        if page in request.ids or url in request.urls
    }
    copies = {page for page, _, cluster in _iterate_rows(corpus, KEPT, made) if cluster in clusters}
    return PageRequest(request.urls, request.ids | copies)


def _iterate_rows(
    corpus: str, folder: str, made: manifest.Manifest
) -> Iterator[tuple[str, str, str]]:
    """Yield the id, URL and cluster of documents in a folder of a corpus; skip those without."""
    for name in made.files:
        if not name.startswith(f"{folder}/") or not name.endswith(".parquet"):
            continue
        path = storage.join(corpus, name)
        if CLUSTER not in read_column_names(path):
            continue
        table = read_columns(path, ["id", "url", CLUSTER])
        for row in table.to_pylist():
            if row[CLUSTER]:
                yield row["id"], row["url"], row[CLUSTER]
