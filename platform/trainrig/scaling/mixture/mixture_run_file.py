"""Run file of `trainrig mixture`: the sources, the proxy runs, the targets and the method."""

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from trainrig import config
from trainrig.models.architecture.initialisation import MuP
from trainrig.scaling.batch_rate_rules import DeepSeek, SweepRule
from trainrig.scaling.mixture.mixture_settings import Method, MixtureSearch
from trainrig.scaling.sweep.sweep_run_file import (
    Factor,
    Points,
    Positive,
    Seed,
    Sweep,
    SweepBatches,
    SweepTraining,
    Trials,
)
from trainrig.tokens.shards.block_cache import BlockCache

SUM_WITHIN = 0.005  # largest difference of the targets' sum from 1, as 0.33 + 0.33 + 0.34 may have


class ProxySweep(Sweep):
    """Sweep of models of one size, which differ in their mixtures."""

    fits_sizes: ClassVar[bool] = False
    points_key: ClassVar[str] = "proxy.tokens"
    remedy_if_short: ClassVar[str] = "raise proxy.tokens"


class Proxy(config.Settings):
    """Small model that is trained on each drawn mixture."""

    parameters: Positive  # size of the model, in parameters (N)
    tokens: Positive  # tokens that the model is trained on (D)
    # Number of mixtures to draw, each with its own seed. More of them may be added later.
    runs: Annotated[int, config.EXTENDABLE] = Field(ge=1)


class MixtureFinding(config.RunFile):
    """Search for a better mixture: small models on many mixtures, a regression, a confirmation."""

    verb: ClassVar[str] = "mixture"
    resumes: ClassVar[bool] = True
    extends_finished: ClassVar[bool] = True
    progress: ClassVar[config.ProgressUnit] = "trials"
    estimate: ClassVar[str] = "trainrig.scaling.mixture.proxy_trials:estimate_mixture"

    stage: Literal["mixture"] = "mixture"
    # Folder that `trainrig tokenize` wrote. Its sources are weighed.
    tokens: Annotated[str, config.NOT_IDENTITY]
    output: Annotated[str, config.OUTPUT]  # folder to write, on disk or in a bucket
    cache: BlockCache = BlockCache()  # cache on this machine for tokens that are in a bucket
    # Held-out sources to be good at, with weights of their losses that sum to 1; empty: all
    # sources, with equal weights.
    targets: Annotated[Mapping[str, Positive], config.EXTENDABLE] = Field(default={})
    proxy: Proxy  # model and number of the runs on drawn mixtures
    # Regression of the losses: "RegMix" has a Gaussian process for each target, "MixingLaw" the
    # data mixing law c + k exp(t r).
    method: Annotated[Method, config.EXTENDABLE] = "RegMix"
    # Search for the mixture of least loss. `at_most` limits sources whose tokens would run out.
    search: Annotated[MixtureSearch, config.EXTENDABLE] = MixtureSearch()
    # Number of seeds with which the proposed, the natural and the uniform mixture are trained, to
    # compare the measured losses with the predicted ones; 0: they are not trained.
    confirm: Annotated[int, config.EXTENDABLE] = Field(default=3, ge=0)
    seed: Seed = 0  # seed of the drawn mixtures, and of the seeds of all runs
    tie_embeddings: bool = True  # Whether the output head shares the embedding's weights
    # muP, which uses one learning rate for all widths; None: the rule sets the rate.
    mup: MuP | None = None
    # Rows of all runs. A source is not drawn for more than `batches.epochs` epochs.
    batches: SweepBatches = SweepBatches()
    training: SweepTraining = SweepTraining()  # training settings of all runs
    rule: SweepRule = DeepSeek()  # rule for the batch size and the peak learning rate
    rate_factor: Factor = 1.0  # factor that multiplies the rule's learning rate
    batch_factor: Factor = 1.0  # factor that multiplies the rule's batch size
    # Sequences of each held-out source on which losses are measured; None: all.
    held_out_rows: int | None = Field(default=None, ge=1)
    # number of runs at a time, and resources of each
    trials: Annotated[Trials, config.NOT_IDENTITY] = Trials()

    def request_resources(self, there_are_gpus: bool) -> config.ResourceRequest:
        """Return the least and the greatest number of runs at a time, with the resources of each.

        No GPU is requested that the run file does not name.
        """
        return self.trials.request_resources()

    def build_sweep(self) -> ProxySweep:
        """Return the sweep of one point whose trials differ in their weights and seeds."""
        return ProxySweep(
            tokens=self.tokens,
            output=self.output,
            cache=self.cache,
            design=Points(pairs=((self.proxy.parameters, self.proxy.tokens),)),
            tie_embeddings=self.tie_embeddings,
            mup=self.mup,
            batches=self.batches,
            training=self.training,
            rule=self.rule,
            rate_factor=self.rate_factor,
            batch_factor=self.batch_factor,
            held_out_rows=self.held_out_rows,
            trials=self.trials,
        )

    @model_validator(mode="after")
    def _check_targets(self) -> Self:
        total = math.fsum(self.targets.values())
        if self.targets and abs(total - 1) > SUM_WITHIN:
            raise ValueError(
                f"targets: the weights sum to {total:.4g}, not to 1; divide each by {total:.4g}"
            )
        return self

    @model_validator(mode="after")
    def _check_confirm(self) -> Self:
        if self.confirm == 1:
            raise ValueError(
                "confirm: one seed says nothing about the noise between seeds; set 2 or more, or "
                "0 for no confirmation"
            )
        return self

    @model_validator(mode="after")
    def _check_sweep_settings(self) -> Self:
        if self.batches.weights is not None:
            raise ValueError(
                "batches.weights: the command draws the weights of each run; leave them out"
            )
        if self.trials.instance is not None:
            raise ValueError(
                "trials.instance: the command counts no costs of its runs; leave the key out"
            )
        self.build_sweep()  # raises the errors of a sweep's settings
        return self
