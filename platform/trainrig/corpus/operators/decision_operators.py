"""Operators that decide about documents: rules on their columns, and signatures of their texts."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trainrig.config.table_operator import TableOperator, put_column
from trainrig.corpus.curation_settings import PROSE
from trainrig.corpus.dedup import MinHash, NearDuplicates
from trainrig.corpus.filters import rule_verdicts
from trainrig.corpus.filters.filters import Filters
from trainrig.corpus.limits import LANGUAGE, Limit, PercentileThreshold
from trainrig.corpus.rewrite.pii_mask import PII
from trainrig.corpus.signatures.signatures import Signatures, build_columns
from trainrig.errors import ConfigError


def convert_to_numpy(column: pa.ChunkedArray) -> NDArray[Any]:
    """Return a column as a numpy array of numbers or of Python strings.

    A null becomes NaN or the empty string.
    """
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return np.array([value or "" for value in column.to_pylist()], dtype=np.str_)
    return column.to_numpy()  # type: ignore[no-any-return]


class Judge(TableOperator):
    """Apply rules to the columns of documents, and drop the documents that break one.

    Filters that keep a share of a corpus are refused: their bounds are known only after all
    documents are measured, as `curate` does.
    """

    # Rules that a document must fulfil to be kept. The default is the rules for prose of `curate`.
    filters: Filters = PROSE
    pii: PII = PII()  # the number of finds of personal data at which a document is dropped
    # Whether to keep documents that break a rule, with the first such rule in `dropped_by`.
    keep_dropped: bool = False

    def _prepare(self) -> None:
        for rule in self._rules:
            if isinstance(rule.limit, PercentileThreshold):
                raise ConfigError(
                    f"Judge: filters: '{rule.name}' keeps a share of all documents, and an "
                    "operator sees only some; set a fixed bound, or use `trainrig.curate`"
                )

    @property
    def _rules(self) -> tuple[rule_verdicts.Rule, ...]:
        return rule_verdicts.list_rules((*self.filters, self.pii))

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return the documents in `rows` that break no rule, or all with their verdicts."""
        rules = self._rules
        names: set[str] = set().union(*(rule.columns for rule in rules))
        if any(
            isinstance(rule.limit, Limit) and (rule.limit.languages or rule.limit.except_languages)
            for rule in rules
        ):
            names.add(LANGUAGE)
        self.require_columns(
            rows, sorted(names), "apply `Language`, `Measure` and what else adds it first"
        )
        columns = {name: convert_to_numpy(rows[name]) for name in names}
        first = rule_verdicts.decide(rules, columns, len(rows)).first
        if not self.keep_dropped:
            return rows.filter(pa.array(first < 0))
        reasons = [rules[index].name if index >= 0 else None for index in first.tolist()]
        return put_column(rows, "dropped_by", pa.array(reasons, pa.string()))


class Sign(TableOperator):
    """Compute MinHash signatures of texts, by which near-duplicates are found.

    Adds `keys`, the band keys (near-duplicates share one), `shingles`, the sorted hashes of word
    n-grams on which a pair is verified, and `digest`, which is equal for texts that differ only in
    case and white space. If there is a column `url`, adds `url_digest` of the normalised URL.
    """

    near_duplicates: NearDuplicates = MinHash()  # how near-duplicates are found

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return `rows` with their signatures."""
        self.require_columns(rows, ["text"], "name the column with the texts `text`")
        names = ("id", "url", "text")
        blank = pa.array([""] * len(rows), pa.string())
        there = {
            name: pc.fill_null(rows[name].cast(pa.string()), "")
            if name in rows.column_names
            else blank
            for name in names
        }
        signatures = Signatures.from_table(pa.table(there), self.near_duplicates)
        columns = build_columns(vars(signatures))
        rows = put_column(rows, "keys", columns["keys"])
        rows = put_column(rows, "shingles", columns["shingles"])
        rows = put_column(rows, "digest", columns["digest"])
        return (
            put_column(rows, "url_digest", columns["url"]) if "url" in rows.column_names else rows
        )
