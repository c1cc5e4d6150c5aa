import datetime

import pytest

from trainrig.launch.clusters.machine_providers import CloudMachine, read_time

UTC = datetime.UTC


@pytest.mark.parametrize(
    ("written", "time"),
    [
        ("2026-11-30T18:00:05Z", datetime.datetime(2026, 11, 30, 18, 0, 5, tzinfo=UTC)),
        ("2026-11-30t18-00-05z", datetime.datetime(2026, 11, 30, 18, 0, 5, tzinfo=UTC)),
        ("24h", None),
        ("", None),
        ("tomorrow", None),
    ],
)
def test_the_time_of_a_tag_is_read_as_either_cloud_writes_it(written, time):
    assert read_time(written) == time


@pytest.mark.parametrize(
    ("expires", "expired"),
    [("2020-01-01T00:00:00Z", True), ("2999-01-01t00-00-00z", False), ("24h", False), ("", False)],
)
def test_only_machines_with_a_time_expire(expires, expired):
    assert CloudMachine("i-1", "instance", "aws", "running", expires=expires).expired == expired
