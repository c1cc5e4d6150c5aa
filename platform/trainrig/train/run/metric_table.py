"""Table of the metrics of a run, from which docs/metrics.md is generated."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """One metric of a run: a row of docs/metrics.md."""

    name: str  # words in capitals are placeholders
    unit: str
    source: str  # measured by, and when
    meaning: str


SAMPLED = "`training.metrics.every`"
BY_LAYER = "`training.metrics.layers_every`"
EVERY_STEP = "all ranks, every step"
RANKS = f"{SAMPLED}; on accelerators {BY_LAYER}"
TABLE = (
    Metric(
        "train/loss",
        "nats per target",
        EVERY_STEP,
        "Training loss: the mean over the targets of the global batch",
    ),
    Metric(
        "train/loss_variance", "nats²", EVERY_STEP, "Variance of the mean losses of micro-batches"
    ),
    Metric("train/grad_norm", "", EVERY_STEP, "Norm of the whole gradient before clipping"),
    Metric(
        "beside/MODEL/grad_norm",
        "",
        EVERY_STEP,
        "Gradient norm, before clipping, of a model trained along with the policy, such as a "
        "critic",
    ),
    Metric("train/lr", "", "the schedule", "Learning rate of the step, after any cut"),
    Metric("train/tokens", "targets", "the batches", "Targets trained on since step 0"),
    Metric("train/data_step", "", "the batches", "Number of the step's batch, counted from 0"),
    Metric(
        "train/SOURCE/loss",
        "nats per target",
        EVERY_STEP,
        "Training loss on the rows of one source",
    ),
    Metric("train/terms/TERM", "", EVERY_STEP, "One term of the training loss, before its weight"),
    Metric(
        "train/diagnostics/NAME", "", EVERY_STEP, "Diagnostic of the objective on the global batch"
    ),
    Metric(
        "eval/loss",
        "nats per target",
        "`training.held_out`",
        "Held-out loss: the mean over the targets of all held-out rows",
    ),
    Metric(
        "eval/SOURCE/loss",
        "nats per target",
        "`training.held_out`",
        "Held-out loss on the rows of one source",
    ),
    Metric(
        "eval/terms/TERM",
        "",
        "`training.held_out`",
        "One term of the held-out loss, before its weight",
    ),
    Metric(
        "eval/diagnostics/NAME",
        "",
        "`training.held_out`",
        "Diagnostic of the objective on held-out rows",
    ),
    Metric(
        "averages/HORIZON/loss",
        "nats per target",
        "`training.held_out`",
        "Held-out loss of the weights averaged over HORIZON updates",
    ),
    Metric(
        "scores/EVALUATION/TASK/METRIC/error",
        "",
        "`training.evaluations`",
        "Standard error of a score of a checkpoint",
    ),
    Metric("scores/EVALUATION/TASK/METRIC", "", "`training.evaluations`", "Score of a checkpoint"),
    Metric(
        "train/tokens_per_second",
        "targets/s",
        "rank 0, every step",
        "Throughput of all workers together",
    ),
    Metric(
        "train/worker_tokens_per_second", "targets/s", "rank 0, every step", "Throughput per worker"
    ),
    Metric(
        "train/step_seconds",
        "s",
        "rank 0, every step",
        "Time of the step, from the request for the batch to the end of the update, without "
        "held-out losses and saves",
    ),
    Metric(
        "train/wall_seconds",
        "s",
        "rank 0, every step",
        "Time since the previous update, or since the state was loaded, with everything in between",
    ),
    Metric(
        "train/held_out_seconds", "s", "`training.held_out`", "Time that the held-out loss took"
    ),
    Metric(
        "train/save_seconds",
        "s",
        "rank 0, every save",
        "Time that a save held up training; the files are written in the background",
    ),
    Metric(
        "train/mfu",
        "share of 1",
        "rank 0, every step",
        "Model FLOPs utilization: the model's FLOPs of the step over the peak FLOPs of its "
        "devices (`hardware.toml`) in the step's time. By PaLM's rule (arXiv:2204.02311, app. "
        "B), it counts the forward pass and twice that for the backward pass, nothing that is "
        "recomputed, and of attention only the keys that a query sees",
    ),
    Metric(
        "time/PHASE",
        "share of 1",
        "rank 0, every step; on accelerators " + BY_LAYER,
        "Share of the step's time by phase: waiting for data, forward, backward, waiting for "
        "other ranks (communication: on accelerators only the part after the backward pass), "
        "optimizer",
    ),
    Metric(
        "memory/peak_gib",
        "GiB",
        "rank 0, " + SAMPLED,
        "Peak memory of rank 0 since its attempt started",
    ),
    Metric("cluster/workers", "", "rank 0, every step", "Number of workers of the attempt"),
    Metric(
        "cluster/slowest_rank", "", "all ranks, " + RANKS, "Rank that computed for the longest time"
    ),
    Metric(
        "cluster/slowest_excess",
        "share of 1",
        "all ranks, " + RANKS,
        "Computing time of the slowest rank beyond the median of the ranks",
    ),
    Metric(
        "noise/gradient_squared",
        "",
        "virtual workers, " + SAMPLED,
        "Squared norm of the true gradient: the measured one without its noise",
    ),
    Metric(
        "experts/highest_load",
        "even shares",
        EVERY_STEP,
        "Highest load of an expert, over all layers",
    ),
    Metric(
        "experts/lowest_load",
        "even shares",
        EVERY_STEP,
        "Lowest load of an expert, over all layers",
    ),
    Metric(
        "experts/LAYER/EXPERT/load",
        "even shares",
        "all ranks, " + BY_LAYER,
        "Tokens routed to one expert",
    ),
    Metric(
        "noise/trace",
        "",
        "virtual workers, " + SAMPLED,
        "Trace of the covariance of the gradient of one target",
    ),
    Metric("noise/scale", "targets", "the mean of 50 measurements", "Gradient noise scale"),
    Metric(
        "layers/LAYER/grad_norm",
        "",
        "all ranks, " + BY_LAYER,
        "Gradient norm of a layer before clipping",
    ),
    Metric(
        "layers/LAYER/weight_norm",
        "",
        "all ranks, " + BY_LAYER,
        "Weight norm of a layer before the update",
    ),
    Metric(
        "layers/LAYER/update_norm",
        "",
        "all ranks, " + BY_LAYER,
        "Norm of the change that the update made to a layer's weights",
    ),
    Metric(
        "layers/LAYER/update_ratio",
        "",
        "all ranks, " + BY_LAYER,
        "Update norm over weight norm of a layer",
    ),
    Metric(
        "layers/LAYER/activation_rms",
        "",
        "first micro-batch, " + BY_LAYER,
        "Root mean square of a layer's output",
    ),
    Metric(
        "layers/LAYER/activation_max",
        "",
        "first micro-batch, " + BY_LAYER,
        "Largest absolute value in a layer's output",
    ),
    Metric(
        "layers/LAYER/saturated",
        "share of 1",
        "first micro-batch, " + BY_LAYER,
        "Share of feed-forward units that pass on less than 1% of their input",
    ),
    Metric(
        "layers/LAYER/attention_entropy",
        "nats",
        "32 queries of its first row, " + BY_LAYER,
        "Entropy of the attention weights, the mean over heads",
    ),
    Metric(
        "kinds/KIND/grad_norm",
        "",
        "all ranks, " + BY_LAYER,
        "Gradient norm of one kind of tensor in all layers, before clipping",
    ),
    Metric(
        "kinds/KIND/weight_norm",
        "",
        "all ranks, " + BY_LAYER,
        "Weight norm of one kind of tensor, before the update",
    ),
    Metric(
        "kinds/KIND/update_norm",
        "",
        "all ranks, " + BY_LAYER,
        "Norm of the change that the update made to one kind of tensor",
    ),
    Metric(
        "kinds/KIND/update_ratio",
        "",
        "all ranks, " + BY_LAYER,
        "Update norm over weight norm of one kind of tensor",
    ),
)
