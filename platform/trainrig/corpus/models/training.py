"""The stages that train quality models: `classifier` and `ngrams`, and the texts that they read.

The output folder of `classifier` holds classifier.safetensors, report.json and report.html. That of
`ngrams` holds ngrams.safetensors, report.json and, with `arpa`, ngrams.arpa.gz. The manifest lists
all but report.html, which is drawn from the facts in report.json.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from trainrig import manifest, storage
from trainrig.config import NOT_IDENTITY, OUTPUT, ProgressUnit, RunFile, Settings
from trainrig.corpus.models import classifier, language_model
from trainrig.corpus.models.classifier import Learning
from trainrig.corpus.models.ngram_counts import LONGEST
from trainrig.corpus.models.subwords import Pieces, Subwords, TokenizerFile, make_tokenizer
from trainrig.corpus.read import ReadSettings, Unreadable, cut_pieces, find_files, read
from trainrig.errors import DataError
from trainrig.manifest import Manifest, Stage
from trainrig.ray_runtime.split_processing import Progress


class TextFiles(Settings):
    """Files of texts: curated or other Parquet, JSONL, plain text. Pages must be curated first."""

    # Files, folders and patterns (with the wildcards * and ?), on disk or in buckets.
    paths: Annotated[tuple[str, ...], NOT_IDENTITY] = Field(min_length=1)
    reading: ReadSettings = ReadSettings()  # how the files are split into texts

    def fingerprint(self) -> str:
        """Return a digest of the files' contents. Raises DataError if a path matches nothing."""
        paths = [file.path for file in find_files(self.paths)]
        return manifest.digest(storage.compute_content_keys(paths))

    def read(self) -> Iterator[str]:
        """Yield the texts in the order of the files; unreadable records are skipped.

        Raises DataError for files that contain pages instead of texts.
        """
        for group in cut_pieces(find_files(self.paths), self.reading):
            for piece in group:
                for page in read(piece, self.reading):
                    if isinstance(page, Unreadable):
                        continue
                    if page.content_type.partition(";")[0].strip() != "text/plain":
                        raise DataError(
                            f"{piece.path} contains a page ({page.content_type}), not a "
                            "text; curate it first, and name the folder `kept` of the output"
                        )
                    yield page.body.decode("utf-8", "replace")


CLASSIFIER_FILE = "classifier.safetensors"
NGRAMS_FILE = "ngrams.safetensors"
ARPA_FILE = "ngrams.arpa.gz"
REPORT = "report.json"
REPORT_PAGE = "report.html"


class ClassifierTraining(RunFile):
    """`trainrig classifier`: trains a classifier on wanted and unwanted texts."""

    verb: ClassVar[str] = "classifier"
    progress: ClassVar[ProgressUnit] = "splits"
    output_format: ClassVar[int] = 2  # 2: two models identify the language of short texts

    stage: Literal["classifier"] = "classifier"
    positives: TextFiles  # texts that are wanted
    negatives: TextFiles  # texts that are not wanted
    output: Annotated[str, OUTPUT]  # folder to write to, on disk or in a bucket
    learning: Learning = Learning()  # hyperparameters of the training


class NgramTraining(RunFile):
    """`trainrig ngrams`: trains an n-gram language model, for perplexities."""

    verb: ClassVar[str] = "ngrams"
    progress: ClassVar[ProgressUnit] = "splits"

    stage: Literal["ngrams"] = "ngrams"
    texts: TextFiles  # texts to train on
    output: Annotated[str, OUTPUT]  # folder to write to, on disk or in a bucket
    pieces: Pieces = Subwords()  # units that the n-grams consist of
    sample_bytes: int = Field(default=100_000_000, ge=1)  # bytes of text to train the pieces on
    order: int = Field(default=5, ge=1, le=LONGEST)  # number of pieces in the longest n-grams
    # Fewest occurrences of an n-gram to keep, for each order from 1; None: all are kept. The list
    # [1, 1, 2, 2, 2] omits n-grams of three or more pieces that occur once.
    least_counts: tuple[int, ...] | None = None
    arpa: bool = False  # write the model as an ARPA file too

    @model_validator(mode="after")
    def _check_least_counts(self) -> Self:
        least = self.least_counts
        if least is None:
            return self
        if len(least) != self.order:
            raise ValueError(
                f"least_counts has {len(least)} numbers; order {self.order} requires {self.order}"
            )
        if least[0] != 1 or list(least) != sorted(least):
            raise ValueError(
                f"least_counts is {list(least)}; the first must be 1, and "
                "none may be below the one before"
            )
        return self


