"""Passes that remove the boilerplate of sites from documents, or mark it.

    site-keys       count the lines near the edges of each split's pages
    site-lines      find those on enough pages of all splits
    cut-site-lines  find the spans to remove
    site-examples   merge the lines that the report shows, of many splits at a time

See repeated_text/site_lines.py.
"""

import dataclasses
import functools
import json
from collections.abc import Iterable, Iterator, Sequence

from trainrig import storage
from trainrig.corpus.repeated_text import site_lines
from trainrig.corpus.repeated_text.site_lines import SITE_LINES, SiteExample, SiteLines
from trainrig.corpus.stages.apply_rules import PathBuilder
from trainrig.corpus.stages.surviving_documents import SurvivingDocuments
from trainrig.splits import Done, Task, Work

SITE_LINE_PASSES = ("site-keys", "site-lines", "cut-site-lines", "site-examples")

# Splits of which one task merges the examples, at most 100 lines each: 0.4 s of CPU time. The
# driver then reads one file for all of them.
MERGED_SPLITS = 1000


def name_keys_file(path_of: PathBuilder, split: str) -> str:
    """Return the path of the counts of a split's lines."""
    return path_of("site-keys", f"{split}.keys")


def count_lines(surviving: SurvivingDocuments, settings: SiteLines, sources: Sequence[str]) -> Work:
    """Return the work that counts the pages of each site and line of a split."""

    def count(task: Task) -> Done:
        name = task["name"]
        path = name_keys_file(surviving.path_of, name)
        batches = _read_pages(surviving, task)
        source = sources[task["source"]]
        return site_lines.count_site_lines(batches, settings, path, source), {}

    return count


def find_lines(
    path_of: PathBuilder, splits: Sequence[str], parts: int, settings: SiteLines
) -> Work:
    """Return the work that finds the keys on enough pages, in one range of keys."""
    paths = [name_keys_file(path_of, split) for split in splits]

    def find(task: Task) -> Done:
        part = task["number"]
        path = _name_lines_file(path_of, part, parts)
        return site_lines.find_frequent_keys(paths, part, parts, settings, path), {}

    return find


def cut_lines(
    surviving: SurvivingDocuments,
    settings: SiteLines,
    sources: Sequence[str],
    parts: int,
    splits: Sequence[str],
) -> Work:
    """Return the work that finds the spans of a split to remove, and examples for the report."""
    frequent = [_name_lines_file(surviving.path_of, part, parts) for part in range(parts)]
    positions = {split: position for position, split in enumerate(splits)}

    def cut_split(task: Task) -> Done:
        name = task["name"]
        counts, examples = site_lines.cut_site_lines(
            _read_pages(surviving, task),
            frequent,
            positions[name],
            settings,
            surviving.name_spans_file(SITE_LINES, name),
            surviving.name_marks_file(name),
            sources[task["source"]],
        )
        _write_examples(_name_examples_file(surviving.path_of, name), examples)
        return counts, {}

    return cut_split


def merge_split_examples(path_of: PathBuilder, splits: Sequence[str]) -> Work:
    """Return the work that merges the examples of a group of `MERGED_SPLITS` splits."""

    def merge_group(task: Task) -> Done:
        group = task["number"]
        some = splits[group * MERGED_SPLITS : (group + 1) * MERGED_SPLITS]
        merged = _merge_files([_name_examples_file(path_of, split) for split in some])
        _write_examples(_name_merged_file(path_of, group), merged)
        return {}, {}

    return merge_group


def count_groups(splits: int) -> int:
    """Return the number of groups of `MERGED_SPLITS` splits."""
    return -(-splits // MERGED_SPLITS)


def read_examples(path_of: PathBuilder, splits: int) -> list[SiteExample]:
    """Return the merged examples of all `splits` splits."""
    return _merge_files(
        [_name_merged_file(path_of, group) for group in range(count_groups(splits))]
    )


def _merge_files(paths: Sequence[str]) -> list[SiteExample]:
    """Return the merged examples of all files, which are read one after the other."""
    return functools.reduce(
        lambda found, data: site_lines.merge_examples(
            [*found, *(SiteExample(**row) for row in json.loads(data))]
        ),
        storage.read_files(paths),
        list[SiteExample](),
    )


def _write_examples(path: str, examples: Iterable[SiteExample]) -> None:
    rows = [dataclasses.asdict(example) for example in examples]
    storage.write(path, json.dumps(rows).encode())


def _name_lines_file(path_of: PathBuilder, part: int, parts: int) -> str:
    """Return the path of one range of keys; runs resumed with another `memory` have other files."""
    return path_of(f"site-lines-{parts}", f"{part:05d}.keys")


def _name_examples_file(path_of: PathBuilder, split: str) -> str:
    return path_of("site-examples", f"{split}.json")


def _name_merged_file(path_of: PathBuilder, group: int) -> str:
    return path_of("site-examples-merged", f"{group:05d}.json")


def _read_pages(surviving: SurvivingDocuments, task: Task) -> Iterator[site_lines.Batch]:
    chunks = surviving.select(task).iterate_rows_before(SITE_LINES, task["name"], ["url"])
    return ((texts, rows["url"].to_pylist()) for rows, texts in chunks)
