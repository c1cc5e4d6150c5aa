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
    assert found.find_device("h100").find_peak("bfloat16") == 989e12
    assert {machine.device for machine in found.instances.values()} <= set(found.devices)
    for device in found.devices.values():  # dense peaks: no device gains more than 40 times
        emulated = device == found.devices[hardware.CPU_WITHOUT_BFLOAT16]
        gain = device.find_peak("bfloat16") / device.find_peak("float32")
        assert gain < 0.2 if emulated else 1 <= gain < 40
    for instance in found.instances.values():
        assert instance.as_of.startswith("202")
        assert instance.source


def test_the_cheapest_machine_is_the_cheapest_for_each_device() -> None:
    assert hardware.load().find_cheapest("h100") == "p5.48xlarge"
    assert hardware.load().find_cheapest("rtx-4090") is None


def test_cores_of_a_cpu_are_no_accelerators(table: Path) -> None:
    found = hardware.load()
    assert found.count_accelerators("p5.48xlarge") == 8
    assert found.count_accelerators("m7i.8xlarge") == 0
    assert hardware.load(str(table)).count_accelerators("box") == 2


def test_a_table_of_ones_own(table: Path) -> None:
    found = hardware.load(str(table))
    assert found.find_instance("box").usd == 1.5
    assert found.find_cheapest("mine") == "box"


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
        hardware.load().find_device("h1000")
    with pytest.raises(ConfigError, match=r"no instance 'p5.48xlrge'.*did you mean 'p5.48xlarge'"):
        hardware.load().find_instance("p5.48xlrge")
    with pytest.raises(ConfigError, match="no peak for float32"):
        hardware.load(str(table)).find_device("mine").find_peak("float32")


@pytest.mark.parametrize(
    ("flags", "there"),
    [
        ("flags\t\t: fpu avx2 avx512f", False),
        ("flags\t\t: fpu avx512f avx512_bf16 sha", True),
        ("flags\t\t: amx_bf16 amx_tile", True),
        ("Features\t: fp asimd bf16 i8mm", True),
        ("flags\t\t: fpu xbf16x", False),
    ],
)
def test_a_cpu_says_whether_it_multiplies_bfloat16(
    flags: str, there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{flags}\nbugs\t\t: none\n")
    monkeypatch.setattr(hardware, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(hardware, "GPU_INFO", tmp_path / "gpus")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert hardware.cpu_has_bfloat16() == there
    core = hardware.CPU if there else hardware.CPU_WITHOUT_BFLOAT16
    assert hardware.identify_local_device(hardware.load()) == core


def test_a_gpu_is_known_by_what_its_driver_or_its_tool_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = tmp_path / "gpus" / "0000:01:00.0" / "information"
    about.parent.mkdir(parents=True)
    about.write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 1\n")
    monkeypatch.setattr(hardware, "GPU_INFO", tmp_path / "gpus")
    assert hardware.identify_local_device(hardware.load()) == "h100"
    monkeypatch.setattr(hardware, "GPU_INFO", tmp_path / "none")
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho NVIDIA H200\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert hardware.identify_local_device(hardware.load()) == "h200"
