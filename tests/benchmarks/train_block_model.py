"""Train the trees that separate a page's text from its boilerplate, and print evidence.

    pip install lightgbm==4.7.0
    PYTHONPATH=tests python tests/benchmarks/train_block_model.py DATA_FOLDER 4

The last argument is the number of ways to make folds. The evidence justifies the constants.
Training needs the pages of extraction_pages.py: the tuning half; the pages without strings, except
those of sites in the reported half; 30 pages of the blog and 60 of the manual, to include code and
formulas.
Pages of this project's documentation, which Sphinx renders in several themes, are added
(support/rendered_documentation.py).

A block's label is the share of it that trafilatura keeps (the mean of its default and its precision
mode, by runs of three words), corrected by the strings: a block with a wanted string is text, one
with an unwanted string is not. A block where the two modes of trafilatura disagree weighs little. A
block with a string weighs four times as much, a long block more than a short one, and a block on a
page of few blocks more than one of many. On pages of documentation, what the generator marks as the
main part is text. Only numbers are written, never a word of a page.
"""

import hashlib
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import lightgbm
import numpy as np
import trafilatura
from numpy.typing import NDArray
from resiliparse.parse.html import HTMLTree
from support.extraction_pages import (
    NO_STRINGS,
    STRINGS,
    Labelled,
    counts,
    error_of_lead,
    f1,
    fold,
    labelled_pages,
    precision,
    recall,
)
from support.rendered_documentation import RENDERED, render_pages

from trainrig.corpus.extract import block_scores, block_trees, main_content
from trainrig.corpus.extract.block_features import compute_features
from trainrig.corpus.extract.block_scores import (
    ScoredBlocks,
    cut_tree,
    extract_lines,
    measure_agreement,
)
from trainrig.corpus.extract.extract_page import decode
from trainrig.corpus.extract.extractors import Favour
from trainrig.corpus.extract.page_blocks import CHARACTERS, PageBlocks

SETTINGS = {
    "objective": "binary",
    "learning_rate": 0.06,
    "num_leaves": 15,
    "min_data_in_leaf": 20,
    "lambda_l2": 3,
    "feature_fraction": 0.5,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "seed": 0,
    "deterministic": True,
    "num_threads": 1,
    "verbose": -1,
}
ROUNDS = 150  # trees; 80 lose .004 of F1 in cross-validation, 300 win nothing
FOLDS = 5


@dataclass(frozen=True)
class Example:
    """A page's blocks, with the degree to which each is text."""

    labelled: Labelled
    blocks: PageBlocks
    lines: list[str]
    features: NDArray[np.int32]
    labels: NDArray[np.float64]  # 0 to 1
    weights: NDArray[np.float64]
    theirs: dict[Favour, str]  # texts that trafilatura extracts


def choose_pages(pages: Sequence[Labelled]) -> list[Labelled]:
    """Return the pages to train on."""
    reported = {part for p in pages if p.half == "reported" for part in p.host.split(".")[:-1]}
    manual = sorted(
        (p for p in pages if p.source.startswith("numpy")),
        key=lambda p: hashlib.sha256(p.page.body).digest(),
    )
    blog = [p for p in pages if p.source == "lilianweng-blog"]
    others = [
        p
        for p in pages
        if p.source == NO_STRINGS and re.sub(r"-?\d*$", "", p.host).split("-")[0] not in reported
    ]
    return [p for p in pages if p.half == "tuning"] + others + blog[:30] + manual[:60]


def example(labelled: Labelled) -> Example | None:
    """Return the blocks of a page with their labels, or None for a page without blocks."""
    html = decode(labelled.page)
    blocks = cut_tree(HTMLTree.parse(html))
    if not len(blocks.numbers):
        return None
    lines = extract_lines(blocks)
    theirs: dict[Favour, str] = {}
    by_string = np.zeros(len(lines))
    if is_documentation(labelled):
        labels = label_by_landmarks(blocks)
    else:
        theirs = {
            "balance": trafilatura.extract(html, include_comments=False) or "",
            "precision": trafilatura.extract(html, include_comments=False, favor_precision=True)
            or "",
        }
        labels = sum(measure_agreement(lines, text) for text in theirs.values()) / 2000
    for number, line in enumerate(map(fold, lines)):
        if any(fold(phrase) in line for phrase in labelled.wanted):
            labels[number] = 1
            by_string[number] = 1
        elif any(fold(phrase) in line for phrase in labelled.unwanted):
            labels[number] = 0
            by_string[number] = 1
    long = (1 + blocks.numbers[:, CHARACTERS] / 40).clip(0, 8)
    weights = long / len(lines) ** 0.5 * (1 + 3 * by_string) * np.abs(labels - 0.5) * 2 + 1e-4
    return Example(labelled, blocks, lines, compute_features(blocks), labels, weights, theirs)


def is_documentation(labelled: Labelled) -> bool:
    """Return whether a generator of documentation made the page."""
    return labelled.source == RENDERED or labelled.source.startswith("numpy")


def label_by_landmarks(blocks: PageBlocks) -> NDArray[np.float64]:
    """Return 1 for the blocks of the part of the page that its generator marks as its text."""
    return np.asarray(main_content.find_main_part(blocks), np.float64)


