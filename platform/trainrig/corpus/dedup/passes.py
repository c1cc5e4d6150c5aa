"""The passes that look for copies, each the work of one task over files of the pass before.

    equal keys, then repeats     first for URLs where that is asked for, then for texts
    band-keys, shared-keys       band keys divided by their range; those that several have
    bands, meet                  for these, what their documents go by; who meets whom
    carry, verify, edges         candidates compared on their shingles; those at the threshold
    decide                       as many rounds as it takes
    tell, settle                 what became of all that equals what was decided; each split's own

Tasks over documents are numbered by stretch, tasks over keys by part (`Plan`).
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.dedup.decisions import decision, dedup_decisions
from trainrig.corpus.dedup.decisions.documents import (
    BY_LIKENESS,
    BY_TEXT,
    BY_URL,
    COPIES,
    KEPT,
    Documents,
    Fates,
    keep_order,
)
from trainrig.corpus.dedup.decisions.keep import KeepRule
from trainrig.corpus.dedup.pairs import buckets, equals, evidence, key_ranges, verify_candidates
from trainrig.corpus.dedup.pairs import shared_keys as sharing
from trainrig.corpus.dedup.pairs.document_reference import (
    NAME,
    Shelf,
    digest_words,
    fields_of,
    one_each,
    parts_of_keys,
    places_of,
    refs,
    shelves_of,
)
from trainrig.corpus.dedup.pairs.partition_plan import Plan
from trainrig.corpus.dedup.pairs.remote_documents import GUEST, Once, guests_of, told_names
from trainrig.corpus.dedup.pairs.sorted_runs import (
    Part,
    Rows,
    Run,
    read_part,
    write_grouped,
    write_run,
    writing_run,
)
from trainrig.corpus.dedup.pairs.verify import Verification
from trainrig.corpus.dedup.signatures.minhash import MinHash
from trainrig.corpus.dedup.signatures.signature_file import load_columns
from trainrig.corpus.files.arrays import save_arrays
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

    def order(self, shelf: Shelf) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Ranks and ids of the documents of a shelf."""
        return keep_order(shelf, self.keep)

    def runs(self, name: str, tasks: range) -> list[str]:
        """Where the runs that a pass wrote lie."""
        return [self.place(name, f"{number:05d}.run") for number in tasks]

    def part(self, name: str, tasks: range, number: int, kind: np.dtype[Any]) -> Part:
        """What the runs that a pass wrote have of a part."""
        return Part.of(self.runs(name, tasks), number, kind)

    def writing(self, name: str, task: Task) -> contextlib.AbstractContextManager[Run]:
        """A run whose parts are stretches, to be written."""
        path = self.place(name, f"{task['number']:05d}.run")
        return writing_run(path, len(self.stretches))

    def write(self, name: str, task: Task, rows: Rows, by: NDArray[np.uint64]) -> None:
        """Write a run whose parts are the stretches of the refs `by`."""
        stretch_of = self.plan.stretch_of(len(self.shelves))
        with self.writing(name, task) as run:
            run.add(rows, stretch_of[shelves_of(by)])

    def write_by_key(self, name: str, task: Task, rows: Rows) -> None:
        """Write a run whose parts are ranges of the rows' keys."""
        path = self.place(name, f"{task['number']:05d}.run")
        write_run(path, rows, parts_of_keys(rows["key"], len(self.parts)), len(self.parts))

    def own_repeats(self, kind: Kind, stretch: int) -> Rows:
        """The repeats of a first in the same stretch, which may itself repeat one elsewhere."""
        path = self.runs(f"{kind}-own-repeats", self.stretches)[stretch]
        return read_part([path], stretch, equals.REPEAT)

    def repeats(self, kind: Kind, stretch: int) -> NDArray[np.uint64]:
        """The refs of all repeats that lie in a stretch."""
        paths = self.runs(f"{kind}-repeats-by-ref", self.parts)
        elsewhere = read_part(paths, stretch, equals.REPEAT)
        return np.concatenate([elsewhere["ref"], self.own_repeats(kind, stretch)["ref"]])

    def refs(self, stretch: int) -> NDArray[np.uint64]:
        """[2] the first ref of a stretch, and the one after its last."""
        return refs(np.array(self.plan.stretches[stretch]), np.zeros(2, np.int64))

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
    """A row for each document that may repeat another's text, or URL, of another stretch.

    Those that repeat one of their own are left out: a text that is everywhere has a row for each
    stretch, not for each copy.
    """

    def write(task: Task) -> Done:
        tables = [np.empty(0, equals.DIGEST)]
        gone = np.empty(0, np.uint64)
        if kind == "text" and search.urls:
            gone = search.repeats("url", task["number"])
        for number, shelf in search.own(task["number"]):
            documents = Documents.load(shelf, search.keep)
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
        rows = np.concatenate(tables)
        again = equals.repeats(rows)
        search.write(f"{kind}-own-repeats", task, again, again["ref"])
        search.write_by_key(f"{kind}-keys", task, rows[~np.isin(rows["ref"], again["ref"])])
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


