import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.token_folders import Documents, make_encoder, write_token_folder

from trainrig import manifest, storage
from trainrig.attribution import CorpusIndex, open_index
from trainrig.attribution.index_run_file import CorpusIndexing
from trainrig.attribution.index_stage import index_tokens
from trainrig.errors import ConfigError, DataError, OutputTaken
from trainrig.tokens.tokenizers.encode import Encoder

# The ids of a vocabulary that are drawn, so that they need all of its bytes.
ALPHABETS = {270: (0, 1, 269), 65_536: (7, 65_535, 256), 200_000: (3, 131_072, 199_999)}


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Folders of shards of documents, all with the ids of one vocabulary."""

    vocabulary: int
    folders: tuple[tuple[Documents, ...], ...]

    def iterate(self) -> Iterator[tuple[str, list[int]]]:
        """Yield the source and the ids of each document."""
        for folder in self.folders:
            for shard in folder:
                for source, documents in shard.items():
                    for ids in documents:
                        yield source, list(ids)


@st.composite
def corpora(draw: st.DrawFn) -> Corpus:
    vocabulary = draw(st.sampled_from(list(ALPHABETS)))
    document = st.lists(st.sampled_from(ALPHABETS[vocabulary]), min_size=1, max_size=12)
    documents = st.lists(document, min_size=1, max_size=4)
    shard = st.dictionaries(st.sampled_from(["books", "web"]), documents, min_size=1)
    folder = st.lists(shard, min_size=1, max_size=2)
    folders = draw(st.lists(folder, min_size=1, max_size=2, unique_by=str))
    return Corpus(vocabulary, tuple(map(tuple, folders)))


def write_corpus(corpus: Corpus, at: Path) -> list[str]:
    return [
        write_token_folder(at / f"tokens-{number}", folder, corpus.vocabulary)
        for number, folder in enumerate(corpus.folders)
    ]


def build_index(corpus: Corpus, at: Path, partition_tokens: int) -> CorpusIndex:
    tokens = tuple(write_corpus(corpus, at))
    output = str(at / "index")
    index_tokens(
        CorpusIndexing(tokens=tokens, output=output, workers=0, partition_tokens=partition_tokens)
    )
    return open_index(output, verify=True)


def count_plainly(corpus: Corpus, ngram: list[int]) -> int:
    return sum(
        ids[place : place + len(ngram)] == ngram
        for _, ids in corpus.iterate()
        for place in range(len(ids) - len(ngram) + 1)
    )


def find_next_plainly(corpus: Corpus, context: list[int]) -> Counter[int]:
    return Counter(
        ids[place + len(context)]
        for _, ids in corpus.iterate()
        for place in range(len(ids) - len(context))
        if ids[place : place + len(context)] == context
    )


@pytest.mark.slow
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(corpus=corpora(), data=st.data())
def test_the_index_says_what_a_plain_search_finds(
    corpus: Corpus, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    at = tmp_path_factory.mktemp("corpus")
    index = build_index(corpus, at, data.draw(st.sampled_from([1, 7, 20, 1_000])))
    alphabet = ALPHABETS[corpus.vocabulary]
    query = data.draw(st.lists(st.sampled_from(alphabet), min_size=1, max_size=14))
    documents = list(corpus.iterate())

    assert index.tokens == sum(len(ids) for _, ids in documents)
    assert index.count(query) == count_plainly(corpus, query)
    lengths = [
        max(
            length
            for length in range(len(query) - begin + 1)
            if not length or count_plainly(corpus, query[begin : begin + length])
        )
        for begin in range(len(query))
    ]
    assert index.find_match_lengths(query).tolist() == lengths

    found = index.find(query, 1_000)
    assert len(found) == index.count(query) == len(set(found))
    for occurrence in found:
        document, ids = index.read_document(occurrence)
        assert ids[occurrence.begin : occurrence.end] == query
        assert document.source == occurrence.source and document.length == len(ids)
        shards = index.open_shards(occurrence.token_set)
        position = index.find_position(occurrence)
        assert shards.read_window(occurrence.source, position, len(query)).tolist() == query

    for context in (query, []):
        expected = next(
            (end, counts)
            for end in range(len(context) + 1)
            if (counts := find_next_plainly(corpus, context[end:]))
        )
        predicted = index.predict_next(context)
        assert dict(zip(predicted.ids, predicted.counts, strict=True)) == expected[1]
        assert predicted.context == len(context) - expected[0]
        assert predicted.compute_probability(predicted.ids[0]) > 0


PLAIN = Corpus(270, (({"web": [[1, 2, 3, 4], [1, 2, 9]]}, {"web": [[3, 4, 1, 2]]}),))
MORE = Corpus(270, (*PLAIN.folders, ({"news": [[1, 2, 3]]},)))


def read_files(folder: Path) -> dict[str, bytes]:
    # These have times and the machine's versions, or are in the order of the work.
    left_out = (manifest.MANIFEST, manifest.CLAIM, "records.parquet")
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in left_out
    }


def make_run(at: Path, tokens: list[str], **changes: object) -> CorpusIndexing:
    given = {"tokens": tuple(tokens), "output": str(at / "index"), "workers": 0, **changes}
    return CorpusIndexing(**{"partition_tokens": 6, **given})


def read_times(folder: Path) -> dict[Path, int]:
    """Return when the files of partitions were written, in ns; their records grow."""
    return {p: p.stat().st_mtime_ns for p in folder.iterdir() if p.name != "records.parquet"}


def test_a_new_folder_adds_partitions_and_keeps_the_others(tmp_path: Path) -> None:
    tokens = write_corpus(MORE, tmp_path)
    index_tokens(make_run(tmp_path, tokens[:1]))
    before = read_times(tmp_path / "index/partitions")
    assert open_index(tmp_path / "index").count([1, 2]) == 3
    counts = index_tokens(make_run(tmp_path, tokens)).counts
    assert (counts["documents"], counts["tokens"]) == (4, 14)
    assert before.items() <= read_times(tmp_path / "index/partitions").items()
    assert open_index(tmp_path / "index").count([1, 2]) == 4
    extended = read_files(tmp_path / "index")
    index_tokens(make_run(tmp_path, tokens[1:]))  # a folder that is no longer named is left out
    assert open_index(tmp_path / "index").count([1, 2]) == 1
    index_tokens(make_run(tmp_path, tokens))
    assert read_files(tmp_path / "index") == extended


class Killed(BaseException):
    """Stands for a kill: no code of a stage handles it."""


def test_a_stopped_index_is_refused_until_the_same_command_finishes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainrig.attribution import suffix_arrays

    tokens = write_corpus(MORE, tmp_path)
    whole = make_run(tmp_path, tokens, output=str(tmp_path / "whole"))
    index_tokens(whole)
    sort = suffix_arrays.sort_suffixes
    calls = itertools.count()

    def sort_twice(ids: suffix_arrays.Ids) -> suffix_arrays.Places:
        if next(calls) == 2:
            raise Killed
        return sort(ids)

    monkeypatch.setattr(suffix_arrays, "sort_suffixes", sort_twice)
    with pytest.raises(Killed):
        index_tokens(make_run(tmp_path, tokens))
    with pytest.raises(DataError, match="not finished; run it again to continue"):
        open_index(tmp_path / "index")
    index_tokens(make_run(tmp_path, tokens))
    partitions = len(open_index(tmp_path / "whole")._partitions)
    assert next(calls) == partitions + 1  # the killed partition was sorted again, no other
    ours = read_files(tmp_path / "index")
    theirs = read_files(tmp_path / "whole")
    assert {name: data for name, data in ours.items() if not name.startswith("sets/")} == {
        name: data for name, data in theirs.items() if not name.startswith("sets/")
    }


@pytest.mark.slow
@pytest.mark.ray
def test_workers_of_ray_write_the_same_bytes(tmp_path: Path) -> None:
    tokens = write_corpus(MORE, tmp_path)
    written = []
    for workers in (0, 1, 2):
        index_tokens(make_run(tmp_path, tokens, workers=workers))
        written.append(read_files(tmp_path / "index"))
        (tmp_path / "index").rename(tmp_path / f"by-{workers}")
    assert written[0] == written[1] == written[2]


@pytest.mark.slow
def test_an_index_in_a_bucket_is_the_same(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tokens,) = write_corpus(PLAIN, tmp_path)
    for path in Path(tokens).rglob("*"):
        if path.is_file():
            storage.write(f"{s3}/tokens/{path.relative_to(tokens)}", path.read_bytes())
    index_tokens(make_run(tmp_path, [f"{s3}/tokens"], output=f"{s3}/index"))
    local = build_index(PLAIN, tmp_path / "local", 6)
    remote = open_index(f"{s3}/index", verify=True)
    assert remote.unigram_counts.tolist() == local.unigram_counts.tolist()
    for query in ([1, 2], [3, 4, 1], [9]):
        assert remote.find(query, 9) == local.find(query, 9)
        (first, *_) = remote.find(query, 9)
        assert remote.read_document(first) == local.read_document(first)


def test_an_index_and_its_tokens_are_moved_together(tmp_path: Path) -> None:
    at = tmp_path / "before"
    build_index(PLAIN, at, 1_000)
    at.rename(tmp_path / "after")
    index = open_index(tmp_path / "after/index", verify=True)
    (occurrence,) = index.find([1, 2, 9], 5)
    assert index.read_document(occurrence)[0].url == "https://web.example/0/1"
    (tmp_path / "after/tokens-0").rename(tmp_path / "gone")
    alone = open_index(tmp_path / "after/index")
    assert alone.count([1, 2]) == 3
    with pytest.raises(DataError, match="no such folder"):
        alone.read_document(occurrence)


@pytest.mark.parametrize("also", [[], ["tokens-1"]])
def test_tokens_that_were_moved_are_found_after_indexing_again(
    tmp_path: Path, also: list[str]
) -> None:
    tokens = write_corpus(MORE, tmp_path)
    index_tokens(make_run(tmp_path, tokens[:1]))
    before = read_times(tmp_path / "index/partitions")
    (tmp_path / "away").mkdir()
    Path(tokens[0]).rename(tmp_path / "away/tokens")
    others = [str(tmp_path / name) for name in also]
    index_tokens(make_run(tmp_path, [str(tmp_path / "away/tokens"), *others]))
    index = open_index(tmp_path / "index", verify=True)
    (occurrence,) = index.find([1, 2, 9], 5)
    assert index.read_document(occurrence)[0].url == "https://web.example/0/1"
    assert before.items() <= read_times(tmp_path / "index/partitions").items()


def test_shards_that_changed_since_they_were_indexed_are_refused(tmp_path: Path) -> None:
    index = build_index(PLAIN, tmp_path, 1_000)
    (occurrence,) = index.find([1, 2, 9], 5)
    shard = tmp_path / "tokens-0/train/documents-00000.bin"
    damaged = bytearray(shard.read_bytes())
    damaged[0] ^= 1
    shard.write_bytes(damaged)
    with pytest.raises(DataError, match="does not match its checksum"):
        open_index(tmp_path / "index").read_document(occurrence)
    with pytest.raises(DataError, match=r"documents-00000\.bin: damaged: its SHA-256 differs"):
        open_index(tmp_path / "index", verify=True)
    for path in (tmp_path / "tokens-0/train").iterdir():
        path.unlink()
    (tmp_path / "tokens-0" / manifest.MANIFEST).unlink()
    (tmp_path / "tokens-0" / manifest.CLAIM).unlink()
    (tmp_path / "tokens-0/tokenizer.json").unlink()
    write_token_folder(tmp_path / "tokens-0", MORE.folders[1], 270)
    with pytest.raises(DataError, match=r"other shards than .* was made of"):
        open_index(tmp_path / "index").read_document(occurrence)


def test_a_damaged_index_is_refused(tmp_path: Path) -> None:
    build_index(PLAIN, tmp_path, 1_000)
    (suffixes,) = (tmp_path / "index/partitions").glob("*.suffixes")
    whole = suffixes.read_bytes()
    suffixes.write_bytes(whole[:-4])
    with pytest.raises(DataError, match=r"suffixes: \d+ bytes, but manifest.json says"):
        open_index(tmp_path / "index")
    suffixes.write_bytes(whole[::-1])
    with pytest.raises(DataError, match="suffixes: damaged"):
        open_index(tmp_path / "index", verify=True)


def test_ids_that_no_document_can_hold_are_refused(tmp_path: Path) -> None:
    index = build_index(PLAIN, tmp_path, 1_000)
    for wrong in ([270], [1, -1]):
        with pytest.raises(ConfigError, match="its vocabulary has 270 entries"):
            index.count(wrong)
    with pytest.raises(ConfigError, match="empty text"):
        index.count([])


def test_folders_that_no_index_can_be_made_of_are_refused(tmp_path: Path) -> None:
    tokens = write_corpus(PLAIN, tmp_path)
    with pytest.raises(ConfigError, match="same shards"):
        index_tokens(make_run(tmp_path, [*tokens, *tokens]))
    other = json.loads(make_encoder().text)
    other["model"]["merges"] = other["model"]["merges"][:-1]
    encoder = Encoder(json.dumps(other))
    strange = write_token_folder(tmp_path / "strange", PLAIN.folders[0], 270, encoder)
    with pytest.raises(DataError, match="another tokenizer"):
        index_tokens(make_run(tmp_path, [*tokens, strange]))
    with pytest.raises(DataError, match="no such folder"):
        index_tokens(make_run(tmp_path, [str(tmp_path / "nowhere")]))
    index_tokens(make_run(tmp_path, tokens))
    with pytest.raises(DataError, match="is the output of `index`"):
        index_tokens(make_run(tmp_path, [str(tmp_path / "index")], output=str(tmp_path / "again")))
    with pytest.raises(OutputTaken, match="partition_tokens"):
        index_tokens(make_run(tmp_path, tokens, partition_tokens=9))
    with pytest.raises(OutputTaken, match="tokenizer"):
        index_tokens(make_run(tmp_path, [strange]))
    assert open_index(tmp_path / "index").unigram_counts.sum() == 11
