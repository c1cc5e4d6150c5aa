"""Implementation of `trainrig plan` by a law: the plan, and the run file if one is wanted."""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from trainrig import config, hardware, storage
from trainrig.errors import ConfigError
from trainrig.scaling.laws import published
from trainrig.scaling.laws.forms import Kaplan
from trainrig.scaling.laws.law import Law, read_law
from trainrig.scaling.plan import plan_run, plan_text, plan_warnings
from trainrig.scaling.plan.plan import ScalingPlan
from trainrig.scaling.plan.plan_request import PlanRequest
from trainrig.scaling.plan.planner import make_plan
from trainrig.storage.writable import check_file

_OPTIONS = {"assumptions.utilisation": "mfu", "rule.kind": "rule"}


@dataclass(frozen=True)
class RunWanted:
    """Run file to write, if any: its path, its folder of tokens and its run folder."""

    out: str | None = None
    tokens_folder: str | None = None
    output: str | None = None


def answer(
    name: str, given: Mapping[str, Any], table: str | None, wanted: RunWanted
) -> tuple[ScalingPlan, list[str]]:
    """Return the plan for the options in `given`, and the lines that describe it.

    `name` is that of a law, or the path of its file. `table` is the path of a table of hardware, or
    None for the built-in one. Raises InputError before anything is written.
    """
    if wanted.out is not None:
        check_file(wanted.out)
    law = find_law(name)
    request = _parse_request(given)
    if wanted.out is None and (wanted.tokens_folder or wanted.output):
        raise ConfigError(
            "plan: --tokens-folder and --output need a run file to write; add --out RUN.toml"
        )
    found = _make_plan(law, request, table, wanted)
    lines = list(plan_text.describe_plan(found))
    if wanted.out and wanted.tokens_folder:
        # Imported here because plotting is slow to import, and a refused plan needs none.
        from trainrig.scaling.plan.plan_page import write_plan_page

        folder = wanted.tokens_folder
        output = wanted.output
        plan_path = plan_run.write_run(wanted.out, found, request.compute, folder, output)
        lines.append(
            f"run file: {wanted.out}; start it with `trainrig pretrain`. Plan: {plan_path}"
        )
        page = f"{plan_path.removesuffix('.json')}.html"
        lines.append(f"page of the plan: {write_plan_page(page, found, law, wanted.out)}")
    return found, lines


def _make_plan(law: Law, request: PlanRequest, table: str | None, wanted: RunWanted) -> ScalingPlan:
    """Return the plan, with the vocabulary and the number of tokens of the folder to train on.

    Without a run file to write, there is no such folder.
    """
    offers = hardware.load(table)
    if wanted.out is None:
        return make_plan(law, request, offers)
    if wanted.tokens_folder is None:
        raise ConfigError(
            "plan: --out needs --tokens-folder, a folder that `trainrig tokenize` wrote"
        )
    request = plan_run.fit_to_tokens(wanted.tokens_folder, request, law.objective)
    found = make_plan(law, request, offers)
    available = plan_run.count_train_tokens(wanted.tokens_folder)
    if request.tokens_available is None and found.size.tokens > available:
        if isinstance(law.form, Kaplan):
            return found.model_copy(
                update={
                    "warnings": (
                        *found.warnings,
                        plan_warnings.find_repeat_warnings(found.size.tokens, available),
                    )
                }
            )
        limited_request = request.model_copy(update={"tokens_available": float(available)})
        return make_plan(law, limited_request, offers)
    return found


def describe_best_sizes(name: str) -> Iterator[str]:
    """Yield the lines of the table of the best tokens for a range of sizes."""
    return plan_text.describe_size_table(find_law(name))


def find_law(name: str) -> Law:
    """Return the law in the file `name`, or the published law of that name.

    Raises ConfigError, with the nearest name, if there is neither.
    """
    if storage.exists(name):
        return read_law(name)
    if name.endswith(".json") or "/" in name:
        return read_law(name)  # raises the error for a missing file
    return published.find_published_law(name)


def _parse_request(given: Mapping[str, Any]) -> PlanRequest:
    """Build a request, with errors that name command-line options rather than keys.

    Raises ConfigError if `given` is invalid.
    """
    try:
        return PlanRequest.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"] if part != "Request")
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "union_tag_invalid":
            kinds = [kind.strip("' ") for kind in first["ctx"]["expected_tags"].split(",")]
            near = difflib.get_close_matches(str(first["ctx"]["tag"]), kinds, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(kinds)}"
            field = str(first["loc"][0])
            raise ConfigError(
                f"plan: --{field}: no {field} '{first['ctx']['tag']}'; {hint}"
            ) from None
        if not key:
            raise ConfigError(f"plan: {message}") from None
        option = _OPTIONS.get(key, key).replace("_", "-")
        found = config.format_toml_value(first["input"])
        raise ConfigError(
            f"plan: --{option}: {message[0].lower()}{message[1:]}, found {found}"
        ) from None