def _searched(search: Search, stretch: int) -> list[sharing.Searched]:
    """Which documents of each shelf repeat none; of earlier crawls, which of those kept."""
    gone = search.repeats("text", stretch)
    if search.urls:
        gone = np.concatenate([gone, search.repeats("url", stretch)])
    found = []
    for number, shelf in search.own(stretch):
        wanted = _not_among(gone, number, shelf)
        if shelf.earlier:
            wanted &= Fates.load(shelf.documents).kinds == KEPT
        keys = load_columns(shelf.signatures, ["keys"])["keys"]
        found.append(sharing.Searched(number, keys, wanted))
    return found


def band_keys(search: Search) -> Work:
    """The band keys of the documents that are searched, alone."""

    def write(task: Task) -> Done:
        found, starts = sharing.keys_by_part(_searched(search, task["number"]), len(search.parts))
        write_grouped(search.place("band-keys", f"{task['number']:05d}.run"), found, starts)
        return {}, {}

    return write


def shared_keys(search: Search) -> Work:
    """Which of them more than one document has."""

    def compare(task: Task) -> Done:
        runs = search.runs("band-keys", search.stretches)
        keys = Part.of(runs, task["number"], sharing.KEY)
        starts = np.cumsum([0, *keys.counts(runs)])
        with writing_run(
            search.place("shared-keys", f"{task['number']:05d}.run"), len(runs)
        ) as run:
            run.add_grouped(sharing.shared(keys, search.plan.keys), starts)
        return {}, {}

    return compare


def bands(search: Search) -> Work:
    """An entry for each shared key of each document."""

    def write(task: Task) -> Done:
        runs = search.runs("shared-keys", search.parts)
        shared = Part.of(runs, task["number"], sharing.SHARED)
        rows, starts = sharing.entries(
            _searched(search, task["number"]),
            lambda shelf: search.order(search.shelves[shelf]),
            shared.read(),
            np.array(shared.counts(runs)),
        )
        write_grouped(search.place("bands", f"{task['number']:05d}.run"), rows, starts)
        return {}, {}

    return write


def meet(search: Search) -> Work:
    """The pairs that share a key, but for those of two earlier documents: they are decided.

    Where each is compared; and whose shingles are wanted there.
    """
    stretch_of = search.plan.stretch_of(len(search.shelves))
    first_earlier = sum(not shelf.earlier for shelf in search.shelves)
    earlier = first_earlier << 32 if first_earlier < len(search.shelves) else None

    def pair(task: Task) -> Done:
        entries = search.part("bands", search.stretches, task["number"], buckets.ENTRY)
        pairs = key_ranges.candidates(entries, len(search.parts), search.plan.entries, earlier)
        with search.writing("candidates", task) as run, search.writing("wanted", task) as wanted:
            guests = Once(lambda rows: wanted.add(rows, stretch_of[shelves_of(rows["ref"])]))
            for found in pairs:
                run.add(found, stretch_of[shelves_of(found["a"])])
                guests.add(guests_of(found["a"], found["b"], stretch_of))
            guests.close()
        return {}, {}

    return pair


def carry(search: Search) -> Work:
    """The shingles of the guests of other stretches."""

    def write(task: Task) -> Done:
        wanted = search.part("wanted", search.parts, task["number"], GUEST)
        with (
            search.writing("carried-names", task) as names,
            search.writing("carried-shingles", task) as shingles,
        ):

            def hand_on(rows: Rows) -> None:
                sets = verify_candidates.carried(
                    rows, len(search.stretches), search.shelves, search.order
                )
                names.add_grouped([sets.names], sets.first_names)
                shingles.add_grouped(sets.shingles(), sets.first_shingles)

            guests = Once(hand_on)
            for piece in wanted.pieces():
                guests.add(piece)
            guests.close()
        return {}, {}

    return write


