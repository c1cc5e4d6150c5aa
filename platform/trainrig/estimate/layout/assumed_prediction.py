"""Predictions of layouts where step times cannot be predicted: an assumed share of the peak.

The table of hardware lacks figures of some devices, and some models have parts that the formulas of
`step_prediction` do not know. A step then takes its operations over an assumed share of the peak.
Memory is counted as for every run.
"""

from dataclasses import dataclass

from trainrig.estimate import activation_bytes
from trainrig.estimate.fitting_layouts import BatchShape
from trainrig.estimate.layout import layouts
from trainrig.estimate.layout.communication import Cluster
from trainrig.estimate.layout.step_prediction import (
    StepPrediction,
    StepSeconds,
    StepTraffic,
    apply_to_training,
)
from trainrig.estimate.model_parallel_memory import estimate_worker_memory
from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.train.run_file.training_settings import Training


@dataclass(frozen=True)
class AssumedPredictor:
    """Predictor of layouts in which each replica is one device, by an assumed share of the peak."""

    model: DecoderConfig
    training: Training
    batch: BatchShape
    cluster: Cluster
    flops: float  # operations of a step
    share: float  # share of the peak that training reaches
    masks: activation_bytes.RowMasks = activation_bytes.NO_MASKS
    predicted: float = 1.0  # share of tokens for which logits are computed
    as_written: bool = False  # true if the run keeps its virtual workers

    def build_training(self, layout: layouts.DeviceLayout) -> Training:
        """Return the run's training settings with `layout` applied."""
        return apply_to_training(self.training, layout, self.as_written)

    def predict(self, layout: layouts.DeviceLayout) -> StepPrediction:
        """Return the memory of `layout`, and the seconds that every layout is assumed to take."""
        training = self.build_training(layout)
        peak = self.cluster.device.find_peak(training.precision.peak) * self.cluster.devices
        batch = self.batch
        return StepPrediction(
            layout=layout,
            memory=estimate_worker_memory(
                self.model,
                training,
                self.cluster.devices,
                batch.global_batch,
                layout.micro_batch,
                batch.sequence_length,
                self.masks,
            ),
            traffic=StepTraffic(),
            seconds=StepSeconds(products=self.flops / (peak * self.share)),
            positions=batch.global_batch * batch.sequence_length,
            flops=self.flops,
            peak=peak,
        )
