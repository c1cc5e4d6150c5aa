"""Rooms of train/, and what goes from it to the ground floor."""

MOVES = {
    # the ground floor
    "train.append_log": "processes.append_log",
    "train.lease": "processes.lease",
    "train.fork_server": "processes.fork_server",
    "train.watch": "processes.heartbeats",
    "train.agreement": "parallel.stop_consensus",
    # on top
    "train.run": "train.run_file",
    "train.continued": "train.initial_weights",
    "train.room": "train.disk_space",
    "train.faults": "train.fault_settings",
    "train.workers": "train.worker_bounds",
    # supervision
    "train.trainer": "train.elastic.trainer",
    "train.supervise": "train.elastic.supervise",
    "train.decisions": "train.elastic.restart_policy",
    "train.causes": "train.elastic.failure_cause",
    "train.ray_group": "train.elastic.ray_attempt",
    "train.crew": "train.elastic.worker_group",
    "train.conductor": "train.elastic.train_controller",
    "train.control": "train.elastic.coordinator",
    "train.orders": "train.elastic.messages",
    "train.channel": "train.elastic.ipc",
    "train.keeper": "train.elastic.worker_agent",
    "train.rank": "train.elastic.rank",
    "train.spares": "train.elastic.warm_actors",
    "train.wish": "train.elastic.autoscaler_request",
    "train.stop": "processes.stop_file",
    # the run folder
    "train.run_folder": "train.run.run_folder",
    "train.metrics": "train.run.metrics",
    "train.goodput": "train.run.goodput",
    "train.progress": "train.run.progress",
    "train.samples": "train.run.sample_log",
    "train.record": "train.run.step_logger",
    "train.run_page": "train.run.run_page",
    "train.run_charts": "train.run.run_charts",
    "train.prediction": "train.run.prediction",
    "train.prediction_chart": "train.run.prediction_chart",
}
PACKAGES = {
    "processes": "Processes of one machine and of several: forked, listened to, leased, logged.",
    "train": "Pretraining: the verb, the loop, the step and the state.",
    "train.elastic": "Elastic training on Ray: attempts supervised, worker groups, agents, messages.",
    "train.run": "The run folder: metrics, events, samples, goodput, report.",
}
TEST_MOVES = {
    "tests/train/forked.py": "tests/processes/forked.py",
}
MOVE_PATCHES = [
    # A file that is moved as it was kept its digest, and what was compiled of it names its old module.
    (
        "platform/trainrig/corpus/compiled.py",
        "    contents = (hashlib.sha256(_source(each).encode()).hexdigest() for each in sorted(found))\n",
        "    contents = (\n"
        "        hashlib.sha256(f\"{each.relative_to(_ROOT)}\\n{_source(each)}\".encode()).hexdigest()\n"
        "        for each in sorted(found)\n"
        "    )\n",
    ),
    (
        "platform/trainrig/corpus/compiled.py",
        '    """Of what `file` and the files of trainrig that it imports hold."""\n',
        '    """Of what `file` and the files of trainrig that it imports are called and hold: what was compiled\n    names its module."""\n',
    ),
]


def add_conftests(tree, say):
    """Fixtures of tiny runs for the tests of new folders."""
    for folder in ("processes", "estimate"):
        path = tree / "tests" / folder / "conftest.py"
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            '"""Tiny tokens and runs, as the tests of training have them."""\n\nimport runpy\nfrom pathlib import Path\n\n'
            'globals().update(runpy.run_path(str(Path(__file__).parents[1] / "train" / "tiny.py")))\n'
        )


def draw_floors(tree, say):
    """The new floors in the README's tree."""
    path = tree / "README.md"
    text = path.read_text()
    if "  corpus/" not in text or "  posttrain/" not in text:
        say("README: the tree of folders is not what it was")
        return
    text = text.replace(
        "\n  corpus/",
        "\n  storage/     bytes on disk or in S3, retries"
        "\n  config/      run files, their schemas"
        "\n  processes/   processes, leases, append-only logs, heartbeats: what all stages use"
        "\n  ray_runtime/ the Ray that stages run on: session, pools, the local one"
        "\n  command_line/ help, options and completion of the commands"
        "\n  corpus/",
        1,
    )
    text = text.replace("\n  posttrain/", "\n  estimate/    FLOPs, memory, hours and money of a run, by the table of devices\n  posttrain/", 1)
    path.write_text(text)


HOOKS = [add_conftests, draw_floors]
