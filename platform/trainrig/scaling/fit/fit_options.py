"""The command `trainrig fit` and its options. Heavy imports happen only when it runs."""

import logging
import sys
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated

from trainrig import command_line
from trainrig.command_line import Json, argument, option


@dataclass(frozen=True)
class TableOptions:
    """Options of `fit` that say how its tables are read."""

    recipe: Annotated[
        list[str] | None,
        option(
            "NAME", help="Recipe of the table to fit; repeat to compare several.  [default: all]"
        ),
    ] = None
    share: Annotated[
        str | None,
        option(
            "WHAT",
            help="What compared recipes share: `exponents` or `nothing`.  [default: exponents]",
            autocompletion=command_line.make_word_completion("exponents", "nothing"),
        ),
    ] = None
    column: Annotated[
        list[str] | None,
        option("OURS=HEADER", help="Header of a CSV's column, as in loss=eval/loss; repeatable."),
    ] = None
    bytes_per_token: Annotated[
        float | None,
        option(
            "BYTES",
            help="Mean bytes of a token, for a table of bits per byte.  [default: not needed]",
            min=0.01,
        ),
    ] = None


@dataclass(frozen=True)
class LawOptions:
    """Options of `fit` that are keys of the fit's settings."""

    form: Annotated[
        str | None,
        option(
            "FORM",
            help="Form of the law: Parametric, Kaplan, DataConstrained or OverTraining.  "
            "[default: the one that predicts larger runs]",
            autocompletion=command_line.make_word_completion(
                "Parametric", "Kaplan", "DataConstrained", "OverTraining"
            ),
        ),
    ] = None
    delta: Annotated[
        float | None,
        option(
            "DELTA",
            help="Delta of Huber's loss, in units of log loss; 0: least absolute deviations.  "
            "[default: 0.001]",
            min=0,
        ),
    ] = None
    drop_highest: Annotated[
        int | None, option("N", help="Leave out the N runs of highest loss.  [default: 0]")
    ] = None
    outliers: Annotated[
        str | None,
        option(
            "drop|keep",
            help="Drop or keep outliers: runs whose loss is 10% higher than for a run with no more "
            "parameters and tokens.  [default: drop]",
            autocompletion=command_line.make_word_completion("drop", "keep"),
        ),
    ] = None
    hold_out: Annotated[
        float | None,
        option("SHARE", help="Share of runs held out to evaluate the law.  [default: 0.1]"),
    ] = None
    hold_out_by: Annotated[
        str | None,
        option(
            "WHAT",
            help="Hold out the largest runs by flops, parameters or tokens.  [default: flops]",
            autocompletion=command_line.make_word_completion("flops", "parameters", "tokens"),
        ),
    ] = None
    counts: Annotated[
        str | None,
        option(
            "WHAT",
            help="Parameters that N counts: non-embedding or total.  [default: as the table does]",
            autocompletion=command_line.make_word_completion("non-embedding", "total"),
        ),
    ] = None
    tokenizer: Annotated[
        str | None,
        option("NAME", help="Tokenizer of a table that names none.  [default: not stated]"),
    ] = None
    within: Annotated[
        float | None,
        option(
            "SHARE",
            help="Fit each isoFLOP curve to sizes whose loss is at most this share above the "
            "lowest; 0: to all sizes.  [default: 0.1]",
            min=0,
        ),
    ] = None
    nearest: Annotated[
        int | None,
        option(
            "N",
            help="Fit each isoFLOP curve to the N sizes nearest to the best.  [default: --within]",
        ),
    ] = None
    draws: Annotated[int | None, option("N", help="Bootstrap draws.  [default: 1000]")] = None
    seed: Annotated[int | None, option("N", help="Random seed of the bootstrap.  [default: 0]")] = (
        None
    )


def fit(
    runs: Annotated[
        list[str],
        argument(
            "SWEEP|CSV",
            help="Folder of a sweep, or a CSV or TSV of runs; several are compared as recipes.",
        ),
    ],
    *,
    table: TableOptions,
    law: LawOptions,
    out: Annotated[
        str | None,
        option("FOLDER", help="Folder to write law.json and its page to.  [default: none]"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Fit a scaling law to the losses of many runs, with intervals; compare several recipes."""
    from trainrig.scaling.fit import fit_verb
    from trainrig.scaling.regression.regression import Progress

    logging.basicConfig(format="trainrig: %(message)s")
    tables = fit_verb.Tables(
        tuple(runs),
        fit_verb.parse_columns(table.column or ()),
        tuple(table.recipe or ()),
        table.share,
        table.bytes_per_token,
    )
    settings = fit_verb.build_settings(asdict(law))
    reporter = Progress(partial(print, file=sys.stderr, flush=True))
    print(fit_verb.fit(tables, settings, out, as_json, reporter))
