"""The part of a curation's page that tells of benchmarks: a pure function of its account."""

from trainrig.corpus.decontaminate.tallies import (
    LEAST_SHARES,
    BenchmarkRow,
    ContaminationAccount,
)
from trainrig.report import Details, Group, Sample, Section, Table, Text, percent


def contamination_section(account: ContaminationAccount) -> Section:
    """What of the benchmarks was in the corpus, what was done about it, and some of it to read."""
    return Section(
        "contamination",
        "Benchmarks in the corpus",
        (
            Text(_finding(account)),
            _documents(account),
            _examples(account),
            Details("How much of each example was found", (_shares(account),)),
            *_common(account),
            *_samples(account),
        ),
    )


def _finding(account: ContaminationAccount) -> str:
    touched = [row for row in account.benchmarks if row.documents]
    unseen = sum(row.not_looked_for for row in account.benchmarks)
    examples = sum(row.examples for row in account.benchmarks)
    sentence = (
        f"By the rule of {account.style}, {account.contaminated:,} of {account.documents:,} "
        f"documents hold text of {len(touched)} of {len(account.benchmarks)} benchmarks."
    )
    if unseen:
        sentence += (
            f" {unseen:,} of {examples:,} examples are too short for this rule, so whether the "
            "corpus holds them is not known."
        )
    return sentence


def _documents(account: ContaminationAccount) -> Table:
    rows = sorted(account.benchmarks, key=lambda row: (-row.documents, row.benchmark))
    return Table(
        "Documents that hold a benchmark; one may hold several",
        ("benchmark", "documents", "of them fallen", "of them cut"),
        tuple(
            (row.benchmark, row.documents, row.documents_fallen, row.documents_cut) for row in rows
        ),
    )


def _examples(account: ContaminationAccount) -> Table:
    return Table(
        "Examples as the corpus held them before anything was removed",
        (
            "benchmark",
            "n",
            "examples",
            "found",
            "of all",
            "dirty",
            "clean",
            "neither",
            "only common",
            "too short",
        ),
        tuple(_cells(row) for row in account.benchmarks),
    )


def _cells(row: BenchmarkRow) -> tuple[str | int, ...]:
    return (
        row.benchmark,
        row.words,
        row.examples,
        row.found,
        percent(row.found, row.examples),
        row.dirty,
        row.clean,
        row.between,
        row.common_only,
        row.not_looked_for,
    )


def _shares(account: ContaminationAccount) -> Table:
    examples: dict[str, list[int]] = {}
    for row in account.shares:
        examples.setdefault(row.benchmark, []).append(row.examples)
    return Table(
        "Examples of which the corpus as a whole holds such a share or more",
        ("benchmark", *(percent(share, 1) for share in LEAST_SHARES)),
        tuple((name, *numbers) for name, numbers in examples.items()),
    )


def _common(account: ContaminationAccount) -> tuple[Details, ...]:
    if not account.common:
        return ()
    table = Table(
        "N-grams that more documents hold than the rule acts on, the most common first",
        ("n-gram", "documents", "in"),
        tuple((row.text, row.documents, row.benchmark) for row in account.common),
    )
    return (Details("Common phrases, for which nothing was removed", (table,)),)


def _samples(account: ContaminationAccount) -> tuple[Details | Text, ...]:
    names = dict.fromkeys(each.benchmark for each in account.samples)
    if not names:
        return (Text("No document to show."),)
    return tuple(
        Details(
            f"Documents that hold {name}",
            (
                Group(
                    tuple(
                        Sample(
                            each.url,
                            f"{each.before}⟦{each.text}⟧{each.after}",
                            f"⟦ ⟧: in common with line {each.line} of {name}",
                        )
                        for each in account.samples
                        if each.benchmark == name
                    )
                ),
            ),
        )
        for name in names
    )
