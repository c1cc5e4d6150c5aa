"""The output of `check` about a run before it starts."""

from pathlib import Path

import pytest

from trainrig import hardware
from trainrig.check import describe
from trainrig.config import build
from trainrig.corpus.curate import Curation
from trainrig.corpus.curation_settings import CurationSource
from trainrig.errors import ClusterError, ConfigError
from trainrig.estimate.cost_estimate import DeviceChoice
from trainrig.flops import count_token_flops
from trainrig.models.decoder import Decoder, DecoderConfig
from trainrig.parallel.axes.axis_settings import Gathered
from trainrig.parallel.layout import FSDP
from trainrig.parallel.precision import Precision
from trainrig.parallel.recompute import Budget, Full
from trainrig.parallel.sharding.sum_tree import SumPlan
from trainrig.posttrain.tuning.conversation_batches import ConversationBatching
from trainrig.posttrain.tuning.fine_tuning import FineTuning
from trainrig.tokens.rows.batch_stages import BatchSettings, BatchStage
from trainrig.train.checkpoint import write_model
from trainrig.train.run_file.run_files import Pretraining
from trainrig.train.run_file.training_settings import Training

SIZES = {"layers": 2, "channels": 32, "heads": 4, "kv_heads": 2, "positions": 48}
BATCHES = BatchSettings(sequence_length=32, global_batch=8, micro_batch=2)


def write_pretraining(tokens: Path, **sizes: int) -> Pretraining:
    return Pretraining(
        tokens=str(tokens),
        output="never/written",
        model=DecoderConfig(**SIZES | sizes),
        batches=BATCHES,
        training=Training(steps=5),
    )


def test_a_curation_tells_which_pairs_its_bands_bring_together() -> None:
    source = {"name": "web", "paths": ["x"]}
    near = {"threshold": 0.8, "bands": 9, "rows": 13, "permutations": 128, "recall": 0.4}
    table = {"stage": "curate", "output": "o", "sources": [source], "near_duplicates": near}
    facts = describe(build(Curation, table, "run.toml"))
    assert (facts["near_duplicates.bands"], facts["near_duplicates.rows"]) == (9, 13)
    # 1 - (1 - .8^13)^9: datasketch's choice for .8 would find two pairs in five
    assert facts["compared at similarity 0.8"] == 0.3988


def test_without_tokens_the_parameters_are_known_if_the_vocabulary_is(tmp_path: Path) -> None:
    exact = sum(p.numel() for p in Decoder(DecoderConfig(**SIZES, vocabulary=320)).parameters())
    facts = describe(write_pretraining(tmp_path / "tokens", vocabulary=320))
    assert facts["parameters"] == exact
    assert facts["parameters_of_embedding"] == 320 * 32
    assert facts["positions"] == 5 * 8 * 32


