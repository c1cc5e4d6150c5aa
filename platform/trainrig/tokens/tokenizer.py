"""The stage `tokenizer`: a tokenizer trained on a sample of documents, and a report on it.

TOKENIZER/  tokenizer.json  report.json  report.html

The report measures text that training did not see. These documents are held out by the same rule as
in `tokenize`: the hash of the URL, or of the id. So if `tokenize` holds out at least as large a
share, models are not trained on the measured text either.

report.json is part of the stage's output. report.html is drawn from it and is not, so another
version of the drawing library does not make another tokenizer.
"""

import dataclasses
import hashlib
import heapq
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import model_validator

from trainrig import manifest, storage
from trainrig.config import NOT_IDENTITY, OUTPUT, Field, RunFile, Settings
from trainrig.errors import DataError
from trainrig.manifest import Manifest
from trainrig.tokens.document_set import Documents, DocumentSet, is_held_out, open_documents
from trainrig.tokens.tokenizers import vocabulary_measures
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.tokens.tokenizers.imported import Imported
from trainrig.tokens.tokenizers.tokenizer_kinds import ByteLevelBPE, Unigram, WordPiece
from trainrig.tokens.tokenizers.training_sample import DrawnTexts, TextSampling, draw_sample

TOKENIZER_FILE = "tokenizer.json"
REPORT = "report.json"
REPORT_PAGE = "report.html"
REPORT_FORMAT = 1  # version of report.json

Tokenizer = Annotated[ByteLevelBPE | Unigram | WordPiece | Imported, Field(discriminator="kind")]


def train_tokenizer(settings: Tokenizer, texts: Iterable[str]) -> bytes:
    """Return the `tokenizer.json` of a tokenizer trained on `texts`; an imported one ignores them.

    The caller sets the number of threads, by `RAYON_NUM_THREADS` or `TOKENIZERS_PARALLELISM=false`,
    before the first use of the library in a process.

    Raises DataError if the texts are too few for the vocabulary, or if an imported file is not a
    lossless tokenizer.
    """
    return settings.train(texts)


class Reporting(Settings):
    """Settings for the report: what it measures and which vocabularies it compares."""

    # Share of documents on which the tokenizer is measured instead of trained, selected by hash of
    # URL or id.
    held_out: float = Field(default=0.05, gt=0, lt=1)
    # Bytes (UTF-8) of held-out documents to measure on: those whose ids have the lowest hashes.
    bytes: int = Field(default=4_000_000, ge=1)
    # Sizes of smaller vocabularies to compare, taken from the same training (ByteLevelBPE only);
    # None: a half, a quarter and an eighth of `tokenizer.vocabulary`.
    smaller: tuple[int, ...] | None = None
    # Other tokenizers to compare with: name = path of a tokenizer.json.
    compare: Annotated[dict[str, str], NOT_IDENTITY] = Field(default_factory=dict)
    # Width of the model whose embedding parameters are counted; the smallest GPT-2 has 768.
    channels: int = Field(default=768, ge=1)
    # Whether that model shares the parameters of its embedding and its output head.
    tied: bool = True


class TokenizerTraining(RunFile):
    """Run file of `trainrig tokenizer`, which trains a tokenizer on a sample of documents."""

    verb: ClassVar[str] = "tokenizer"
    output_format: ClassVar[int] = 2  # 2: SentencePiece trains unigram models

    stage: Literal["tokenizer"] = "tokenizer"
    # Documents to train on: a folder that `curate` wrote, or files as `[[documents]]` tables.
    documents: Documents
    output: Annotated[str, OUTPUT]  # folder to write, on disk or in a bucket
    tokenizer: Tokenizer = ByteLevelBPE()  # kind of tokenizer to train, or a tokenizer to import
    sample: TextSampling = TextSampling()  # amount of text to train on, and its sources
    report: Reporting = Reporting()  # settings of the report

    @model_validator(mode="after")
    def _check_smaller_sizes(self) -> Self:
        tokenizer = self.tokenizer
        sizes = self.report.smaller or ()
        if sizes and not isinstance(tokenizer, ByteLevelBPE):
            raise ValueError(
                f"report.smaller: a smaller {tokenizer.kind} is not part of a larger one; leave it "
                "out, train the smaller one, and name its tokenizer.json in report.compare"
            )
        for size in sizes:
            if (
                isinstance(tokenizer, ByteLevelBPE)
                and not tokenizer.least <= size < tokenizer.vocabulary
            ):
                raise ValueError(
                    f"report.smaller: {size} entries are impossible; set sizes from "
                    f"{tokenizer.least} to {tokenizer.vocabulary - 1}"
                )
        return self