def _carried(search: Search, stretch: int) -> Iterator[verify_candidates.Sets]:
    """What was carried to a stretch, from one after the other, lot by lot."""
    for names_run, shingles_run in zip(
        search.runs("carried-names", search.stretches),
        search.runs("carried-shingles", search.stretches),
        strict=True,
    ):
        shingles = Part.of([shingles_run], stretch, verify_candidates.SHINGLE).chunks()
        for names in Part.of([names_run], stretch, verify_candidates.SET).chunks():
            # Of documents that have none, no shingle was written.
            yield verify_candidates.Sets(
                names, next(shingles, np.empty(0, verify_candidates.SHINGLE))
            )


def verify(search: Search) -> Work:
    """The pairs of each split that are alike, as evidence."""

    def compare(task: Task) -> Done:
        there = search.part("candidates", search.parts, task["number"], buckets.CANDIDATE)
        met = verify_candidates.Met.of(buckets.nearest_of_all(there.pieces()))
        here = slice(*np.searchsorted(met.seconds, search.refs(task["number"])))
        refs_here = np.union1d(met.firsts, met.seconds[here])
        own = verify_candidates.gathered(refs_here, search.shelves, search.order)
        others = itertools.chain([own], _carried(search, task["number"]))
        found, names = verify_candidates.alike(
            met, own, others, search.verification.measure, search.floor
        )
        shelves = shelves_of(found["a"])
        for number, shelf in search.own(task["number"]):
            if not shelf.earlier:
                of_shelf = slice(*np.searchsorted(shelves, [number, number + 1]))
                evidence.write_pairs(shelf.pairs, found[of_shelf], names)
        return {"candidates": len(met.seconds), "evidence": len(found)}, {}

    return compare


def edges(search: Search) -> Work:
    """The pairs that decide, where their later document is; how many they are."""
    stretch_of = search.plan.stretch_of(len(search.shelves))

    def read(task: Task) -> Done:
        alike, threshold = 0, search.minhash.threshold
        with (
            search.writing("edges", task) as run,
            search.writing("names", task) as names_run,
            search.writing("guests", task) as guests_run,
        ):

            def hand_on(rows: Rows) -> None:
                readers, homes = (
                    rows["reader"].astype(np.int64),
                    stretch_of[shelves_of(rows["ref"])],
                )
                names_run.add(fields_of(rows, NAME), readers)
                away = readers != homes
                guests_run.add(fields_of(rows[away], GUEST), homes[away])

            names = Once(hand_on)
            for number, shelf in search.own(task["number"]):
                if shelf.earlier:
                    continue
                for found in evidence.read_pairs(shelf.pairs, number, threshold):
                    alike += len(found[0])
                    pairs, later, earlier = decision.edges_of(*found)
                    readers = stretch_of[shelves_of(later["ref"])]
                    run.add(pairs, readers)
                    for rows, stretches in (
                        (later, readers),
                        (earlier, readers),
                        (earlier, stretch_of[shelves_of(earlier["ref"])]),
                    ):
                        names.add(told_names(rows, stretches))
            names.close()
        return {"alike": alike}, {}

    return read


def decide(search: Search, turn: int) -> Work:
    """One round of the decision."""

    def decide_stretch(task: Task) -> Done:
        stretch = task["number"]
        told, echoes = None, Part(decision.ECHO, ())
        if turn:
            before = f"{turn - 1:05d}"
            told = search.part(f"words-{before}", search.stretches, stretch, decision.WORD).read()
            echoes = search.part(f"echoes-{before}", search.stretches, stretch, decision.ECHO)
        decided = decision.decide(
            one_each(search.part("names", search.stretches, stretch, NAME).read()),
            search.part("edges", search.stretches, stretch, decision.EDGE).read(),
            search.refs(stretch),
            told,
            echoes.pieces,
        )
        search.write(f"decided-{turn:05d}", task, dedup_decisions.of_decided(decided), decided.refs)
        search.write(f"echoes-{turn:05d}", task, decided.echoes, decided.echoes["about"])
        guests = search.part("guests", search.stretches, stretch, GUEST)
        with search.writing(f"words-{turn:05d}", task) as words:
            for piece in guests.pieces():
                words.add(decided.words(piece["ref"]), piece["reader"].astype(np.int64))
        return {"unsettled": decided.unsettled}, {}

    return decide_stretch