@pytest.mark.parametrize("micro_batches", [3, 4, 7])
def test_ranks_that_share_micro_batches_are_checked_for_any_number(
    micro_batches: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = BATCHES.model_copy(update={"global_batch": 2 * micro_batches})
    layout = FSDP(context=Gathered(ranks=2))
    training = Training(steps=5, parallel=layout)
    changes = {"batches": batches, "training": training, "workers": (2, 8)}
    run = write_pretraining(tmp_path / "tokens", vocabulary=320).model_copy(update=changes)
    assert describe(run)["parameters"]
    # A tree that mixes parts sums correctly only at powers of two.
    monkeypatch.setattr(SumPlan, "tree", property(lambda plan: (2 * plan.micro_batches,) * 2))
    if micro_batches == 4:
        assert describe(run)["parameters"]
        return
    with pytest.raises(ConfigError, match=f"{micro_batches} micro-batches over 2 workers do not"):
        describe(run)


def test_time_and_cost_follow_from_operations_and_the_device_table(tmp_path: Path) -> None:
    run = write_pretraining(tmp_path / "tokens", vocabulary=320)
    facts = describe(run, DeviceChoice(device="h100", utilisation=0.5))
    flops = count_token_flops(DecoderConfig(**SIZES, vocabulary=320), 32).training
    assert facts["flops"] == flops * 5 * 8 * 32
    assert facts["hours"] == pytest.approx(facts["flops"] / 989e12 / 0.5 / 3600)
    assert facts["compute"] == "bfloat16"
    assert facts["usd"] == pytest.approx(facts["hours"] * 55.04)
    assert facts["device"] == "h100 x 1, at 50% of the peak"
    assert 0 < facts["memory_per_device_gib"] < 0.1
    whole = run.training.model_copy(update={"precision": Precision(compute="float32")})
    facts = describe(run.model_copy(update={"training": whole}), DeviceChoice(device="h100"))
    assert facts["compute"] == "float32"


def test_check_reports_a_device_too_small_for_a_step(tmp_path: Path) -> None:
    """7 billion parameters have float32 weights, gradients and AdamW's two moments here."""
    table = {
        "stage": "pretrain",
        "tokens": str(tmp_path / "tokens"),
        "output": "o",
        "model": {"preset": "llama-2-7b"},
        "batches": {"global_batch": 8, "micro_batch": 1, "sequence_length": 2048},
        "training": {"steps": 5},
    }
    facts = describe(build(Pretraining, table, "run.toml"), DeviceChoice(device="h100"))
    needed = facts["memory_per_device_gib"]
    assert needed > 16 * 6.7e9 / 2**30
    said = facts["too_little_memory"]
    assert said.startswith(f"this run needs {needed:.1f} GiB, but h100 has 74.5 GiB, ")
    assert "; try parallel.reshard = 'layer', parallel.reduce = 'micro_batch', recompute" in said
    assert "offload.optimizer, " in said
    few = build(Pretraining, table | {"workers": 8}, "run.toml")
    assert "too_little_memory" not in describe(few, DeviceChoice(device="h100"))


def test_a_budget_of_what_layers_keep_is_in_the_memory_that_check_says(tmp_path: Path) -> None:
    run = write_pretraining(tmp_path / "tokens", vocabulary=320)
    h100 = DeviceChoice(device="h100")
    found = []
    for recompute in (None, Budget(gib=2e-4), Full()):
        training = run.training.model_copy(update={"recompute": recompute})
        found.append(describe(run.model_copy(update={"training": training}), h100))
    everything, within, _ = found
    assert within["layers_that_keep"] == "1 all, 1 the outputs of products"
    assert "layers_that_keep" not in everything
    memory = [row["memory_per_device_gib"] for row in found]
    assert memory[0] >= memory[1] >= memory[2]
    training = run.training.model_copy(update={"recompute": Budget(gib=1e-9)})
    with pytest.raises(ConfigError, match=r"below.*GiB.*inputs of 2 layers"):
        describe(run.model_copy(update={"training": training}), h100)


def test_each_stage_is_estimated_at_its_own_length(tmp_path: Path) -> None:
    run = write_pretraining(tmp_path / "tokens", vocabulary=320)
    model = DecoderConfig(**SIZES, vocabulary=320)
    stages = (BatchStage(from_step=2, sequence_length=16), BatchStage(from_step=9, global_batch=2))
    staged = run.batches.model_copy(update={"stages": stages})
    facts = describe(run.model_copy(update={"batches": staged}))
    rows = (
        2 * 8 * 32 * count_token_flops(model, 32).training
        + 3 * 8 * 16 * count_token_flops(model, 16).training
    )
    assert facts["flops"] == rows


def test_an_unknown_device_gets_the_nearest(tmp_path: Path) -> None:
    run = write_pretraining(tmp_path / "tokens", vocabulary=320)
    with pytest.raises(ConfigError, match=r"no device 'h101'.*did you mean"):
        describe(run, DeviceChoice(device="h101"))
    with pytest.raises(ConfigError, match=r"above 0 and.*1"):
        describe(run, DeviceChoice(utilisation=40))


def test_tokens_are_counted_over_stages(tmp_path: Path) -> None:
    stages = (BatchStage(from_step=2, sequence_length=16), BatchStage(from_step=4, global_batch=2))
    run = write_pretraining(tmp_path / "tokens", vocabulary=320)
    staged = run.batches.model_copy(update={"stages": stages})
    facts = describe(run.model_copy(update={"batches": staged}))
    assert facts["positions"] == 2 * 8 * 32 + 2 * 8 * 16 + 1 * 2 * 16


def test_a_stage_longer_than_the_model_can_read_is_refused(tmp_path: Path) -> None:
    longer = {"sequence_length": 32, "stages": [{"from_step": 2, "sequence_length": 64}]}
    table = {
        "stage": "pretrain",
        "tokens": "t",
        "output": "o",
        "model": SIZES,
        "batches": {"global_batch": 8, "micro_batch": 2} | longer,
        "training": {"steps": 5},
    }
    with pytest.raises(ConfigError, match=r"length \(64 tokens\) is beyond the model's 48"):
        build(Pretraining, table, "run.toml")


def test_a_bucket_that_refuses_this_machine_leaves_what_the_run_file_determines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> bool:
        raise ClusterError(f"{path}: this machine has no credentials")

    run = write_pretraining(tmp_path, vocabulary=512)
    wanted = describe(run, DeviceChoice("h100"))
    monkeypatch.setattr("trainrig.storage.exists", refuse)
    assert describe(run, DeviceChoice("h100")) == wanted
    assert wanted["hours"] > 0


def test_without_either_it_says_what_is_missing(tmp_path: Path) -> None:
    facts = describe(write_pretraining(tmp_path / "tokens"))
    assert facts == {
        "positions": 5 * 8 * 32,
        "parameters": f"unknown until {tmp_path}/tokens/tokenizer.json exists or "
        "model.vocabulary is set",
    }


def test_a_checkpoint_to_start_from_tells_the_size_and_refuses_what_is_too_long(
    tmp_path: Path,
) -> None:
    lessons = tmp_path / "lessons.jsonl"
    lessons.write_text("")
    missing = write_tuning(tmp_path / "none", lessons, 32)
    assert describe(missing) == {}
    sizes = DecoderConfig(**SIZES, vocabulary=320)
    folder = tmp_path / "model"
    write_model(str(folder), sizes, "{}", Decoder(sizes).state_dict())
    with pytest.raises(ConfigError, match="beyond the model's 48 positions"):
        describe(write_tuning(folder, lessons, 49))


def write_tuning(checkpoint: Path, lessons: Path, sequence_length: int) -> FineTuning:
    return FineTuning(
        checkpoint=str(checkpoint),
        conversations=str(lessons),
        output="never/written",
        batches=ConversationBatching(
            sequence_length=sequence_length, global_batch=1, micro_batch=1
        ),
        training=Training(steps=5),
    )


def test_a_stage_that_trains_nothing_has_no_sizes() -> None:
    source = CurationSource(name="web", paths=("none.warc.gz",))
    assert "parameters" not in describe(Curation(output="never/written", sources=(source,)))


@pytest.mark.parametrize(("flags", "slower"), [("avx2", True), ("avx2 avx512_bf16", False)])
def test_bfloat16_is_estimated_by_the_support_of_this_cpu(
    flags: str, slower: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(f"flags\t\t: {flags}\n")
    monkeypatch.setattr(hardware, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(hardware, "GPU_INFO", tmp_path / "gpus")
    monkeypatch.setenv("PATH", str(tmp_path))  # no nvidia-smi
    run = write_pretraining(tmp_path / "tokens", vocabulary=320)
    narrow = run.training.model_copy(update={"precision": Precision(compute="bfloat16")})
    plain = describe(run)
    in_bfloat16 = describe(run.model_copy(update={"training": narrow}))
    assert (in_bfloat16["hours"] > 5 * plain["hours"]) == slower
    assert ("no hardware for bfloat16" in in_bfloat16.get("warning", "")) == slower
    assert "warning" not in plain
