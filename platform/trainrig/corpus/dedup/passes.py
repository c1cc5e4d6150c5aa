"""The passes that look for copies, each the work of one task over files of the pass before.

    equal keys, then repeats     first for URLs where that is asked for, then for texts
    bands, meet                  band keys divided by their range; the documents that share one
    carry, verify, edges         candidates compared on their shingles; those at the threshold
    decide                       as many rounds as it takes
    tell, settle                 what became of all that equals what was decided; each split's own

Tasks over documents are numbered by stretch, tasks over keys by part (`Plan`).
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.arrays import load_arrays, save_arrays
from trainrig.corpus.dedup import buckets, comparing, decision, equals, evidence, fates
from trainrig.corpus.dedup.documents import (
    BY_LIKENESS,
    BY_TEXT,
    BY_URL,
    COPIES,
    KEPT,
    Documents,
    Fates,
)
from trainrig.corpus.dedup.keep import KeepRule
from trainrig.corpus.dedup.minhash import MinHash
from trainrig.corpus.dedup.names import (
    Shelf,
    digest_words,
    parts_of_keys,
    places_of,
    refs,
    shelves_of,
)
from trainrig.corpus.dedup.plan import Plan
from trainrig.corpus.dedup.runs import Rows, read_part, write_grouped, write_run
from trainrig.corpus.dedup.signature_file import load_columns
from trainrig.corpus.dedup.verify import Verification
from trainrig.corpus.urls.key import url_key
from trainrig.manifest import FileSum
from trainrig.splits import Work

Kind = Literal["url", "text"]
_FATES = {"url": BY_URL, "text": BY_TEXT}
_NO_URL = np.frombuffer(url_key(""), np.uint8)

Task = Mapping[str, Any]
Done = tuple[dict[str, Any], dict[str, FileSum]]


@dataclass(frozen=True)
class Search:
    """What is looked for among which documents, and where files of it lie meanwhile."""

    shelves: tuple[Shelf, ...]  # this run's own first
    plan: Plan
    minhash: MinHash
    verification: Verification
    keep: KeepRule
    urls: bool  # whether one document of a URL is enough
    place: Callable[..., str]  # location of a file, by the names of its folders and its own

    @property
    def floor(self) -> float:
        """Pairs are kept from this similarity up."""
        return min(self.verification.evidence_floor, self.minhash.threshold)

    @property
    def stretches(self) -> range:
        """The numbers of the tasks over documents."""
        return range(len(self.plan.stretches))

    @property
    def parts(self) -> range:
        """The numbers of the tasks over keys."""
        return range(self.plan.parts)

    def load(self, shelf: Shelf) -> Documents:
        """The documents of a shelf."""
        return Documents.load(shelf, self.keep)

    def runs(self, name: str, tasks: range) -> list[str]:
        """Where the runs that a pass wrote lie."""
        return [self.place(name, f"{number:05d}.run") for number in tasks]

    def write(self, name: str, task: Task, rows: Rows, by: NDArray[np.uint64]) -> None:
        """Write a run whose parts are the stretches of the refs `by`."""
        stretch_of = self.plan.stretch_of(len(self.shelves))
        path = self.place(name, f"{task['number']:05d}.run")
        write_run(path, rows, stretch_of[shelves_of(by)], len(self.stretches))

    def write_by_key(self, name: str, task: Task, rows: Rows) -> None:
        """Write a run whose parts are ranges of the rows' keys."""
        path = self.place(name, f"{task['number']:05d}.run")
        write_run(path, rows, parts_of_keys(rows["key"], len(self.parts)), len(self.parts))

    def repeats(self, kind: Kind, side: Literal["ref", "first"], stretch: int) -> Rows:
        """The repeats of which that side lies in a stretch."""
        paths = self.runs(f"{kind}-repeats-by-{side}", self.parts)
        return read_part(paths, stretch, equals.REPEAT)

    def own(self, stretch: int) -> Iterator[tuple[int, Shelf]]:
        """The shelves of a stretch, with their numbers."""
        for number in range(*self.plan.stretches[stretch]):
            yield number, self.shelves[number]


