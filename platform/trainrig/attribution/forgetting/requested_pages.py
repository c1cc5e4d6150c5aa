"""The pages of a request: URLs and ids from files, and their documents in token shards."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from trainrig import storage
from trainrig.errors import ConfigError, DataError
from trainrig.storage.missing_folders import describe_origin
from trainrig.tokens.rows.masked_documents import MaskedDocument
from trainrig.tokens.shards.token_shards import TokenShards

Key = tuple[str, int]  # a document: its source, and its number in that source


@dataclass(frozen=True)
class PageRequest:
    """Pages to take back, by URL and by document id."""

    urls: frozenset[str]
    ids: frozenset[str]
    # Ids of the kept documents that curation dropped a page as a copy of, by its URL or id.
    copies: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def names(self) -> frozenset[str]:
        """The URLs and ids together."""
        return self.urls | self.ids


def read_request(urls: Sequence[str], documents: Sequence[str]) -> PageRequest:
    """Read files with one URL or one document id on each line; empty lines are skipped.

    Raises ConfigError if all files together name nothing, and DataError for a file that cannot be
    read.
    """
    found = PageRequest(frozenset(_read_lines(urls)), frozenset(_read_lines(documents)))
    if not found.names:
        raise ConfigError(
            f"{', '.join([*urls, *documents])}: names no page; write one URL or one document id on "
            "each line"
        )
    return found


def _read_lines(paths: Sequence[str]) -> Iterator[str]:
    for path in paths:
        try:
            text = storage.decode_utf8(storage.read(path))
        except FileNotFoundError:
            raise DataError(f"{path}: no such file{describe_origin(path)}") from None
        except IsADirectoryError:
            raise DataError(
                f"{path}: is a folder; name a file with one page on each line"
            ) from None
        except storage.NotUtf8 as error:
            raise DataError(f"{path}: {error}; save the file as UTF-8") from None
        # URLs may hold other separators of lines than these.
        yield from (line.strip() for line in text.split("\n") if line.strip())


@dataclass(frozen=True)
class UnusedName:
    """A requested URL or id that a run did not learn from, and the reason."""

    name: str
    reason: str
    copy_of: str = ""  # documents that are taken back in its place; empty: none


@dataclass(frozen=True)
class FoundDocuments:
    """Documents with a requested URL or id, and other spellings of the URLs."""

    documents: Mapping[Key, MaskedDocument]
    # URLs in the shards that equal a requested one but for scheme, `www.` or slash at the end.
    spellings: Mapping[str, tuple[str, ...]]

    @property
    def names(self) -> frozenset[str]:
        """URLs and ids of the documents."""
        return frozenset(name for d in self.documents.values() for name in (d.url, d.id))


def find_documents(shards: TokenShards, request: PageRequest) -> FoundDocuments:
    """Find the documents of `request` in `shards`; reads the index of all documents once."""
    bare: dict[str, list[str]] = {}
    for url in sorted(request.urls):
        bare.setdefault(_strip_spelling(url), []).append(url)
    documents = {}
    spellings: dict[str, set[str]] = {}
    for source in shards.sources:
        for number, entry in enumerate(shards.iterate_index(source)):
            if entry.url in request.urls or entry.id in request.ids:
                documents[source, number] = MaskedDocument(
                    source=source, number=number, id=entry.id, url=entry.url
                )
            for url in bare.get(_strip_spelling(entry.url), ()):
                if url != entry.url:
                    spellings.setdefault(url, set()).add(entry.url)
    return FoundDocuments(documents, {url: tuple(sorted(s)) for url, s in spellings.items()})


def _strip_spelling(url: str) -> str:
    """Return `url` without its scheme, a leading `www.` and slashes at its end."""
    return re.sub(r"^https?://(www\.)?", "", url.strip(), flags=re.IGNORECASE).rstrip("/")


def explain_copies(
    request: PageRequest, pages: Collection[MaskedDocument]
) -> tuple[UnusedName, ...]:
    """Return the pages that curation dropped as copies, with what becomes of the kept documents.

    `pages` are the documents that are taken back. A URL that curation read several times, and kept
    once, is not returned if the kept document is one of `pages`.
    """
    names = {document.id: document.url or document.id for document in pages}
    taken = {name for document in pages for name in (document.id, document.url)}
    found = []
    for name, ids in sorted(request.copies.items()):
        if name in taken:
            continue
        if kept := sorted(names[id_] for id_ in ids & names.keys()):
            listed = ", ".join(kept[:3]) + (", …" if len(kept) > 3 else "")
            reason = f"curation dropped it as a copy of {listed}, which is taken back"
            found.append(UnusedName(name, reason, listed))
        elif ids:
            reason = (
                f"curation dropped it as a copy of {min(ids)}, which the run masks already or did "
                "not learn from"
            )
            found.append(UnusedName(name, reason))
    return tuple(found)


def explain_unused(
    names: Collection[str],
    train: FoundDocuments,
    held_out: TokenShards,
    masked: Collection[Key],
    tokens: str,
) -> tuple[UnusedName, ...]:
    """Return the reason why a run did not learn from each of `names`.

    `train`: their documents in the training shards. `masked`: documents that the run masks already.
    `tokens`: folder of the shards.
    """
    if not names:
        return ()
    request = PageRequest(frozenset(names), frozenset(names))
    aside = find_documents(held_out, request).names
    found = []
    for name in sorted(names):
        own = {key for key, d in train.documents.items() if name in (d.url, d.id)}
        others = train.spellings.get(name, ())
        if own and own <= set(masked):
            reason = "is masked already"
        elif own:
            reason = "is in the training tokens, but no update used it"
        elif name in aside:
            reason = "is held out, so no update used it"
        else:
            reason = f"no training document of {tokens} has this URL or id"
        if others:
            reason += f"; request this spelling too: {', '.join(others[:3])}"
        found.append(UnusedName(name, reason))
    return tuple(found)
