"""The table of devices and instances."""

from pathlib import Path

import pytest

from trainrig import hardware
from trainrig.errors import ConfigError

OWN = """
[devices.mine]
flops = { bfloat16 = 1e12 }
memory = 8e9
watts = 100
source = "measured"

[instances.box]
device = "mine"
devices = 2
vcpus = 8
memory = 64e9
usd = 1.5
as_of = "2026-11"
source = "the bill"
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    return path


def test_the_table_that_comes_along_is_whole() -> None:
    found = hardware.load()
    assert found.device("h100").peak("bfloat16") == 989e12
    assert {each.device for each in found.instances.values()} <= set(found.devices)
    for device in found.devices.values():  # dense peaks: no device gains more than 40 times
        assert 1 <= device.peak("bfloat16") / device.peak("float32") < 40
    for instance in found.instances.values():
        assert instance.as_of.startswith("202")
        assert instance.source


def test_the_cheapest_machine_is_the_cheapest_for_each_device() -> None:
    assert hardware.load().cheapest("h100") == "p5.48xlarge"
    assert hardware.load().cheapest("rtx-4090") is None


def test_cores_of_a_cpu_are_no_accelerators(table: Path) -> None:
    found = hardware.load()
    assert found.accelerators("p5.48xlarge") == 8
    assert found.accelerators("m7i.8xlarge") == 0
    assert hardware.load(str(table)).accelerators("box") == 2


def test_a_table_of_ones_own(table: Path) -> None:
    found = hardware.load(str(table))
    assert found.instance("box").usd == 1.5
    assert found.cheapest("mine") == "box"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('device = "mine"', 'device = "mein"'), "no device 'mein'; did you mean 'mine'?"),
        (("usd = 1.5", "usd = -1.0"), "greater than 0"),
        (("watts = 100", 'watts = "100"'), "valid number"),
        (("bfloat16 = 1e12", "bf16 = 1e12"), "bf16"),
        (("memory = 8e9", "gigabytes = 8"), "no key 'gigabytes' in Device"),
    ],
)
def test_a_wrong_table_is_one_clear_line(
    table: Path, change: tuple[str, str], message: str
) -> None:
    table.write_text(OWN.replace(*change))
    with pytest.raises(ConfigError, match=r"own\.toml") as refused:
        hardware.load(str(table))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_unknown_name_gets_the_nearest(table: Path) -> None:
    with pytest.raises(ConfigError, match=r"no device 'h1000'.*did you mean 'h100'"):
        hardware.load().device("h1000")
    with pytest.raises(ConfigError, match=r"no instance 'p5.48xlrge'.*did you mean 'p5.48xlarge'"):
        hardware.load().instance("p5.48xlrge")
    with pytest.raises(ConfigError, match="no peak for float32"):
        hardware.load(str(table)).device("mine").peak("float32")