def _not_among(gone: NDArray[np.uint64], number: int, shelf: Shelf) -> NDArray[np.bool_]:
    """[documents of a shelf] whether `gone` (refs, in any order) does not name them."""
    there = np.ones(shelf.count, bool)
    there[places_of(gone[shelves_of(gone) == number])] = False
    return there


def equal_keys(search: Search, kind: Kind) -> Work:
    """A row for each document that may repeat another's text, or URL."""

    def write(task: Task) -> Done:
        tables = [np.empty(0, equals.DIGEST)]
        gone = np.empty(0, np.uint64)
        if kind == "text" and search.urls:
            gone = search.repeats("url", "ref", task["number"])["ref"]
        for number, shelf in search.own(task["number"]):
            documents = search.load(shelf)
            names = refs(number, np.arange(shelf.count))
            wanted = _not_among(gone, number, shelf)
            if kind == "url":
                wanted &= (documents.urls != _NO_URL).any(axis=1)
            if shelf.earlier:
                fell = Fates.load(shelf.documents).kinds
                wanted &= ~np.isin(fell, [BY_URL] if kind == "url" else [BY_URL, BY_TEXT])
            words = digest_words(documents.urls if kind == "url" else documents.digests)
            rows = equals.digest_rows(words, documents.ranks, documents.ids, names)
            tables.append(rows[wanted])
        search.write_by_key(f"{kind}-keys", task, np.concatenate(tables))
        return {}, {}

    return write


def repeats(search: Search, kind: Kind) -> Work:
    """Who repeats whom: twice, for the stretches of either."""

    def find(task: Task) -> Done:
        paths = search.runs(f"{kind}-keys", search.stretches)
        found = equals.repeats(read_part(paths, task["number"], equals.DIGEST))
        search.write(f"{kind}-repeats-by-ref", task, found, found["ref"])
        search.write(f"{kind}-repeats-by-first", task, found, found["first"])
        return {}, {}

    return find


def bands(search: Search) -> Work:
    """The band keys of the documents that repeat none; of earlier crawls, of those kept."""

    def write(task: Task) -> Done:
        gone = search.repeats("text", "ref", task["number"])["ref"]
        if search.urls:
            by_url = search.repeats("url", "ref", task["number"])["ref"]
            gone = np.concatenate([gone, by_url])
        shapes = (0, search.minhash.bands), 0, (0, 2), 0
        columns = [[np.empty(shape, np.uint64) for shape in shapes]]
        for number, shelf in search.own(task["number"]):
            names = refs(number, np.arange(shelf.count))
            wanted = _not_among(gone, number, shelf)
            if shelf.earlier:
                wanted &= Fates.load(shelf.documents).kinds == KEPT
            documents = search.load(shelf)
            keys = load_columns(shelf.signatures, ["keys"])["keys"]
            of_shelf = (keys, documents.ranks, documents.ids, names)
            columns.append([column[wanted] for column in of_shelf])
        keys, ranks, ids, names = (np.concatenate(each) for each in zip(*columns, strict=True))
        rows, starts = buckets.entries(keys, ranks, ids, names, len(search.parts))
        write_grouped(search.place("bands", f"{task['number']:05d}.run"), rows, starts)
        return {}, {}

    return write


def meet(search: Search) -> Work:
    """The pairs that share a key, but for those of two earlier documents: they are decided."""
    first_earlier = sum(not shelf.earlier for shelf in search.shelves)

    def pair(task: Task) -> Done:
        paths = search.runs("bands", search.stretches)
        found = buckets.candidates(read_part(paths, task["number"], buckets.ENTRY))
        found = found[shelves_of(found["a"]) < first_earlier]
        search.write("candidates-by-a", task, found, found["a"])
        search.write("candidates-by-b", task, found, found["b"])
        return {}, {}

    return pair


