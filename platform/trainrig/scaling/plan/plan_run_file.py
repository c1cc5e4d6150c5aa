"""Run file of `trainrig plan`: a plan by a scaling law, or the search for the layout of a run."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from trainrig import config
from trainrig.config import Field, Settings
from trainrig.errors import ConfigError
from trainrig.scaling.plan.plan_schema import PlanRequest

# Keys that plans by a law and searches for a layout share.
_SHARED = {"stage", "device", "devices", "instance", "out", "layout"}


class LayoutSearch(Settings):
    """Search for the fastest layouts of a run file, with some degrees fixed."""

    run: str  # run file of `trainrig pretrain`
    # Number of machines; None: by `devices`, or by the workers of the run file.
    nodes: int | None = Field(default=None, ge=1)
    interconnect: str | None = None  # link between machines; None: the machine's own
    tensor: int | None = Field(default=None, ge=1)  # degree of tensor parallelism; None: any
    pipeline: int | None = Field(default=None, ge=1)  # number of pipeline stages; None: any
    context: int | None = Field(default=None, ge=1)  # degree of context parallelism; None: any
    expert: int | None = Field(default=None, ge=1)  # degree of expert parallelism; None: any


class PlanFile(PlanRequest):
    """Run file of `trainrig plan`; it names a law and one budget, or has a table `layout`."""

    verb: ClassVar[str] = "plan"

    stage: Literal["plan"] = "plan"  # the command that this file is for
    # law.json that `trainrig fit` wrote, or the name of a published law, such as hoffmann
    law: str | None = None
    layout: LayoutSearch | None = None  # find the fastest layouts of a run file instead
    # Run file to write, with the plan or the page of layouts next to it; None: none.
    out: str | None = None
    tokens_folder: str | None = None  # token shards for the run file that is written for a law
    # Run folder of the run file that is written; None: named as the run file.
    output: str | None = None

    @model_validator(mode="after")
    def _check_request(self) -> Self:
        if self.layout is None:
            if self.law is None:
                raise ValueError(
                    "give a law, such as hoffmann, or the run file of a layout (--layout RUN.toml)"
                )
            self.check_one_target()
            if self.out is None and (self.tokens_folder or self.output):
                raise ValueError(
                    "`tokens_folder` and `output` need a run file to write; add --out RUN.toml"
                )
            return self
        if self.law is not None:
            raise ValueError(
                f"'{self.law}' is a law, and `layout` plans an existing run file; give only one of "
                "the two"
            )
        if of_laws := sorted(self.model_fields_set - _SHARED - {"law"}):
            raise ValueError(
                f"`{of_laws[0]}` is a key of plans by a law; leave it out with a layout"
            )
        return self


def load_plan_file(
    what: str | None, options: Mapping[str, Any], changes: Sequence[str] = ()
) -> PlanFile:
    """Build the run file from `what`, a PLAN.toml, LAW.json or name of a law, and from options.

    `options` are keys with the values of command-line options, None where one was not given, and
    `layout` and `nodes` for the keys of the table `layout`. `changes` have the form `a.b=value`.
    Raises ConfigError for an invalid key.
    """
    text = ""
    data: dict[str, Any] = {}
    where = "plan"
    if what is not None and what.endswith(".toml"):
        where = what
        text = config.read_text(what)
        data = config.parse(text, what)
        stage = data.get("stage")
        if stage != PlanFile.verb:
            hint = f"; for its layouts use --layout {what}" if stage == "pretrain" else ""
            raise ConfigError(f'{what}: this is no run file of `plan` (`stage = "plan"`){hint}')
    elif what is not None:
        data["law"] = what
    data |= {name: value for name, value in options.items() if value is not None}
    run, nodes = data.pop("layout", None), data.pop("nodes", None)
    if isinstance(run, str):
        data["layout"] = {"run": run}
    elif run is not None:
        data["layout"] = run
    if nodes is not None:
        if "layout" not in data:
            raise ConfigError("plan: --nodes is an option of layouts; add --layout RUN.toml")
        data["layout"] = {**data["layout"], "nodes": nodes}
    for change in changes:
        config.set_key(data, change)
    return config.build(PlanFile, data, where, text)