def _known(search: Search, turn: int, stretch: int) -> Rows:
    """What is decided of the documents of a stretch, now or when an earlier crawl was."""
    path = search.runs(f"decided-{turn:05d}", search.stretches)[stretch]
    tables = [read_part([path], stretch, dedup_decisions.FATE)]
    for number, shelf in search.own(stretch):
        if shelf.earlier:
            tables.append(_fell_before(number, Fates.load(shelf.documents)))
    return dedup_decisions.in_order(*tables)


def _fell_before(shelf: int, there: Fates) -> Rows:
    fell = np.flatnonzero(there.kinds != KEPT)
    rows = np.zeros(len(fell), dedup_decisions.FATE)
    rows["ref"] = refs(shelf, fell)
    rows["kind"], rows["similarity"] = there.kinds[fell], there.similarities[fell]
    rows["id0"], rows["id1"] = there.repeated[fell].T
    rows["cluster0"], rows["cluster1"] = there.clusters[fell].T
    return rows


def tell(search: Search, kind: Kind, turn: int) -> Work:
    """What becomes of repeats elsewhere, as the stretch of what they repeat knows it."""
    stretch_of = search.plan.stretch_of(len(search.shelves))

    def speak(task: Task) -> Done:
        stretch = task["number"]
        known = _known(search, turn, stretch)
        if kind == "url":
            known = dedup_decisions.in_order(known, _told(search, "text", stretch, known))
        elsewhere = search.part(f"{kind}-repeats-by-first", search.parts, stretch, equals.REPEAT)
        firsts = equals.one_of_each_first(search.own_repeats(kind, stretch))
        with search.writing(f"{kind}-told", task) as run:
            for piece in elsewhere.pieces():
                rows = dedup_decisions.of_repeats(piece, known, _FATES[kind])
                run.add(rows, stretch_of[shelves_of(rows["ref"])])
                firsts = equals.one_of_each_first(np.concatenate([firsts, piece]))
            if kind == "text":
                paths = search.runs(f"{kind}-repeats-by-ref", search.parts)
                there = read_part(paths, stretch, equals.REPEAT)
                firsts = firsts[~np.isin(firsts["first"], there["ref"])]
                rows = dedup_decisions.of_firsts(firsts, known)
                run.add(rows, stretch_of[shelves_of(rows["ref"])])
        return {}, {}

    return speak


def _told(search: Search, kind: Kind, stretch: int, known: Rows) -> Rows:
    """What becomes of the repeats of a stretch, in the order of refs; and of firsts of texts."""
    told = dedup_decisions.in_order(
        read_part(search.runs(f"{kind}-told", search.stretches), stretch, dedup_decisions.FATE)
    )
    own = dedup_decisions.of_own_repeats(
        search.own_repeats(kind, stretch), told, known, _FATES[kind]
    )
    return dedup_decisions.in_order(told, own)


def settle(search: Search, turn: int) -> Work:
    """The fates of each split's documents; of earlier ones, of those kept that would fall now."""

    def settle_stretch(task: Task) -> Done:
        stretch = task["number"]
        decided = search.runs(f"decided-{turn:05d}", search.stretches)[stretch]
        tables = [read_part([decided], stretch, dedup_decisions.FATE)]
        known = _known(search, turn, stretch)
        kinds: tuple[Kind, ...] = ("text", "url") if search.urls else ("text",)
        for kind in kinds:
            tables.append(_told(search, kind, stretch, known))
            known = dedup_decisions.in_order(known, tables[-1])
        rows = np.concatenate(tables)
        shelves = shelves_of(rows["ref"])
        counts, clusters = {}, 0
        for number, shelf in search.own(stretch):
            found = _by_place(rows[shelves == number], shelf.count)
            documents = Documents.stored(shelf)
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
                documents.save(search.place("settled", f"{shelf.name}.npz"), found)
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