def carry(search: Search) -> Work:
    """The shingles of second documents, for the stretches of the first where those are others."""
    stretch_of = search.plan.stretch_of(len(search.shelves))

    def write(task: Task) -> Done:
        paths = search.runs("candidates-by-b", search.parts)
        pairs = read_part(paths, task["number"], buckets.CANDIDATE)
        pairs = np.compress(stretch_of[shelves_of(pairs["a"])] != task["number"], pairs)
        sets, first_names, first_shingles = comparing.carried(
            pairs, stretch_of, len(search.stretches), search.shelves, search.load
        )
        file = f"{task['number']:05d}.run"
        write_grouped(search.place("carried-names", file), sets.names, first_names)
        write_grouped(search.place("carried-shingles", file), sets.shingles, first_shingles)
        return {}, {}

    return write


def _carried(search: Search, stretch: int) -> Iterator[comparing.Sets]:
    """What was carried to a stretch, from one after the other."""
    names = search.runs("carried-names", search.stretches)
    shingles = search.runs("carried-shingles", search.stretches)
    for name, shingle in zip(names, shingles, strict=True):
        yield comparing.Sets(
            read_part([name], stretch, comparing.NAME),
            read_part([shingle], stretch, comparing.SHINGLE),
        )


def verify(search: Search) -> Work:
    """The pairs of each split that are alike, as evidence."""
    stretch_of = search.plan.stretch_of(len(search.shelves))

    def compare(task: Task) -> Done:
        paths = search.runs("candidates-by-a", search.parts)
        pairs = buckets.once(read_part(paths, task["number"], buckets.CANDIDATE))
        here = stretch_of[shelves_of(pairs["b"])] == task["number"]
        names = np.union1d(pairs["a"], pairs["b"][here])
        own = comparing.gathered(names, search.shelves, search.load)
        others = itertools.chain([own], _carried(search, task["number"]))
        measure = search.verification.measure
        found = list(comparing.alike(pairs, own, others, measure, search.floor))
        together = {name: np.concatenate([each[name] for each in found]) for name in found[0]}
        order = np.lexsort([together[name] for name in ("b_row", "b_shelf", "a_row", "a_shelf")])
        together = {name: column[order] for name, column in together.items()}
        for number, shelf in search.own(task["number"]):
            if not shelf.earlier:
                of_shelf = slice(*np.searchsorted(together["a_shelf"], [number, number + 1]))
                columns = {name: column[of_shelf] for name, column in together.items()}
                evidence.write_pairs(shelf.pairs, columns)
        return {"candidates": len(pairs), "evidence": len(order)}, {}

    return compare


