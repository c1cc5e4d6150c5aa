"""Copies of requested pages, by the clusters of near-duplicates that curation found.

`curate` compares the MinHash signatures of all documents, and stores with each document, kept or
dropped, the cluster of near-duplicates that it is in. So no text is compared again here.
"""

from collections.abc import Collection, Iterator

from trainrig import manifest, storage
from trainrig.attribution.forgetting.requested_pages import PageRequest
from trainrig.corpus.documents import KEPT, read_column_names, read_columns
from trainrig.errors import ConfigError

DROPPED = "dropped"
CLUSTER = "cluster"


def add_copies(request: PageRequest, corpus: str, inputs: Collection[str]) -> PageRequest:
    """Return `request` with all kept documents in the clusters of its pages, and its dropped pages.

    `corpus` is a folder of `curate` that the tokens were made of; `inputs` are the fingerprints
    that `tokenize` recorded of its inputs. A page that curation dropped as a copy adds the document
    that was kept in its place. Raises DataError if `corpus` is no folder of `curate`, and
    ConfigError if the tokens were not made of it, or if it lacks the clusters of the pages.
    """
    corpus = corpus.rstrip("/")
    made = manifest.read_input(corpus, "curate")
    if made.content not in inputs:
        raise ConfigError(
            f"--near-duplicates {corpus}: the tokens of the run were not made of this folder "
            f"({made.content[:12]}); name the one that `trainrig lineage` shows as `documents`"
        )
    if not made.config.get("near_duplicates"):
        raise ConfigError(
            f"--near-duplicates {corpus}: its run file has no near_duplicates, so no clusters of "
            "copies are known; name the copies by --urls"
        )
    clusters = set[str | None]()
    # Clusters of each requested page that curation dropped; a URL may have been read several times.
    dropped: dict[str, set[str]] = {}
    unknown = set(request.names)
    for folder in (KEPT, DROPPED):
        for page, url, cluster in _iterate_rows(corpus, folder, made):
            if page in request.ids or url in request.urls:
                unknown -= {page, url}
                clusters.add(cluster)
                if folder == DROPPED and cluster is not None:
                    for name in {page, url} & request.names:
                        dropped.setdefault(name, set()).add(cluster)
    if unknown and made.config.get("keep_dropped") == "none":
        raise ConfigError(
            f"--near-duplicates {corpus}: has no page {min(unknown)}, and its run file has "
            'keep_dropped = "none", so it is not known whether a kept page is a copy of that one; '
            "name kept pages"
        )
    copies: dict[str, set[str]] = {}  # ids of kept documents in each cluster
    for page, _, cluster in _iterate_rows(corpus, KEPT, made):
        if cluster is not None and cluster in clusters:
            copies.setdefault(cluster, set()).add(page)
    kept = {
        name: frozenset(page for cluster in found for page in copies.get(cluster, ()))
        for name, found in dropped.items()
    }
    return PageRequest(request.urls, request.ids.union(*copies.values()), kept)


def _iterate_rows(
    corpus: str, folder: str, made: manifest.Manifest
) -> Iterator[tuple[str, str, str | None]]:
    """Yield the id, URL and cluster of all documents in a folder of a corpus."""
    for name in made.files:
        if not name.startswith(f"{folder}/") or not name.endswith(".parquet"):
            continue
        path = storage.join(corpus, name)
        present = set(read_column_names(path))
        columns = [name for name in ("id", "url", CLUSTER) if name in present]
        for row in read_columns(path, columns).to_pylist():
            yield row["id"], row["url"], row.get(CLUSTER)
