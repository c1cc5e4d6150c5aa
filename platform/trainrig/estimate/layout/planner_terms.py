"""Constants of the layout planner, the same for all runs.

The table of hardware has what a device or link reaches at best; the constants here are the share of
that which kernels and collectives achieve. One of them, REST, is calibrated on the published runs
that docs/evidence/layouts.md compares the planner with, as their median; the others are not.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class PlanConstant:
    """A constant of the planner, with its unit and its source."""

    name: str
    value: float
    unit: str
    source: str


CALCULON = "Calculon, systems/a100_80g.json (github.com/calculon-ai/calculon)"

INSIDE = PlanConstant(
    "links in a machine", 0.65, "share of their bandwidth that collectives reach", CALCULON
)
ACROSS = PlanConstant(
    "links between machines", 0.9, "share of their bandwidth that collectives reach", CALCULON
)
MEMORY = PlanConstant("memory", 0.9, "share of its bandwidth that reads and writes reach", CALCULON)
ATTENTION = PlanConstant(
    "attention",
    0.34,
    "share of the peak that causal attention reaches, if only visible pairs are counted",
    "FlashAttention-2, forward, heads of 128, on an H100: 335 of 989 TFLOP/s, figure 5 of "
    "FlashAttention-3 (arXiv:2407.08608)",
)
ATTENTION_BACKWARD = PlanConstant(
    "attention backward",
    2.5,
    "operations of the backward pass per operation of the forward pass; scores are computed again",
    "FlashAttention-2 (arXiv:2307.08691), section 4.1",
)
TILE_ROWS = PlanConstant(
    "tile, rows", 128, "rows of a product that one processor computes at a time", "NVIDIA, Matrix "
    "Multiplication Background User's Guide: 256 x 128 is the most efficient",
)  # fmt: skip
TILE_COLUMNS = PlanConstant(
    "tile, columns",
    256,
    "columns of a product that one processor computes at a time",
    TILE_ROWS.source,
)
REST = PlanConstant(
    "rest",
    0.09,
    "share that a step takes beyond the predicted terms",
    "median of the published runs of docs/evidence/layouts.md",
)

CONSTANTS = (INSIDE, ACROSS, MEMORY, ATTENTION, ATTENTION_BACKWARD, TILE_ROWS, TILE_COLUMNS, REST)
