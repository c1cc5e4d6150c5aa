"""Train the trees that tell a page's text from its furniture, and print what justifies constants.

    pip install lightgbm==4.7.0
    python tests/benchmarks/train_block_model.py DATA_FOLDER

Needs the pages and strings of extraction_pages.py. Of these, it takes the tuning half; the pages
without strings, but for those of sites in the reported half; 30 pages of the blog and 60 of the
manual, so that code and formulas are seen. 442 pages, 18,500 blocks of main content, 72,000 of
whole pages.

A block's label is how much of it trafilatura keeps (the mean of its default and its precision, by
runs of three words), corrected by the strings: a block that holds a wanted one is text, one that
holds an unwanted one is not. What trafilatura is of two minds about weighs little, what a string
decided four times as much, a long block more than a short one, a block of a page of few more than
one of many. Only numbers are written, never a word of a page.
"""

import hashlib
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import lightgbm
import numpy as np
import trafilatura
from extraction_pages import NO_STRINGS, STRINGS, Labelled, fold, labelled_pages, score
from numpy.typing import NDArray
from resiliparse.parse.html import HTMLTree

from trainrig.corpus.extract.agreement import shares
from trainrig.corpus.extract.block_model import trees
from trainrig.corpus.extract.block_model.blocks import CHARACTERS, Blocks
from trainrig.corpus.extract.block_model.features import features
from trainrig.corpus.extract.block_model.text import lines_of
from trainrig.corpus.extract.decode import decode
from trainrig.corpus.extract.main_content import Judged, minimal_html

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
    """A page's blocks, and how much each is text."""

    labelled: Labelled
    page: bytes
    blocks: Blocks
    lines: list[str]
    features: NDArray[np.int32]
    labels: NDArray[np.float64]  # 0 to 1
    weights: NDArray[np.float64]
    precise: NDArray[np.int32]  # thousandths that trafilatura keeps, favouring precision


def chosen(pages: Sequence[Labelled]) -> list[Labelled]:
    """The pages to train on."""
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


def example(labelled: Labelled, part: trees.Name) -> Example | None:
    """The blocks of a page with their labels; None for a page without blocks."""
    html = decode(labelled.page)
    tree = HTMLTree.parse(html)
    page = minimal_html(tree, part).encode("utf-8", "replace")
    blocks = Blocks(page, tree.title or "")
    if not len(blocks.numbers):
        return None
    lines = lines_of(page, blocks)
    default = shares(lines, trafilatura.extract(html, include_comments=False) or "")
    precision = trafilatura.extract(html, include_comments=False, favor_precision=True) or ""
    precise = shares(lines, precision)
    labels = (default + precise) / 2000
    by_string = np.zeros(len(lines))
    for number, line in enumerate(map(fold, lines)):
        if any(fold(each) in line for each in labelled.wanted):
            labels[number], by_string[number] = 1, 1
        elif any(fold(each) in line for each in labelled.unwanted):
            labels[number], by_string[number] = 0, 1
    long = (1 + blocks.numbers[:, CHARACTERS] / 40).clip(0, 8)
    weights = long / len(lines) ** 0.5 * (1 + 3 * by_string) * np.abs(labels - 0.5) * 2 + 1e-4
    return Example(labelled, page, blocks, lines, features(blocks), labels, weights, precise)


def fit(examples: Sequence[Example]) -> lightgbm.Booster:
    """Trees for these pages."""
    data = lightgbm.Dataset(
        np.concatenate([each.features for each in examples]),
        np.concatenate([each.labels > 0.5 for each in examples]).astype(int),
        weight=np.concatenate([each.weights for each in examples]),
    )
    return lightgbm.train(SETTINGS, data, ROUNDS)


def flat(booster: lightgbm.Booster) -> trees.Trees:
    """The same trees in whole numbers."""
    roots, which, values, left = [], [], [], []
    for tree in booster.dump_model()["tree_info"]:
        roots.append(len(which))
        waiting = [(tree["tree_structure"], len(which))]
        which.append(0), values.append(0), left.append(0)
        for node, at in waiting:  # grows while it is walked
            if "leaf_value" in node:
                which[at], values[at] = trees.LEAF, round(node["leaf_value"] * trees.SCALE)
                continue
            which[at], values[at] = node["split_feature"], math.floor(node["threshold"])
            left[at] = len(which)
            for child in (node["left_child"], node["right_child"]):
                waiting.append((child, len(which)))
                which.append(0), values.append(0), left.append(0)
    return trees.Trees(
        np.array(roots, np.int32),
        np.array(which, np.int16),
        np.array(values, np.int32),
        np.array(left, np.int32),
    )


def out_of_fold(examples: Sequence[Example]) -> dict[str, Judged]:
    """By URL, each page with strings, judged by trees that have not seen its host."""

    def fold_of(each: Example) -> int:
        return hashlib.sha256(b"fold " + each.labelled.host.encode()).digest()[0] % FOLDS

    judged = {}
    for number in range(FOLDS):
        booster = fit([e for e in examples if not e.labelled.wanted or fold_of(e) != number])
        fitted = flat(booster)
        for each in examples:
            if each.labelled.wanted and fold_of(each) == number:
                odds = fitted.odds(each.features)
                judged[each.labelled.page.url] = Judged(each.page, each.blocks, odds)
    return judged


def print_choices(main: Sequence[Example], whole: Sequence[Example]) -> None:
    """F1 in cross-validation by when the whole page is looked at, and when trafilatura is asked."""
    of_main, of_whole = out_of_fold(main), out_of_fold(whole)
    votes = {e.labelled.page.url: e.precise for e in whole}
    main_votes = {e.labelled.page.url: e.precise for e in main}
    pages = [e.labelled for e in whole if e.labelled.wanted]
    for little in (0, 250, 500, 1000):
        final = []
        for page in pages:
            url = page.page.url
            best, vote = of_main.get(url), main_votes.get(url)
            if best is None or len(best.text(True)) < little:
                best, vote = of_whole[url], votes[url]
            final.append((page, best, vote))
        print("little", little, f"{score((p, b.text(True)) for p, b, _ in final).f1:.4f}")
        if little != 500:
            continue
        sureness = sorted(best.certainty for _, best, _ in final)
        for share in (0.1, 0.2, 0.3, 0.5, 0.9999):
            unsure = sureness[int(share * len(final))]
            for weight in (1, 2, 3):
                texts = []
                for page, best, vote in final:
                    if best.certainty < unsure:
                        more = (2 * vote - 1000) * (weight * trees.SCALE // 1000)
                        best = Judged(best.page, best.blocks, best.odds + more)
                    texts.append((page, best.text(True)))
                print("asked", share, unsure, "vote", weight, f"{score(texts).f1:.4f}")


def main(data: Path) -> None:
    """Print the choices, and write the trees where the package has them."""
    pages = chosen(labelled_pages(data))
    print(len(pages), "pages,", sum(p.source == STRINGS for p in pages), "with strings")
    names: tuple[trees.Name, ...] = ("main", "whole")
    examples = {name: [e for p in pages if (e := example(p, name))] for name in names}
    print_choices(examples["main"], examples["whole"])
    for name in names:
        fitted = flat(fit(examples[name]))
        np.savez_compressed(Path(trees.__file__).parent / f"{name}.npz", **vars(fitted))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
