"""`trainrig plan --layout`: its output, its files, and rejected requests."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trainrig import config, hardware
from trainrig.cli import app
from trainrig.errors import ConfigError
from trainrig.estimate.layout.cluster_choice import ClusterWanted, build_cluster
from trainrig.estimate.layout.run_subject import FixedDegrees
from trainrig.job import exit_codes
from trainrig.parallel.layout import FSDP
from trainrig.scaling.plan.layout_verb import answer, build_subject
from trainrig.train.run_file.run_files import Pretraining

RUN = """
stage = "pretrain"
tokens = "tokens"
output = "run"
workers = 8
[model]
layers = 8
channels = 1024
heads = 16
kv_heads = 8
vocabulary = 32768
[batches]
sequence_length = 2048
global_batch = 64
micro_batch = 1
[training]
steps = 1000
precision.compute = "bfloat16"
"""
MIXTURE = '[model.feedforward]\nkind = "MixtureOfExperts"\nexperts = 8\nactive = 2\n[batches]'
TWO_NODES = ClusterWanted(device="h100", nodes=2)


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    return path


def plan(path, wanted=TWO_NODES, out=None, table=None, **fixed):
    return answer(str(path), wanted, FixedDegrees(**fixed), table, out)


@pytest.mark.slow
def test_the_ten_fastest_are_printed_fastest_first(run_file):
    found, lines = plan(run_file)
    assert len(found.best) == 10
    seconds = [candidate.prediction.seconds.total for candidate in found.best]
    assert seconds == sorted(seconds)
    room = found.cluster.device.memory
    assert all(candidate.prediction.memory.fits(room) for candidate in found.best)
    degrees = [candidate.prediction.layout.degrees for candidate in found.best]
    assert len(set(degrees)) == 10 and {choice.devices for choice in degrees} == {16}
    assert "16 h100 (450 GB/s inside a machine of 8, 400 GB/s per machine" in lines[0]
    assert sum(line.split()[0].isdigit() for line in lines) >= 10
    assert any("USD" in line and "kWh" in line and "kW" in line for line in lines)


@pytest.mark.slow
def test_axes_that_the_trainer_lacks_are_named_and_not_written(run_file, tmp_path):
    run_file.write_text(RUN.replace("[batches]", MIXTURE))
    out = tmp_path / "best.toml"
    found, _ = plan(run_file, ClusterWanted("h100", 1), out=str(out))
    for candidate in [*found.best, found.runnable]:
        degrees = candidate.prediction.layout.degrees
        for axis in ("pipeline", "expert", "tensor", "context"):
            lacking = getattr(degrees, axis) > 1 and axis not in FSDP.model_fields
            assert (axis in candidate.needs) == lacking
        shared = degrees.context * degrees.expert * degrees.tensor * degrees.pipeline > 1
        copies = shared and (degrees.replicate > 1 or candidate.prediction.layout.reduce != "step")
        assert ("deterministic = false" in candidate.needs) == copies
    assert found.runnable is not None and not found.runnable.needs
    made = config.load(Pretraining, str(out))
    layout = found.runnable.prediction.layout
    assert made.workers == layout.degrees.devices == 8
    assert made.batches.micro_batch == layout.micro_batch * layout.degrees.expert
    assert made.training.deterministic
    assert made.training.virtual_workers == max(8, layout.degrees.data)
    assert made.training.parallel.kind == "FSDP"
    assert made.training.parallel.reshard == layout.reshard
    assert made.training.parallel.reduce == layout.reduce
    before = config.load(Pretraining, str(run_file))
    assert made.model == before.model
    page = (tmp_path / "best.layouts.html").read_text()
    assert "Layouts of a run" in page and "<svg" in page and "Constants" in page


def test_divided_experts_are_written_as_the_trainer_reads_them(run_file, tmp_path):
    run_file.write_text(RUN.replace("[batches]", MIXTURE))
    out = tmp_path / "best.toml"
    found, _ = plan(run_file, ClusterWanted("h100", 1), out=str(out), expert=4, context=1)
    layout = found.runnable.prediction.layout
    made = config.load(Pretraining, str(out))
    assert made.training.parallel.expert.ranks == layout.degrees.expert == 4
    assert made.batches.micro_batch == 4 * layout.micro_batch
    assert layout.recompute != "selective"
    made.training.check_workers(made.workers)


def test_shared_layers_are_written_with_their_places_divided(run_file, tmp_path):
    out = tmp_path / "best.toml"
    plan(run_file, out=str(out), tensor=2, context=2)
    made = config.load(Pretraining, str(out))
    assert made.training.parallel.tensor.model_dump() == {"ranks": 2, "sequence_parallel": True}
    assert made.training.parallel.context.ranks == 2
    made.training.check_workers(made.workers)


def test_parts_of_rows_and_of_layers_are_written_between_stages(run_file, tmp_path):
    out = tmp_path / "best.toml"
    found, _ = plan(run_file, out=str(out), tensor=2, pipeline=2, context=2)
    assert found.runnable == found.best[0] and not found.best[0].needs
    made = config.load(Pretraining, str(out))
    assert made.training.parallel.tensor.model_dump() == {"ranks": 2, "sequence_parallel": True}
    assert made.training.parallel.pipeline.ranks == made.training.parallel.context.ranks == 2
    done = CliRunner().invoke(app, ["check", str(out)])
    assert done.exit_code == 0, done.output


def test_experts_are_written_shared_and_divided_within_stages(run_file, tmp_path):
    run_file.write_text(RUN.replace("[batches]", MIXTURE))
    out = tmp_path / "best.toml"
    plan(run_file, out=str(out), tensor=2, pipeline=2, expert=2, context=1)
    parallel = config.load(Pretraining, str(out)).training.parallel
    assert parallel.tensor.ranks == parallel.pipeline.ranks == parallel.expert.ranks == 2


@pytest.mark.slow
def test_an_axis_that_an_objective_is_not_trained_with_is_not_written(run_file):
    run_file.write_text(RUN + '[objective]\nkind = "PrefixLM"\n')
    found, _ = plan(run_file)
    assert found.runnable.prediction.layout.degrees.replica_devices == 1
    for candidate in found.best:
        degrees = candidate.prediction.layout.degrees
        for axis in ("tensor", "pipeline", "context"):
            assert (f"{axis} for PrefixLM" in candidate.needs) == (getattr(degrees, axis) > 1)


def test_a_pipeline_is_written_as_the_trainer_has_it(run_file, tmp_path):
    out = tmp_path / "best.toml"
    found, _ = plan(run_file, out=str(out), pipeline=2, tensor=1, context=1)
    layout = found.runnable.prediction.layout
    made = config.load(Pretraining, str(out)).training.parallel
    assert layout.degrees.pipeline == 2 and layout.schedule in ("1F1B", "GPipe", "interleaved")
    assert made.pipeline.model_dump() == {
        "ranks": 2,
        "schedule": layout.schedule,
        "chunks": layout.chunks,
    }


ENCODER = {"channels = 1024": 'kind = "Encoder"\nchannels = 1024', "kv_heads = 8\n": ""}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "objective", "fixed", "lacking"),
    [
        (ENCODER, "MaskedLM", {"pipeline": 2, "context": 1}, "pipeline for MaskedLM"),
        (ENCODER, "MaskedLM", {"pipeline": 1, "context": 2}, "context for MaskedLM"),
        (
            {'"bfloat16"': '"float8"'},
            "CausalLM",
            {"tensor": 2, "pipeline": 1, "context": 1},
            "tensor for this kind of model or training",
        ),
        (
            {"[training]\n": "[training]\nfuse_projections = true\n"},
            "CausalLM",
            {"tensor": 2, "pipeline": 1, "context": 1},
            "tensor with fused projections",
        ),
    ],
)
def test_axes_that_what_is_trained_does_not_allow_are_lacking(
    run_file, tmp_path, changes, objective, fixed, lacking
):
    text = f'{RUN}[objective]\nkind = "{objective}"\n'
    for old, new in changes.items():
        text = text.replace(old, new)
    run_file.write_text(text)
    fixed = {"tensor": 1} | fixed
    found, _ = plan(run_file, ClusterWanted("h100", 1), **fixed)
    assert found.runnable is None
    assert all(lacking in candidate.needs for candidate in found.best)
    out = str(tmp_path / "best.toml")
    with pytest.raises(ConfigError, match="no run file"):
        plan(run_file, ClusterWanted("h100", 1), out=out, **fixed)
    free, _ = plan(run_file, ClusterWanted("h100", 1), out=out)
    made = config.load(Pretraining, out)
    assert made.workers == free.runnable.prediction.layout.degrees.devices


def test_a_run_file_that_the_trainer_refuses_is_one_line(run_file, tmp_path, monkeypatch):
    monkeypatch.setattr("trainrig.estimate.layout.layout_search.list_needs", lambda *_: ())
    run_file.write_text(RUN.replace("[batches]", MIXTURE))
    with pytest.raises(ConfigError) as refused:
        plan(run_file, out=str(tmp_path / "best.toml"), expert=2, context=2, tensor=1)
    assert "no run file: parallel.expert needs whole rows" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_rows_are_as_wide_as_the_objective_makes_them(run_file):
    spans = '[objective]\nkind = "SpanCorruption"\njoined = true\n'
    run_file.write_text(RUN.replace("heads = 16", "heads = 16\npositions = 4096") + spans)
    run = config.load(Pretraining, str(run_file))
    subject, notes = build_subject(run, "run")
    assert subject.batch.sequence_length == run.objective.compute_row_length(2048) > 2048  # type: ignore[attr-defined]
    assert f"rows of {subject.batch.sequence_length} positions" in notes[0]


@pytest.mark.slow
def test_copies_of_the_model_are_written_where_bits_may_differ(run_file, tmp_path):
    run_file.write_text(RUN.replace("steps = 1000", "steps = 1000\ndeterministic = false"))
    out = tmp_path / "best.toml"
    found, _ = plan(run_file, out=str(out))
    degrees = found.runnable.prediction.layout.degrees
    made = config.load(Pretraining, str(out)).training.parallel
    kind = "FSDP" if degrees.replicate == 1 else "HSDP" if degrees.shard > 1 else "DDP"
    assert made.kind == kind
    assert all("deterministic = false" not in candidate.needs for candidate in found.best)


@pytest.mark.slow
def test_json_has_every_term(run_file):
    options = ["--layout", str(run_file), "--device", "h100", "--nodes", "2", "--json"]
    done = CliRunner().invoke(app, ["plan", *options])
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    best = found["layouts"][0]
    assert sum(best["seconds"].values()) == pytest.approx(best["step_seconds"])
    assert sum(best["memory"].values()) == pytest.approx(best["memory_bytes"])
    tokens = 64 * 2048
    assert best["tokens_per_second"] == pytest.approx(tokens / best["step_seconds"])
    assert found["cost"]["hours"] == pytest.approx(1000 * best["step_seconds"] / 3600)


def test_a_tensor_group_across_machines_is_allowed_and_priced(run_file):
    run_file.write_text(RUN.replace("kv_heads = 8", "kv_heads = 16"))
    found, lines = plan(run_file, tensor=16)
    price = found.best[0].spans
    assert price is not None and price > 0
    assert any(line.startswith("warning: ") and "across machines" in line for line in lines)
    near, _ = plan(run_file, tensor=8)
    assert near.best[0].spans is None


def test_the_clusters_own_links_are_used_unless_others_are_named(run_file):
    own, _ = plan(run_file, pipeline=1, context=1)
    far = ClusterWanted("h100", 2, interconnect="ethernet-100")
    slow, _ = plan(run_file, far, pipeline=1, context=1)
    assert own.cluster.across == hardware.load().links["efa-3200"]
    assert slow.best[0].prediction.seconds.total > own.best[0].prediction.seconds.total
    assert slow.cluster.across.bandwidth == 12.5e9


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (ClusterWanted("h20", 1), "no device 'h20' in the table of hardware; did you mean 'h200'?"),
        (ClusterWanted("h100", 2, interconnect="efa-320"), "did you mean 'efa-3200'?"),
        (ClusterWanted("h100", 2, interconnect="zz"), "efa-3200, efa-400"),
        (ClusterWanted("l4", 1), "no link of 'l4'"),
        (ClusterWanted("h100", devices=12), "not a whole number of machines of 8; use 8 or 16"),
        (ClusterWanted("h100", 2, 8), "leave out one of the two"),
        (ClusterWanted("h100", 1, instance="p4d.24xlarge"), "has devices 'a100-40gb'"),
    ],
)
def test_clusters_that_cannot_be_are_one_line_with_what_could(wanted, said):
    with pytest.raises(ConfigError) as refused:
        build_cluster(wanted, hardware.load(), 8)
    assert said in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "wanted", "fixed", "said"),
    [
        ("", TWO_NODES, {"tensor": 3}, "tensor = 3 does not divide"),
        ("", TWO_NODES, {"tensor": 8, "pipeline": 3}, "16 is not a multiple of that; use 24"),
        ("", ClusterWanted("h100", 16), {"tensor": 1, "pipeline": 1, "context": 1}, "would work"),
        ("global_batch = 1", ClusterWanted("h100", 4096), {}, "16,384 would work"),
        ("vocabulary", TWO_NODES, {}, "model.vocabulary is not set"),
    ],
)
def test_runs_that_cannot_be_laid_out_so(run_file, change, wanted, fixed, said):
    text = run_file.read_text()
    if change == "vocabulary":
        text = text.replace("vocabulary = 32768\n", "")
    elif change:
        text = text.replace("global_batch = 64", change)
    run_file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        plan(run_file, wanted, **fixed)
    assert said in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.slow
def test_too_few_devices_say_the_smallest_number_that_works(run_file):
    large = RUN.replace("layers = 8", "layers = 16").replace("channels = 1024", "channels = 8192")
    run_file.write_text(large)
    with pytest.raises(ConfigError) as refused:
        plan(run_file, ClusterWanted("h100", devices=2))
    line = str(refused.value)
    assert "no layout fits 2 h100" in line and "GiB at least and has 67.1; " in line
    enough = int(line.partition("has 67.1; ")[2].split()[0])
    found, _ = plan(run_file, ClusterWanted("h100", devices=enough))
    assert found.fitting
    with pytest.raises(ConfigError, match="no layout fits"):
        plan(run_file, ClusterWanted("h100", devices=enough // 2))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plan"], "give a law, such as hoffmann, or the run file of a layout (--layout RUN.toml)"),
        (["plan", "hoffmann", "--layout", "RUN"], "plans an existing run file"),
        (["plan", "--layout", "RUN", "--flops", "1e20"], "`flops` is a key of plans by a law"),
        (["plan", "--layout", "RUN", "--set", "vocabulary=9"], "`vocabulary` is a key of plans"),
        (
            ["plan", "hoffmann", "--flops", "1e20", "--nodes", "2"],
            "--nodes is an option of layouts",
        ),
        (["plan", "--layout", "RUN", "--device", "cpu-core"], "no link of 'cpu-core'"),
    ],
)
def test_options_that_do_not_go_together(run_file, arguments, said, capsys):
    given = [str(run_file) if argument == "RUN" else argument for argument in arguments]
    with pytest.raises(SystemExit) as left, exit_codes():
        app(given, standalone_mode=False)
    assert left.value.code == 2
    assert said in capsys.readouterr().err
