"""`fit` and `plan` as functions: scaling laws from tables of runs, and plans by them."""

import html
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from trainrig import config
from trainrig.errors import ConfigError
from trainrig.python_api.html_tables import render_html_table
from trainrig.python_api.stages import convert_paths
from trainrig.scaling.fit import fit_verb
from trainrig.scaling.fit.fit_verb import FitAnswer
from trainrig.scaling.fit.law_fit import LawFit
from trainrig.scaling.plan.plan_answer import PlanAnswer, answer_plan
from trainrig.scaling.plan.plan_run_file import PlanFile, load_plan_file
from trainrig.scaling.regression.regression import Progress

AnyPath = str | os.PathLike[str]


@dataclass(frozen=True)
class FitResult:
    """A fitted law, or the comparison of several; `print` shows what `trainrig fit` prints."""

    answer: FitAnswer  # the object behind the command `fit`

    @property
    def law(self) -> Any:
        """The law, or the comparison of recipes or objectives if several were fitted."""
        return self.answer.found

    @property
    def figures(self) -> dict[str, Any]:
        """The content of `trainrig fit --json`."""
        return self.answer.to_json()

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the files that were written: the law and its page, in the folder `out`."""
        return self.answer.written

    def __str__(self) -> str:
        return "\n".join(self.answer.lines)

    def _repr_html_(self) -> str:
        return render_lines("fit", self.answer.lines, self.paths)


@dataclass(frozen=True)
class PlanResult:
    """A plan by a law, or the fastest layouts; `print` shows what `trainrig plan` prints."""

    answer: PlanAnswer  # the object behind the command `plan`
    paths: tuple[str, ...]  # run file that was written, if the request names one

    @property
    def plan(self) -> Any:
        """The `ScalingPlan`, or the `LayoutPlan` if layouts were searched for."""
        return self.answer.found

    @property
    def figures(self) -> dict[str, Any]:
        """The content of `trainrig plan --json`."""
        return self.answer.to_json()

    def __str__(self) -> str:
        return "\n".join(self.answer.lines)

    def _repr_html_(self) -> str:
        return render_lines("plan", self.answer.lines, self.paths)


def fit(
    tables: AnyPath | Sequence[AnyPath],
    /,
    *,
    out: AnyPath | None = None,
    columns: Mapping[str, str] | None = None,
    recipes: Sequence[str] = (),
    share: str | None = None,
    bytes_per_token: float | None = None,
    settings: LawFit | None = None,
    progress: bool = True,
    **keys: Any,
) -> FitResult:
    """Fit a scaling law to the losses of many runs, with intervals; compare several recipes.

    `tables` are folders of sweeps or CSV files, or outputs of `sweep`. `columns` maps trainrig's
    names of columns to the headers of a CSV. The other options are those of `trainrig fit`; the
    `keys` are those of `LawFit`, which `settings` may hold instead.

    >>> law = trainrig.fit("sweep", out="law", form="Parametric", bootstrap={"draws": 200})
    >>> print(law)
    """
    if settings is not None and keys:
        raise ConfigError("fit: give `settings`, or its keys as keyword arguments, and not both")
    paths = [tables] if isinstance(tables, str | os.PathLike) else tables
    given = fit_verb.Tables(
        tuple(os.fspath(path) for path in paths),
        dict(columns or {}),
        tuple(recipes),
        share,
        bytes_per_token,
    )
    chosen = settings or config.build(LawFit, convert_paths(keys), "fit")
    show = partial(print, file=sys.stderr, flush=True)
    reporter = Progress(show) if progress else Progress.silent()
    folder = None if out is None else os.fspath(out)
    return FitResult(fit_verb.find_answer(given, chosen, folder, reporter))


def plan(
    what: AnyPath | PlanFile | None = None,
    /,
    *,
    changes: Sequence[str] = (),
    hardware: AnyPath | None = None,
    **keys: Any,
) -> PlanResult:
    """Plan a training run by a scaling law: model size, tokens, loss, hardware, time and cost.

    `what` is the name of a published law, a `law.json`, a run file of `plan` as a path or a model,
    or None. The `keys` are those of the run file. `layout="RUN.toml"` searches for the fastest
    layouts of an existing run file instead. `hardware` is the path of a table of hardware.

    >>> plan = trainrig.plan("hoffmann", budget_usd=10_000, device="h100")
    >>> plan.figures["size"], plan.figures["loss"]
    """
    if isinstance(what, PlanFile):
        if keys or changes:
            raise ConfigError("plan: give the model of a run file, or its keys, and not both")
        request = what
    else:
        name = None if what is None else os.fspath(what)
        request = load_plan_file(name, convert_paths(keys), changes)
    found = answer_plan(request, None if hardware is None else os.fspath(hardware))
    return PlanResult(found, () if request.out is None else (request.out,))


def render_lines(title: str, lines: Sequence[str], paths: Sequence[str]) -> str:
    """Return the HTML of a description in lines, and of the paths that were written."""
    rows = {f"file {number}": path for number, path in enumerate(paths, 1)}
    text = html.escape("\n".join(lines))
    return f"{render_html_table(title, rows)}<pre>{text}</pre>"
