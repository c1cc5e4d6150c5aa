"""Constants of the layout planner and descriptions of its terms, the same for all runs.

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

CONSTANTS = (
    INSIDE,
    ACROSS,
    MEMORY,
    ATTENTION,
    ATTENTION_BACKWARD,
    TILE_ROWS,
    TILE_COLUMNS,
    REST,
)


@dataclass(frozen=True)
class StepTerm:
    """A term of the predicted step time."""

    name: str
    formula: str
    hidden: str  # the work that overlaps with this term, or "nothing"


TERMS = (
    StepTerm(
        "products",
        "2 M N K / (peak x matmul), with M and N rounded up to whole tiles, and the tiles to whole "
        "rounds of all processors; or the bytes of the three matrices over the memory's bandwidth "
        "if that is more; once forward, twice backward, once more with full recomputation",
        "nothing",
    ),
    StepTerm(
        "attention",
        (
            "4 heads x channels x keys seen by a token, over (peak x attention); the backward pass "
            "takes 2.5 times this"
        ),
        "nothing",
    ),
    StepTerm(
        "elementwise",
        "bytes that norms, residual sums, rotations and the gated product read and write, each "
        "fused into one kernel, over the memory's bandwidth; the backward pass takes twice this",
        "nothing",
    ),
    StepTerm(
        "tensor",
        "all-gather and reduce-scatter of tokens x channels x bytes around attention and around "
        "the feed-forward part, forward and backward; without sequence parallelism one all-reduce "
        "instead of the two",
        (
            "nothing, except that the second all-gather of the backward pass overlaps with the "
            "next product"
        ),
    ),
    StepTerm(
        "context",
        "all-gather of keys and values forward, reduce-scatter of their gradients backward",
        "nothing",
    ),
    StepTerm(
        "expert",
        "all-to-all of each token to its experts and back, forward and backward, evenly balanced; "
        "before it an all-gather of the number of tokens for each expert, 8 bytes each",
        "nothing",
    ),
    StepTerm(
        "pipeline",
        "activations between stages, sent once forward and once backward for each micro-batch and "
        "stage; with sequence parallelism each device sends 1 / tensor of them",
        "nothing",
    ),
    StepTerm(
        "bubble",
        "(pipeline - 1) / chunks times the slowest device's micro-batch, forward and backward",
        "nothing",
    ),
    StepTerm(
        "data",
        "all-gather of parameters in the compute dtype, reduce-scatter of float32 gradients, "
        "once a step or for each micro-batch, all-reduce of their slices over replicas; FSDP's "
        "copies of gathered parameters out of a buffer and of gradients into a buffer",
        "gathers overlap with the forward pass of a micro-batch, gradients with the backward "
        "pass of the last one; the first gather and the last reduction overlap with nothing",
    ),
    StepTerm(
        "optimizer",
        "weights read and written, gradients read twice, and optimizer state read and written, "
        "over the memory's bandwidth",
        "nothing",
    ),
    StepTerm(
        "rest",
        "a share of all other terms together, for launches, falling clocks and stragglers",
        "nothing",
    ),
)