def train_classifier(run: ClassifierTraining, progress: Progress | None = None) -> Manifest:
    """Train the classifier that `run` describes; return the manifest of its output folder.

    Raises DataError if texts are missing, or too few to train on and to hold out.
    """
    report_progress = progress or (lambda done, whole: None)
    stage = manifest.claim(
        run.output,
        run,
        {"positives": run.positives.fingerprint(), "negatives": run.negatives.fingerprint()},
    )
    if stage.finished:
        return stage.finished
    with stage.undo_if_refused():  # an InputError gives the output folder up again
        trained = classifier.train(run.positives.read(), run.negatives.read(), run.learning)
    trained.save(stage.build_path(CLASSIFIER_FILE))
    # Imported here because `trainrig check` imports this module and would load matplotlib.
    from trainrig.corpus.models.classifier_page import render_classifier_page

    storage.write(stage.build_path(REPORT_PAGE), render_classifier_page(trained.facts).encode())
    counts = {name: trained.facts[name] for name in ("positives", "negatives", "auc")}
    report_progress(1, 1)
    return _finish(stage, trained.facts, counts, [CLASSIFIER_FILE])


def train_language_model(run: NgramTraining, progress: Progress | None = None) -> Manifest:
    """Train the n-gram model that `run` describes; return the manifest of its output folder.

    Raises DataError if texts are missing or have no lines.
    """
    report_progress = progress or (lambda done, whole: None)
    inputs = {"texts": run.texts.fingerprint()}
    if isinstance(run.pieces, TokenizerFile):
        if not storage.exists(run.pieces.path):
            raise DataError(f"{run.pieces.path} does not exist; name a tokenizer.json")
        inputs["pieces.path"] = storage.compute_content_key(run.pieces.path)
    stage = manifest.claim(run.output, run, inputs)
    if stage.finished:
        return stage.finished
    with stage.undo_if_refused():
        tokenizer = make_tokenizer(run.pieces, _take_sample(run.texts.read(), run.sample_bytes))
        report_progress(1, 3)
        least = run.least_counts or (1,) * run.order
        trained = language_model.train(run.texts.read(), tokenizer, run.order, least)
    report_progress(2, 3)
    names = [NGRAMS_FILE, ARPA_FILE] if run.arpa else [NGRAMS_FILE]
    for name in names:
        trained.save(stage.build_path(name))
    counts = {name: trained.facts[name] for name in ("texts", "bytes", "pieces", "n_grams")}
    report_progress(3, 3)
    return _finish(stage, trained.facts, counts, names)


def _take_sample(texts: Iterator[str], most: int) -> Iterator[str]:
    """Yield the first texts, up to about `most` bytes of UTF-8."""
    taken = 0
    for text in texts:
        yield text
        taken += len(text.encode("utf-8", "ignore"))
        if taken >= most:
            return


def _finish(
    stage: Stage, facts: Mapping[str, Any], counts: Mapping[str, Any], names: list[str]
) -> Manifest:
    storage.write(stage.build_path(REPORT), json.dumps(facts, indent=1, sort_keys=True).encode())
    files = {name: manifest.compute_file_sum(stage.build_path(name)) for name in [*names, REPORT]}
    return stage.finish(counts, files)
