"""`trainrig doctor` finds little memory, little disk and low limits."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trainrig.doctor import machine_checks
from trainrig.doctor.diagnosis import run_check
from trainrig.ray_runtime import start_checks

FEW_FILES = """
import json, resource
from trainrig.doctor.machine_checks import check_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 2048))
found = check_open_files()
print(json.dumps([found.severity, found.found, found.advice]))
"""


def test_memory_is_the_machines_or_the_control_groups_if_that_is_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "meminfo"
    info.write_text("MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\nHugePages_Total: 0\n")
    monkeypatch.setattr(machine_checks, "MEMORY_INFO", info)
    monkeypatch.setattr(start_checks, "list_control_groups", lambda controller: [tmp_path])
    assert machine_checks.read_memory() == (16 * 2**30, 8 * 2**30)
    assert machine_checks.check_memory().severity == "ok"
    (tmp_path / "memory.max").write_text("max\n")
    assert machine_checks.read_memory() == (16 * 2**30, 8 * 2**30)
    (tmp_path / "memory.max").write_text(f"{4 * 2**30}\n")
    (tmp_path / "memory.current").write_text(f"{3 * 2**30}\n")
    assert machine_checks.read_memory() == (4 * 2**30, 2**30)
    found = machine_checks.check_memory()
    assert (found.severity, found.found) == ("warning", "1.0 GiB of 4.0 GiB available")


def test_a_low_limit_of_open_files_is_a_warning_with_the_command_that_raises_it() -> None:
    command = [sys.executable, "-c", FEW_FILES]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    severity, found, advice = json.loads(done.stdout)
    assert (severity, found) == ("warning", "1,024 files, of a hard limit of 2,048")
    assert "ulimit -n 65536" in advice


def test_a_disk_is_warned_of_when_little_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine_checks.check_disk(str(tmp_path)).found.startswith(f"{tmp_path}: ")
    monkeypatch.setattr(machine_checks, "INSTALL_DISK", 1e30)
    assert machine_checks.check_disk(str(tmp_path)).severity == "warning"


def test_records_must_be_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRAINRIG_HOME", str(tmp_path / "file" / "home"))
    found = run_check("records", machine_checks.check_records)
    assert found.severity == "problem"
    assert "is a file; name another folder" in found.found
    monkeypatch.setenv("TRAINRIG_HOME", str(tmp_path / "home"))
    assert machine_checks.check_records().severity == "ok"


def test_small_shared_memory_is_a_warning_and_missing_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_checks, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(machine_checks, "OBJECT_STORE_BYTES", 2**90)
    assert machine_checks.check_shared_memory().severity == "warning"
    monkeypatch.setattr(start_checks, "SHARED_MEMORY", tmp_path / "none")
    found = run_check("shared memory", machine_checks.check_shared_memory)
    assert found.severity == "problem"
    assert "--shm-size=1g" in found.found
