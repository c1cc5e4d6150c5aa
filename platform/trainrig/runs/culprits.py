"""Search for the documents behind a step, with the rules that would have dropped them.

It also finds the steps that saw a given document. A document's text is decoded from the shards, so
that neither the corpus nor its pages are needed. Its signals are computed again, so rules that the
curation did not apply can be tried now.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from trainrig.corpus.filters.filters import Filter, Preset, find_broken_rules, list_read_columns
from trainrig.corpus.limits import LANGUAGE
from trainrig.corpus.signals.text_signals import SIGNALS, measure
from trainrig.errors import ConfigError
from trainrig.runs.step_trace import TracedRun, open_traced
from trainrig.tokens.batches import MicroBatch
from trainrig.tokens.rows.pretraining import PretrainBatches
from trainrig.tokens.shards.token_shards import TokenShards
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.train.checkpoint import list_committed
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder

PRESETS = ("gopher", "c4-tfds", "fineweb", "refinedweb")
SHOWN = ("words", "mean_word_length", "symbols_per_word", "alphabetic_words", "duplicate_lines")

Key = tuple[str, int]  # a document: its source, and its number in that source


@dataclass(frozen=True)
class Culprit:
    """A document that a step trained on, with the filter rules that it breaks."""

    url: str
    id: str
    source: str
    sequences: tuple[int, ...]  # samples that contain part of it
    rules: tuple[str, ...]  # broken rules of PRESETS
    signals: Mapping[str, float]  # values of SHOWN
    text: str  # the first 500 characters

    def __str__(self) -> str:
        rules = ", ".join(self.rules) or "no rule of the presets"
        samples = ", ".join(map(str, self.sequences))
        shown = " ".join(f"{name} {value:.3g}" for name, value in self.signals.items())
        begin = " ".join(self.text.split())[:100]
        return f"{self.url or self.id}\n  samples {samples}\n  breaks {rules}\n  {shown}\n  {begin}"


@dataclass(frozen=True)
class Sightings:
    """Steps and checkpoints of a run that saw a document."""

    url: str
    documents: tuple[str, ...]  # ids of the documents with this URL
    steps: tuple[int, ...]  # updates, counted from 1
    checkpoints: tuple[int, ...]  # steps of the existing checkpoints that have seen it

    def to_json(self) -> dict[str, Any]:
        """Return the sightings as a JSON object."""
        return asdict(self)

    def __str__(self) -> str:
        seen = ", ".join(f"{step:,}" for step in self.steps) or "none"
        kept = ", ".join(f"{step:,}" for step in self.checkpoints) or "none"
        return f"{self.url}\n  steps that saw it: {seen}\n  checkpoints after them: {kept}"


def find_culprits(path: str, step: int | None, data_step: int | None) -> list[Culprit]:
    """Return the documents of update `step`, or of batch `data_step`, of the run at `path`.

    Documents that break the most rules come first. Raises the same errors as `trace`.
    """
    run = open_traced(path)
    batch = run.batches.at(run.find_data_step(step, data_step))
    samples: dict[Key, list[int]] = defaultdict(list)
    for micro in batch:
        for key, sample in _iterate_documents(micro, run.batches):
            samples[key].append(sample)
    shards = _require_document_shards(run)
    texts = [_decode_document(shards, key, run.encoder) for key in samples]
    columns = measure(texts, [""] * len(texts))
    rules = list_broken_rules(columns)
    found = []
    for index, (key, here) in enumerate(samples.items()):
        document = shards.document(*key)
        signals = {name: float(columns[name][index]) for name in SHOWN}
        culprit = Culprit(
            document.url,
            document.id,
            key[0],
            tuple(sorted(set(here))),
            rules[index],
            signals,
            texts[index][:500],
        )
        found.append(culprit)
    return sorted(found, key=lambda culprit: -len(culprit.rules))


def list_broken_rules(columns: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the rules of PRESETS that each document breaks.

    Only rules that need nothing but signals are tried.
    """
    filters: list[Filter] = []
    for name in PRESETS:
        for rule_filter in Preset(name=name).build_filters():
            if (
                list_read_columns([rule_filter]).keys() <= SIGNALS.keys()
                and rule_filter not in filters
            ):
                filters.append(rule_filter)
    count = len(next(iter(columns.values())))
    found: list[list[str]] = [[] for _ in range(count)]
    # rules for certain languages read this column
    asked = {**columns, LANGUAGE: np.full(count, "")}
    for one in filters:
        for rule, broken in find_broken_rules([one], asked).items():
            for document in np.flatnonzero(broken).tolist():
                if rule not in found[document]:
                    found[document].append(rule)
    return [tuple(rules) for rules in found]


def find_url(path: str, url: str) -> Sightings:
    """Return the steps and the checkpoints of the run folder `path` that have seen the page `url`.

    Reads the batches of all updates again. Raises ConfigError if no document has that URL.
    """
    run = open_traced(path)
    if run.folder is None:
        raise ConfigError(
            f"{path}: --url needs a run folder, which records the steps of a run; name one"
        )
    wanted = _with_url(run, url)
    if not wanted:
        raise ConfigError(f"--url {url}: no document of {run.batches.shards.folder} has this URL")
    steps = []
    for line in metrics.read_series(run.folder):
        micros = run.batches.at(run.find_data_step(line["step"], None))
        if any(
            key in wanted for micro in micros for key, _ in _iterate_documents(micro, run.batches)
        ):
            steps.append(line["step"])
    folder = RunFolder(run.folder)
    there = {step for _, step, _ in list_committed(folder, folder.checkpoints)}
    first = min(steps, default=max(there, default=0) + 1)
    return Sightings(
        url,
        tuple(sorted(set(wanted.values()))),
        tuple(steps),
        tuple(sorted(step for step in there if step >= first)),
    )


def _with_url(run: TracedRun, url: str) -> dict[Key, str]:
    """Return the id of each document with this URL, by document."""
    shards = _require_document_shards(run)
    return {
        (source, number): document.id
        for source in shards.sources
        for number, document in enumerate(shards.read_documents(source, 0, shards.tokens(source)))
        if document.url == url
    }


def _require_document_shards(run: TracedRun) -> TokenShards:
    """Return the document shards that `run` trains on. Raises ConfigError for conversations."""
    if not isinstance(shards := run.batches.shards, TokenShards):
        raise ConfigError(
            f"{run.path}: the rows of a run of `{run.settings.verb}` have neither URLs nor "
            "rules; use `trace --step`, which names their files and lines"
        )
    return shards


def _iterate_documents(micro: MicroBatch, batches: PretrainBatches) -> Iterator[tuple[Key, int]]:
    """Yield each document of each row that is not masked, with the row's sample."""
    for row, _, number in micro.pieces.tolist():
        key = batches.sources[micro.sources[row]], number
        if key not in batches.masked:
            yield key, int(micro.samples[row])


def _decode_document(shards: TokenShards, key: Key, encoder: Encoder) -> str:
    source, number = key
    begin, end = shards.find_document_starts(source, np.array([number, number + 1])).tolist()
    ids: Sequence[int] = shards.read_window(source, begin, end - begin).tolist()
    return encoder.decode(ids)
