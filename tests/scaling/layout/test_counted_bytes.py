"""What ranks send in a real step is what the planner says they send."""

import pytest

from trainrig import hardware
from trainrig.estimate.layouts import BatchShape
from trainrig.scaling.layout.cluster import Cluster
from trainrig.scaling.layout.layouts import Degrees, DeviceLayout
from trainrig.scaling.layout.prediction import Predictor


def sent(job, layout):
    """Bytes that one device gathers for others and reduces, by the planner."""
    table = hardware.load()
    device = table.device("h100")
    devices = layout.degrees.devices
    cluster = Cluster("h100", device, devices, devices, table.links["nvlink-4"], None)
    batch = BatchShape(8, 16)
    found = Predictor(job.model, job.training, batch, cluster).of(layout).traffic
    return found.gathered.inside, found.reduced.inside


@pytest.mark.parametrize(
    ("world", "deterministic", "reshard", "micro_batch"),
    [(2, False, "step", 1), (4, False, "step", 1), (4, False, "layer", 1), (2, True, "step", 2)],
)
def test_bytes_of_fsdp(ranks, make_job, tmp_path, world, deterministic, reshard, micro_batch):
    job = make_job(
        tmp_path,
        training={
            "steps": 10,
            "deterministic": deterministic,
            "virtual_workers": world,
            "parallel": {"kind": "FSDP", "reshard": reshard},
        },
        batches={"global_batch": 8, "micro_batch": micro_batch},
    )
    counted = ranks(world, "sent_bytes", job=job)[0]
    gathered = sum(n for name, n in counted.items() if "gather" in name)
    reduced = sum(n for name, n in counted.items() if "gather" not in name)
    layout = DeviceLayout(Degrees(1, world), micro_batch, reshard=reshard)
    assert (gathered, reduced) == sent(job, layout)