def make_tokenizer(run: TokenizerTraining) -> Manifest:
    """Train the tokenizer that `run` describes; return the manifest of its folder."""
    documents = open_documents(run.documents)
    others = [(name, Encoder.load(path)) for name, path in sorted(run.report.compare.items())]
    inputs = dict(documents.inputs)
    inputs |= {f"report.compare.{name}": one.fingerprint for name, one in others}
    if isinstance(run.tokenizer, Imported):
        inputs["tokenizer.path"] = run.tokenizer.content
    stage = manifest.claim(run.output, run, inputs)
    if stage.finished:
        return stage.finished
    with stage.undo_if_refused():
        collector = HeldOutCollector(run.report)
        sample = draw_sample(collector.filter_rows(_iterate_rows(documents)), run.sample)
        texts = collector.list_texts()
        if not (sample.texts or texts):
            raise DataError("documents: no document was found; name files that contain documents")
        trained = train_tokenizer(run.tokenizer, sample.texts)
        encoder = Encoder(trained.decode(), stage.build_path(TOKENIZER_FILE))
    storage.write(stage.build_path(TOKENIZER_FILE), trained)
    others = [*_build_smaller(run, encoder), *others]
    results = _build_report(run, encoder, sample, texts, others)
    storage.write(stage.build_path(REPORT), _serialise_report(results))
    # Imported here: workers and `check` import this module, and must not load matplotlib.
    from trainrig.tokens.tokenizers.vocabulary_page import render_vocabulary_page

    storage.write(stage.build_path(REPORT_PAGE), render_vocabulary_page(results).encode())
    counts = {
        "vocabulary": encoder.vocabulary_size,
        "sampled_documents": len(sample.texts),
        "sampled_bytes": sum(sample.bytes_of.values()),
        "never_seen_entries": results.vocabulary.never_seen,
    }
    files = {
        name: manifest.compute_file_sum(stage.build_path(name)) for name in (TOKENIZER_FILE, REPORT)
    }
    return stage.finish(counts, files)


class HeldOutCollector:
    """Collector of the held-out documents that the report measures."""

    def __init__(self, report: Reporting) -> None:
        self._report = report
        self._heap: list[
            tuple[int, str, vocabulary_measures.MeasuredText]
        ] = []  # the highest hash is first
        self._bytes = 0

    def filter_rows(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str, str]]:
        """Yield (id, source, text) of the documents that are not held out; collect the others."""
        for row in rows:
            if is_held_out(row["url"] or row["id"], self._report.held_out):
                self._collect(row)
            else:
                yield row["id"], row["source"], row["text"]

    def list_texts(self) -> list[vocabulary_measures.MeasuredText]:
        """Return the collected texts, lowest hash first, independent of the documents' order."""
        return [text for _, _, text in sorted(self._heap, key=lambda item: (-item[0], item[1]))]

    def _collect(self, row: Mapping[str, Any]) -> None:
        text = vocabulary_measures.MeasuredText(
            row["id"], row["source"], row["language"] or "", row["text"]
        )
        place = int.from_bytes(hashlib.blake2b(text.id.encode(), digest_size=8).digest(), "big")
        heapq.heappush(self._heap, (-place, text.id, text))
        self._bytes += len(text.text.encode())
        while self._bytes - len(self._heap[0][2].text.encode()) >= self._report.bytes:
            self._bytes -= len(heapq.heappop(self._heap)[2].text.encode())


def _iterate_rows(documents: DocumentSet) -> Iterator[Mapping[str, Any]]:
    for split in documents.cut_splits():
        yield from documents.read_rows(split.task)


def _build_smaller(run: TokenizerTraining, encoder: Encoder) -> list[tuple[str, Encoder]]:
    """Return smaller vocabularies from the same training, each with its name for the report."""
    tokenizer = run.tokenizer
    if not isinstance(tokenizer, ByteLevelBPE):
        return []
    parts = [tokenizer.vocabulary // 2, tokenizer.vocabulary // 4, tokenizer.vocabulary // 8]
    sizes = run.report.smaller
    if sizes is None:
        sizes = tuple(size for size in parts if size >= tokenizer.least)
    return [
        (
            f"its first {size:,} entries",
            Encoder(vocabulary_measures.keep_first_entries(encoder.text, size)),
        )
        for size in sizes
    ]


def _build_report(
    run: TokenizerTraining,
    encoder: Encoder,
    sample: DrawnTexts,
    texts: list[vocabulary_measures.MeasuredText],
    others: Sequence[tuple[str, Encoder]],
) -> vocabulary_measures.TokenizerReport:
    measured = texts or [
        vocabulary_measures.MeasuredText(f"sample {number}", "sample", "", text)
        for number, text in enumerate(sample.texts)
    ]
    parameters = run.report.channels * (1 if run.report.tied else 2)
    return vocabulary_measures.TokenizerReport(
        kind=run.tokenizer.kind,
        held_out=bool(texts),
        sampled_documents=len(sample.texts),
        sampled_bytes_of=sample.bytes_of,
        channels=run.report.channels,
        tied=run.report.tied,
        vocabulary=vocabulary_measures.measure(
            encoder, measured, vocabulary_measures.count_occurrences(encoder, sample.texts)
        ),
        rivals=tuple(
            vocabulary_measures.measure_rival(name, one, measured, parameters)
            for name, one in [("this one", encoder), *others]
        ),
    )


def _serialise_report(results: vocabulary_measures.TokenizerReport) -> bytes:
    facts = {"format": REPORT_FORMAT, **dataclasses.asdict(results)}
    return json.dumps(facts, indent=1, ensure_ascii=False).encode()
