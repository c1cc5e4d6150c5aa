"""Extensions are one file and one name each, as CONTRIBUTING.md says: tried in a copy.

A verb is in tests/test_verbs.py, online batches in tests/rl/test_online_batches.py.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import new_members
import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """Return `copy("SCRIPT.py", …)`: the output of a Python whose `trainrig` has the extensions."""
    at = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "platform" / "trainrig", at / "trainrig")
    new_members.add_members(at / "trainrig")

    def run(*arguments):
        environment = os.environ | {
            "PYTHONPATH": f"{at}{os.pathsep}{ROOT}/tests",
            "OMP_NUM_THREADS": "1",
        }
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=at,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


def test_the_tour_names_the_places():
    tour = (ROOT / "CONTRIBUTING.md").read_text()
    folders = {f"{Path(name).parent}/" for name in new_members.FILES}
    for place in (*new_members.NAMES, *folders):
        assert f"`{place}" in tour, place


def test_each_name_has_one_place():
    for name, additions in new_members.NAMES.items():
        text = (ROOT / "platform" / "trainrig" / name).read_text()
        for after, _ in additions:
            assert text.count(after) == 1, (name, after)


USE_STORAGE = """
from trainrig import storage
storage.write("mem://b/runs/a", b"data")
print(storage.create("mem://b/runs/a", b"x"), storage.read_range("mem://b/runs/a", 1, 3))
with storage.atomic_file("mem://b/runs/c/d") as local:
    open(local, "wb").write(b"12345")
print(storage.list_sizes("mem://b"), storage.list_folders("mem://b/runs"))
print(storage.open_read("mem://b/runs/c/d").read(), storage.is_remote("mem://b"))
"""


def test_a_new_storage_takes_the_locations_of_its_scheme(copy):
    done = copy("-c", USE_STORAGE)
    assert done.stdout.splitlines() == [
        "False b'at'",
        "{'mem://b/runs/a': 4, 'mem://b/runs/c/d': 5} ['mem://b/runs/c']",
        "b'12345' True",
    ], done.stderr


@pytest.mark.slow
def test_a_filter_over_a_new_signal_drops_documents(copy, tmp_path):
    pages = [{"url": "https://a.example/1", "text": "an area to use as we do " * 30}]
    pages += [{"url": "https://a.example/2", "text": "rhythm myths tryst crypts " * 30}]
    (tmp_path / "pages.jsonl").write_text("".join(json.dumps(page) + "\n" for page in pages))
    (tmp_path / "curate.toml").write_text(
        f'stage = "curate"\noutput = "{tmp_path}/out"\nworkers = 0\n'
        f'[[sources]]\nname = "web"\npaths = ["{tmp_path}/pages.jsonl"]\n'
        'filters = [{ kind = "Vowels", least = 0.2 }]\n'
    )
    done = copy("-m", "trainrig", "curate", tmp_path / "curate.toml", "--json")
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["documents_kept"] == 1
    assert counts["dropped_by"] == {"Vowels.share": 1}
    (tmp_path / "curate.toml").write_text(
        (tmp_path / "curate.toml").read_text().replace("Vowels", "Vowel")
    )
    refused = copy("-m", "trainrig", "check", tmp_path / "curate.toml")
    assert refused.returncode == 2 and "Vowels" in refused.stderr


@pytest.mark.slow
def test_checks_and_estimates_ask_what_new_members_declare(copy, tmp_path):
    done = copy(ROOT / "tests" / "new_members.py", "describe", tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    plain, echo = found["plain"], found["echo"]
    # An objective's rows, work and memory.
    assert echo["rows"] == "64 positions, the text twice"
    assert 1.5 < echo["flops"] / plain["flops"] < 2.5
    assert echo["memory_per_device_gib"] > plain["memory_per_device_gib"]
    assert "64" in found["echo in short rows"] and "positions" in found["echo in short rows"]
    assert "Echo needs whole rows" in found["echo with context"]
    assert "Echo cannot be a member" in found["echo in a mixture"]
    assert "context for Echo" in found["plan of echo"]
    # An optimizer's matrices and width.
    assert "one of SignDescent, AdamW" in found["whole with tensor"]
    assert "NormDescent has no rule" in found["whole with muP"]
    whole, elementwise = (
        found[f"offloaded, {kind}"]["memory_per_device_gib"] for kind in ("whole", "elementwise")
    )
    assert whole > elementwise  # as many matrices at once as there are workers
    # An axis.
    assert found["further"]["layout"] == "FurtherAxis, further 1"
    assert "further.ranks (2) does not divide 3 workers" in found["further of 2"]
    assert "they repeat each other in groups of 2" in found["further of 2"]
    assert "parallel.further compares whole layers" in found["further with tensor"]
    assert "parallel.further compares results within layers" in found["further with compiling"]


@pytest.mark.chaos
def test_new_members_of_training_survive_a_kill_and_a_resize(copy, tmp_path):
    """Attention, optimizer, objective, an auxiliary model, and a mesh with an axis of 1 are new."""
    done = copy(ROOT / "tests" / "new_members.py", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("the same bits\n")