def edges(search: Search) -> Work:
    """The pairs that decide, from either end; how many they are."""

    def read(task: Task) -> Done:
        found = [
            evidence.read_edges(shelf.pairs, number, search.minhash.threshold)
            for number, shelf in search.own(task["number"])
            if not shelf.earlier
        ]
        rows = np.concatenate([np.empty(0, evidence.EDGE), *found])
        search.write("edges", task, rows, rows["ref"])
        return {"alike": len(rows) // 2}, {}

    return read


def decide(search: Search, turn: int) -> Work:
    """One round of the decision."""

    def decide_stretch(task: Task) -> Done:
        stretch = task["number"]
        there = read_part(search.runs("edges", search.stretches), stretch, evidence.EDGE)
        told = None
        if turn:
            spoken = search.runs(f"words-{turn - 1:05d}", search.stretches)
            told = read_part(spoken, stretch, decision.WORD)
        decided = decision.decide(there, told)
        search.write(f"words-{turn:05d}", task, decided.words, decided.words["to"])
        search.write(f"decided-{turn:05d}", task, fates.of_decided(decided), decided.refs)
        return {"unsettled": decided.unsettled}, {}

    return decide_stretch


def _known(search: Search, turn: int, stretch: int) -> Rows:
    """What is decided of the documents of a stretch, now or when an earlier crawl was."""
    path = search.runs(f"decided-{turn:05d}", search.stretches)[stretch]
    tables = [read_part([path], stretch, fates.FATE)]
    for number, shelf in search.own(stretch):
        if shelf.earlier:
            tables.append(_fell_before(number, Fates.load(shelf.documents)))
    return fates.in_order(*tables)


def _fell_before(shelf: int, there: Fates) -> Rows:
    fell = np.flatnonzero(there.kinds != KEPT)
    rows = np.zeros(len(fell), fates.FATE)
    rows["ref"] = refs(shelf, fell)
    rows["kind"], rows["similarity"] = there.kinds[fell], there.similarities[fell]
    rows["id0"], rows["id1"] = there.repeated[fell].T
    rows["cluster0"], rows["cluster1"] = there.clusters[fell].T
    return rows


def tell(search: Search, kind: Kind, turn: int) -> Work:
    """What becomes of repeats, as the stretches of those know that they repeat."""

    def speak(task: Task) -> Done:
        stretch = task["number"]
        known = _known(search, turn, stretch)
        if kind == "url":
            told = search.runs("text-told", search.stretches)
            known = fates.in_order(known, read_part(told, stretch, fates.FATE))
        found = search.repeats(kind, "first", stretch)
        rows = fates.of_repeats(found, known, _FATES[kind])
        if kind == "text":
            rows = np.concatenate([rows, fates.of_firsts(found, known)])
        search.write(f"{kind}-told", task, rows, rows["ref"])
        return {}, {}

    return speak


def settle(search: Search, turn: int) -> Work:
    """The fates of each split's documents; of earlier ones, of those kept that would fall now."""

    def settle_stretch(task: Task) -> Done:
        stretch = task["number"]
        decided = search.runs(f"decided-{turn:05d}", search.stretches)[stretch]
        tables = [read_part([decided], stretch, fates.FATE)]
        for kind in ("text", "url") if search.urls else ("text",):
            told = search.runs(f"{kind}-told", search.stretches)
            tables.append(read_part(told, stretch, fates.FATE))
        rows = np.concatenate(tables)
        shelves = shelves_of(rows["ref"])
        counts, clusters = {}, 0
        for number, shelf in search.own(stretch):
            found = _by_place(rows[shelves == number], shelf.count)
            documents = search.load(shelf)
            # A cluster goes by the lowest id in it.
            names_one = (found.clusters == documents.ids).all(axis=1) & found.clusters.any(axis=1)
            clusters += int(names_one.sum())
            if shelf.earlier:
                kept = Fates.load(shelf.documents).kinds == KEPT
                falls = np.flatnonzero(kept & (found.kinds != KEPT))
                arrays = {name: array[falls] for name, array in found.arrays().items()}
                ids = documents.ids[falls]
                save_arrays(revoked_file(search, number), {"ids": ids, **arrays})
                counts[str(number)] = {"revoked": len(falls)}
            else:
                raw = Documents(**load_arrays(shelf.documents, Documents.names()))
                raw.save(search.place("settled", f"{shelf.name}.npz"), found)
                fell = np.bincount(found.kinds, minlength=BY_LIKENESS + 1)[1:].tolist()
                counts[str(number)] = dict(zip(COPIES, fell, strict=True))
        return {"by_shelf": counts, "clusters": clusters}, {}

    return settle_stretch


def revoked_file(search: Search, shelf: int) -> str:
    """Where the kept documents of an earlier shelf lie that would fall now: `ids`, and `Fates`."""
    return search.place("revoked", f"{shelf:05d}.npz")


def _by_place(rows: Rows, count: int) -> Fates:
    found = Fates.none(count)
    places = places_of(rows["ref"])
    found.kinds[places], found.similarities[places] = rows["kind"], rows["similarity"]
    found.repeated[places] = np.stack([rows["id0"], rows["id1"]], axis=1)
    found.clusters[places] = np.stack([rows["cluster0"], rows["cluster1"]], axis=1)
    return found
