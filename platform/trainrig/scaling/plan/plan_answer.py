"""The answer to a run file of `plan`: a plan by a scaling law, or the fastest layouts of a run.

Heavy imports happen only when a plan is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainrig.scaling.plan.plan_run_file import LayoutSearch, PlanFile
from trainrig.scaling.plan.plan_schema import ScalingPlan

if TYPE_CHECKING:
    from trainrig.estimate.layout.layout_search import LayoutPlan


@dataclass(frozen=True)
class PlanAnswer:
    """The plan that a run file of `plan` asks for, and its description for a terminal."""

    found: ScalingPlan | LayoutPlan
    lines: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a JSON object."""
        if isinstance(self.found, ScalingPlan):
            return self.found.model_dump(mode="json")
        from trainrig.scaling.plan import layout_text

        return dict(layout_text.build_plan_data(self.found))


def answer_plan(request: PlanFile, hardware: str | None) -> PlanAnswer:
    """Return the plan that `request` asks for, and write the files that it names.

    `hardware` is the path of a table of hardware, or None for the built-in one. Raises InputError
    before anything is written.
    """
    if request.layout is not None:
        return _answer_layout(request, request.layout, hardware)
    from trainrig.scaling.plan.plan_verb import plan_by_law

    found, lines = plan_by_law(request, hardware)
    return PlanAnswer(found, tuple(lines))


def _answer_layout(request: PlanFile, wanted: LayoutSearch, hardware: str | None) -> PlanAnswer:
    from trainrig.estimate.layout.cluster_choice import ClusterWanted
    from trainrig.estimate.layout.run_subject import FixedDegrees
    from trainrig.scaling.plan.layout_verb import answer

    cluster = ClusterWanted(
        request.device, wanted.nodes, request.devices, request.instance, wanted.interconnect
    )
    fixed = FixedDegrees(wanted.tensor, wanted.pipeline, wanted.context, wanted.expert)
    layouts, lines = answer(wanted.run, cluster, fixed, hardware, request.out)
    return PlanAnswer(layouts, tuple(lines))
