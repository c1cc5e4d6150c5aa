"""Ray's own autoscaler, with raylets on this machine instead of machines."""

import functools
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
from support import faults, trouble
from support.waiting import wait_until

from trainrig import config, manifest, storage
from trainrig.corpus.curate import REPORT_PAGE, Curation, curate
from trainrig.corpus.curation_settings import CurationSource
from trainrig.corpus.read import RawPage, ReadSettings
from trainrig.corpus.read.warc_and_arc import write_warc
from trainrig.errors import ConfigError
from trainrig.manifest import CLAIM, MANIFEST
from trainrig.ray_runtime import ray_session, split_processing
from trainrig.scaling.sweep.ray_tune import connect_for_trials
from trainrig.scaling.sweep.sweep import Sweep, sweep
from trainrig.splits import Phase, Split
from trainrig.train.elastic import trainer

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.chaos]
WHEN = "2024-05-18T01:58:10Z"
APART = ReadSettings(piece_bytes=17_000)  # a piece for each of these small files
SPLITS = [Split(f"split-{number}", {"number": number}) for number in range(6)]


def slow_work(folder, seconds):
    """Return slow work that records which node it ran on."""

    def work(task):
        import ray

        time.sleep(seconds)
        here = ray.get_runtime_context().get_node_id()
        path = f"{folder}/{task['number']}"
        storage.write(path, here.encode())
        return {"done": task["number"]}, {f"{task['number']}": manifest.compute_file_sum(path)}

    return work


@pytest.fixture(autouse=True)
def by_value():
    """Pickle this module by value, because workers cannot import a test file by name."""
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_possible_nodes_count_and_impossible_requests_are_refused_with_the_pools(scaled):
    ray_session.connect(3, "run.toml: workers")
    with pytest.raises(ConfigError) as caught:
        ray_session.connect(4, "run.toml: workers")
    assert str(caught.value) == (
        "run.toml: workers: 4 workers of 1 CPU each, but the nodes that may be added hold 3 "
        "(cpu: 3 nodes of 1 CPU; gpu: 2 nodes of 1 CPU); set workers = 3 or fewer, or let a pool "
        "have more nodes"
    )
    trainer.check_fit((5, 9))
    with pytest.raises(ConfigError, match=r"workers: 6 workers of 1 CPU.*hold 5"):
        trainer.check_fit((6, 9))


@pytest.mark.parametrize("brief", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_splits_start_nodes_of_their_pool_and_leave_none(scaled, tmp_path, brief):
    make_work = functools.partial(slow_work, str(tmp_path), 1.0)
    phase = Phase(str(tmp_path / "records"), make_work)
    seen = []
    over = threading.Event()
    aside = threading.Thread(target=watch, args=(scaled, seen, over))
    aside.start()
    split_processing.map_splits(phase, SPLITS, workers=3, brief=brief)
    over.set()
    aside.join()
    assert {pool for nodes in seen for pool in nodes} == {"cpu"}
    assert max(nodes["cpu"] for nodes in seen) == 3
    assert len({(tmp_path / str(number)).read_text() for number in range(6)}) == 3
    scaled.wait_for()


@pytest.mark.soak
def test_a_curation_on_nodes_that_came_for_it_equals_one_without_any(scaled, tmp_path):
    words = random.Random(1).choices(["the", "of", "and", "river", "bridge", "letter"], k=9000)
    for number in range(3):
        texts = (" ".join(words[at : at + 90 + number]) + "." for at in range(0, 9000, 100))
        pages = [
            RawPage(f"http://web.example/{number}-{at}", "text/plain", text.encode(), WHEN, "utf-8")
            for at, text in enumerate(texts)
        ]
        write_warc(str(tmp_path / f"{number}.warc.gz"), pages)
    source = CurationSource(name="web", paths=(f"{tmp_path}/*.warc.gz",), reading=APART)
    made = {}
    for workers in (0, 3):
        output = str(tmp_path / f"out-{workers}")
        seen = []
        over = threading.Event()
        aside = threading.Thread(target=watch, args=(scaled, seen, over))
        aside.start()
        curate(Curation(output=output, workers=workers, sources=(source,)))
        over.set()
        aside.join()
        made[workers] = {
            path.removeprefix(output): storage.compute_sha256(path)
            for path in storage.list_files(output)
            if path.rpartition("/")[2] not in {CLAIM, MANIFEST, REPORT_PAGE}
        }
        pools = {pool for nodes in seen for pool in nodes}
        assert pools == ({"cpu"} if workers else set())
    assert made[3] == made[0] and len(made[0]) > 3
    scaled.wait_for()


def test_a_sweep_without_live_workers_starts_nodes_for_its_trials(scaled, make_tokens, tmp_path):
    sizes = {"kind": "Rays", "parameters": (6_000, 12_000), "tokens_per_parameter": (0.3,)}
    settings = {
        "stage": "sweep",
        "tokens": make_tokens(tmp_path),
        "output": str(tmp_path / "sweep"),
        "design": sizes,
        "batches": {"sequence_length": 32, "micro_batch": 4, "epochs": 4},
        "training": {"fewest_steps": 6, "checkpoint_every": 5},
    }
    with pytest.raises(ConfigError, match=r"trials.cpus = 2, but no node that may be added"):
        connect_for_trials(config.build(Sweep, settings | {"trials": {"cpus": 2}}, "sweep.toml"))
    scaled.wait_for()
    assert sweep(config.build(Sweep, settings, "sweep.toml")).counts["points"] == 2
    scaled.wait_for()


def watch(scaled, seen, over):
    while not over.wait(0.2):
        seen.append(scaled.nodes())


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_run_grows_onto_new_nodes_and_survives_a_lost_one(scaled, undisturbed, tmp_path):
    straight = undisturbed(60)
    job = trouble.slowed(straight, str(tmp_path / "run"), seconds=0.1)
    events = faults.Events(job.folder)
    aside = faults.Aside(lambda: trainer.run(job, (1, 2)))
    wait_until(lambda: workers(events)[-1:] == [2], events.folder.read_events, seconds=200)
    events.wait_for_a_step()
    attempts = len(workers(events))
    scaled.lose_a_node()
    events.wait("attempt_started", attempts + 1)
    aside.end()
    found = faults.read_results(job)
    wanted = faults.read_results(straight)
    for name in ("updates", "held out", "samples"):
        assert found[name] == wanted[name], name
    # This process is still connected, and has trained, but it holds no node.
    scaled.wait_for()


def workers(events):
    return [event["workers"] for event in events.all("attempt_started")]


DEAD_DRIVER = """
import os, signal, sys, time
from trainrig.ray_runtime import node_placement, ray_session
node_placement.EXPIRE_SECONDS = 5.0
ray_session.join()
node_placement.AutoscalerRequest().request(2, {"CPU": 1})
import ray
while sum(node["Alive"] for node in ray.nodes()) < 3:
    time.sleep(0.1)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.soak
def test_a_dead_drivers_request_is_dropped(scaled):
    ended = subprocess.run([sys.executable, "-c", DEAD_DRIVER], timeout=120)
    assert ended.returncode == -signal.SIGKILL
    assert scaled.nodes().total() == 2
    scaled.wait_for()