def fit(examples: Sequence[Example]) -> lightgbm.Booster:
    """Train trees on these pages."""
    data = lightgbm.Dataset(
        np.concatenate([example.features for example in examples]),
        np.concatenate([example.labels > 0.5 for example in examples]).astype(int),
        weight=np.concatenate([example.weights for example in examples]),
    )
    return lightgbm.train(SETTINGS, data, ROUNDS)


def flatten_trees(booster: lightgbm.Booster) -> dict[str, np.ndarray]:
    """Return the trees as whole numbers, as their file stores them."""
    roots = []
    which = []
    values = []
    left = []
    for tree in booster.dump_model()["tree_info"]:
        roots.append(len(which))
        waiting = [(tree["tree_structure"], len(which))]
        which.append(0), values.append(0), left.append(0)
        for node, at in waiting:  # grows while it is iterated
            if "leaf_value" in node:
                which[at] = block_trees.LEAF
                values[at] = round(node["leaf_value"] * block_trees.SCALE)
                continue
            which[at] = node["split_feature"]
            values[at] = math.floor(node["threshold"])
            left[at] = len(which)
            for child in (node["left_child"], node["right_child"]):
                waiting.append((child, len(which)))
                which.append(0), values.append(0), left.append(0)
    return {
        "roots": np.array(roots, np.int32),
        "features": np.array(which, np.int16),
        "values": np.array(values, np.int32),
        "left": np.array(left, np.int32),
    }


def out_of_fold(examples: Sequence[Example], seed: int) -> dict[str, ScoredBlocks]:
    """Return scored blocks of each page with strings, by trees that saw no page of its host."""

    def fold_of(example: Example) -> int:
        return hashlib.sha256(f"fold {seed} {example.labelled.host}".encode()).digest()[0] % FOLDS

    judged = {}
    for number in range(FOLDS):
        booster = fit([e for e in examples if not e.labelled.wanted or fold_of(e) != number])
        fitted = block_trees.Trees.of(**flatten_trees(booster))
        for example in examples:
            if example.labelled.wanted and fold_of(example) == number:
                odds = fitted.compute_odds(example.features)
                judged[example.labelled.page.url] = ScoredBlocks(example.blocks, odds)
    return judged


def print_choices(examples: Sequence[Example], ways: int) -> None:
    """Print F1 in cross-validation over hosts for each constant, with the others as they are.

    The rows also show the mean lead over trafilatura over several ways to make folds, its standard
    error over hosts, and how often trafilatura is asked per page.
    """
    pages = {e.labelled.page.url: e for e in examples if e.labelled.wanted}
    folds = [out_of_fold(examples, seed) for seed in range(ways)]
    hosts = [page.labelled.host for page in pages.values()]
    theirs = [counts(e.labelled, e.theirs["balance"]) for e in pages.values()]
    print(f"trafilatura {f1(theirs):.4f}")

    def show(name: str, *, ask: bool = True) -> None:
        asked: list[Favour] = []
        found = []
        for judged in folds:
            for url, example in pages.items():

                def answer(favour: Favour, example: Example = example) -> str:
                    asked.append(favour)
                    return example.theirs[favour]

                text = main_content.extract_by_blocks(
                    judged[url], answer if ask else None, True, "text"
                ).text
                found.append(counts(example.labelled, text))
        ours = np.array(found).reshape(len(folds), len(pages), 3).sum(0) / len(folds)
        calls = [asked.count(favour) / len(found) for favour in ("precision", "balance")]
        print(
            f"{name}: {f1(ours):.4f} (precision {precision(ours):.3f}, recall {recall(ours):.3f}), "
            f"{f1(ours) - f1(theirs):+.4f} +- {error_of_lead(ours, theirs, hosts):.4f}, "
            f"asked {calls[0]:.2f} + {calls[1]:.2f}",
            flush=True,
        )

    def vary(module: ModuleType, name: str, *values: int, ask: bool = True) -> None:
        stands = getattr(module, name)
        for value in values:
            setattr(module, name, value)
            show(f"{name} {value}", ask=ask)
        setattr(module, name, stands)

    show("balanced", ask=False)
    vary(main_content, "LITTLE", 0, 500, 1000, ask=False)
    show("precise")
    certainties = sorted(verdict.certainty for judged in folds for verdict in judged.values())
    tenths = [certainties[len(certainties) * n // 10] for n in (3, 4, 5, 6, 7, 8)]
    vary(main_content, "UNSURE", *tenths, 10**9)
    vary(block_scores, "_MOST_DISAGREEMENT", 0, 100, 300, 1000)
    vary(block_scores, "_TREES_WEIGHT", 15_000, 30_000)
    vary(block_scores, "_TRAFILATURA_WEIGHT", 10_000, 15_000, 25_000)


def main(data: Path, ways: int) -> None:
    """Print the choices, and write the trees to the package's data."""
    pages = choose_pages(labelled_pages(data)) + render_pages()
    print(len(pages), "pages,", sum(p.source == STRINGS for p in pages), "with strings")
    examples = [e for p in pages if (e := example(p))]
    print(sum(len(e.lines) for e in examples), "blocks", flush=True)
    fitted = flatten_trees(fit(examples))
    np.savez_compressed(Path(block_trees.__file__).parent / "block_trees.npz", **fitted)
    print_choices(examples, ways)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
