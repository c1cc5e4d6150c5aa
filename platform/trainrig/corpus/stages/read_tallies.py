"""Collection of the counts of all passes, for the report and tables of a curation."""

import json
from collections.abc import Sequence
from operator import itemgetter

import pyarrow as pa

from trainrig import storage
from trainrig.corpus.report.duplicate_samples import MOST as PAIRS
from trainrig.corpus.report.tallies import CurationTallies, tally_curation
from trainrig.corpus.row_schema import build_pool_schema
from trainrig.corpus.run_file import Curation
from trainrig.corpus.stages.apply_rules import PathBuilder
from trainrig.corpus.stages.write_documents import SAMPLES
from trainrig.splits import Split, sum_counts

RULES_TALLY = "tally.json"  # file of the rule tallies, by source


def read_tallies(run: Curation, splits: Sequence[Split], path_of: PathBuilder) -> CurationTallies:
    """Read the counts of all passes, and a few dropped documents as samples."""
    judged = json.loads(storage.read(path_of(RULES_TALLY)))
    told = [json.loads(storage.read(path_of("told", f"{split.name}.json"))) for split in splits]
    samples: dict[str, list[dict[str, str]]] = {}
    for results in told:
        for step, found in results["samples"].items():
            samples.setdefault(step, []).extend(found)
    few = {
        step: sorted(found, key=lambda sample: sample["id"])[:SAMPLES]
        for step, found in sorted(samples.items())
    }
    integers = frozenset(
        column.name for column in build_pool_schema(run) if pa.types.is_integer(column.type)
    )
    pairs = sorted((pair for results in told for pair in results["pairs"]), key=itemgetter("id"))
    counts = sum_counts(results["counts"] for results in told)
    return tally_curation(judged, counts, few, pairs[:PAIRS], integers)
