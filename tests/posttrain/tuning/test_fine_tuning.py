"""Fine-tuning on packed conversations."""

import dataclasses
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from support.tuning_fixtures import build_tuning
from torch.nn import functional

from trainrig import cli, manifest
from trainrig.errors import ConfigError, DataError, OutputTaken
from trainrig.models.huggingface import HubFolder
from trainrig.objectives.objective_interface import DeviceBatch
from trainrig.objectives.objective_kinds import SFT
from trainrig.posttrain.huggingface.model_folders import export_checkpoint
from trainrig.posttrain.tuning.conversation_batches import ConversationBatching, PretrainingShare
from trainrig.posttrain.tuning.fine_tuning import FineTuning, open_conversations, posttrain, prepare
from trainrig.tokens.batches import IGNORE, TOKENS, WEIGHTS
from trainrig.tokens.shards.token_shards import TokenShards
from trainrig.train.checkpoint import open_model
from trainrig.train.elastic import trainer
from trainrig.train.elastic.trainer import run as run_on_ray
from trainrig.train.held_out_loss import HeldOutSettings
from trainrig.train.pretrain import pretrain
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder

PAD = 1
LENGTH = 47
ROWS = [
    {"prompt": f"is {n} {'or ' * (n % 5)}", "completion": f"yes {'and ' * (n % 3)}é"}
    for n in range(11)
]


@pytest.fixture
def folder(encode_rows, tmp_path):
    encode_rows(ROWS, sequence_length=LENGTH)
    return str(tmp_path / "encoded")


def list_sizes(**changes):
    given = {"sequence_length": LENGTH, "global_batch": 2, "micro_batch": 1} | changes
    return ConversationBatching(**given)


def list_documents(folder):
    """Return (ids, weights) of each conversation, by its number."""
    shards = TokenShards.open(f"{folder}/train")
    found = []
    for number in range(shards.count_documents("chats")):
        begin, end = shards.find_document_starts("chats", np.array([number, number + 1])).tolist()
        weights = np.empty(end - begin, dtype=np.int64)
        shards.read_weights("chats", begin, weights)
        found.append((shards.read_window("chats", begin, end - begin).astype(np.int64), weights))
    return found


def compute_nats(model, ids, weights):
    """Return (sum of weighted nats, sum of weights) of one conversation alone."""
    logits = model(torch.from_numpy(ids)[None, :-1]).logits[0]
    nats = functional.cross_entropy(logits, torch.from_numpy(ids)[1:], reduction="none")
    weights = torch.from_numpy(weights)[1:]
    return (nats * weights).sum(), int(weights.sum())


def test_every_conversation_comes_once_an_epoch_whole(folder):
    batches = open_conversations(folder, list_sizes(), PAD)
    rows = batches._layout.windows("chats")
    assert 1 < rows < len(ROWS)  # several share a row
    wanted = list_documents(folder)
    for epoch in range(2):
        seen = Counter()
        for sample in range(epoch * rows, (epoch + 1) * rows):
            micro = batches.micro_batch(*divmod(sample, 2))
            ends = [*micro.pieces[1:, 1].tolist(), LENGTH]
            for (_, place, number), end in zip(micro.pieces.tolist(), ends, strict=True):
                ids, weights = wanted[number]
                shown = min(len(ids), end - place)
                np.testing.assert_array_equal(micro.ids[0, place : place + shown], ids[:shown])
                assert micro.positions[0, place] == 0
                taught = np.flatnonzero(weights)
                np.testing.assert_array_equal(micro.targets[0, place + taught - 1], ids[taught])
                seen[number] += 1
        assert seen == Counter(range(len(ROWS)))


def test_targets_and_weights_are_known_before_a_step_is_read(folder):
    for packing in ("best_fit", "none"):
        batches = open_conversations(folder, list_sizes(packing=packing), PAD)
        for step in range(5):
            micros = batches.at(step)
            told = batches.denominators(step)
            assert told[TOKENS] == sum(int((m.targets != IGNORE).sum()) for m in micros)
            assert told[WEIGHTS] == sum(int(m.arrays[WEIGHTS].sum()) for m in micros)


def test_packed_rows_have_the_loss_and_gradients_of_conversations_alone(folder, fresh):
    model = open_model(fresh).build().train()
    batches = open_conversations(folder, list_sizes(global_batch=4, micro_batch=4), PAD)
    (micro,) = batches.at(0)
    assert len(micro.pieces) > 4
    device = torch.device("cpu")
    computed = SFT().compute(model, DeviceBatch.copy(micro, device), {})
    packed = computed.terms["cross_entropy"].values.sum() / batches.denominators(0)[WEIGHTS]
    packed.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    wanted = list_documents(folder)
    alone = [compute_nats(model, *wanted[number]) for number in micro.pieces[:, 2].tolist()]
    loss = sum(nats for nats, _ in alone) / sum(weight for _, weight in alone)
    loss.backward()
    assert packed.item() == pytest.approx(loss.item(), rel=1e-6)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-7)


def test_another_seed_gives_another_order_and_the_step_is_all_that_counts(folder):
    def numbers(**changes):
        batches = open_conversations(folder, list_sizes(**changes), PAD)
        return [m.pieces[:, 2].tolist() for step in (3, 0, 3) for m in batches.at(step)]

    first = numbers()
    assert first[:2] == first[-2:] and first == numbers() and first != numbers(seed=1)


def test_text_of_pretraining_has_its_share_and_no_document_tells_another(folder, tokens):
    share = PretrainingShare(tokens=tokens, share=0.5)
    batches = open_conversations(folder, list_sizes(), PAD, None, share)
    micros = [micro for step in range(20) for micro in batches.at(step)]
    kinds = Counter(batches.sources[int(m.sources[0])] for m in micros)
    assert kinds["chats"] == 20 and set(kinds) == {"chats", "books", "web"}
    for step in range(4):
        told = batches.denominators(step)
        of_step = batches.at(step)
        assert told[TOKENS] == sum(int((m.targets != IGNORE).sum()) for m in of_step)
        assert told[WEIGHTS] == sum(int(m.arrays[WEIGHTS].sum()) for m in of_step)
    for micro in micros:
        begun = np.flatnonzero(micro.positions[0] == 0)
        assert (micro.targets[0, begun[begun > 0] - 1] == IGNORE).all()


def test_messages_count_by_their_weight(encode_rows, fresh, tmp_path):
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "is it", "weight": 0.25},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "now", "weight": 2},
    ]
    encode_rows([{"messages": turns}], sequence_length=LENGTH)
    folder = str(tmp_path / "encoded")
    ((ids, weights),) = list_documents(folder)
    assert set(weights.tolist()) == {0, 25, 200}
    batches = open_conversations(folder, list_sizes(global_batch=1), PAD)
    (micro,) = batches.at(0)
    model = open_model(fresh).build()
    found = SFT().compute(model, DeviceBatch.copy(micro, torch.device("cpu")), {})
    nats, weight = compute_nats(model, ids, weights)
    assert batches.denominators(0)[WEIGHTS] == weight
    sums = found.terms["cross_entropy"]
    assert sums.values.sum().item() == pytest.approx(nats.item(), rel=1e-5)
    assert sums.counts_B.tolist() == [weight]


@pytest.mark.parametrize("array", ["bin", "weights"])
def test_one_bit_of_a_conversation_that_flips_is_found_and_its_file_named(folder, array):
    batches = open_conversations(folder, list_sizes(), PAD)
    batches.at(0)
    (path,) = Path(folder, "train").glob(f"*.{array}")
    with path.open("r+b") as file:  # written in place: memory maps see the change
        first = file.read(1)
        file.seek(0)
        file.write(bytes([first[0] ^ 1]))
    with pytest.raises(DataError, match=rf"^{path}: damaged: block 0 \(bytes 0 to"):
        for step in range(6):
            batches.at(step)


def test_noise_is_a_function_of_the_sample_and_no_part_of_evaluation(folder, fresh):
    model = open_model(fresh).build()
    batches = open_conversations(folder, list_sizes(global_batch=4, micro_batch=4), PAD)
    whole = DeviceBatch.copy(batches.micro_batch(0, 0), torch.device("cpu"))
    halves = open_conversations(folder, list_sizes(global_batch=4, micro_batch=2), PAD)
    parts = [DeviceBatch.copy(halves.micro_batch(0, i), torch.device("cpu")) for i in (0, 1)]

    def nats(objective, batch):
        return objective.compute(model, batch, {}).terms["cross_entropy"].sum_rows_B()

    noisy = SFT(noise=5.0)
    plain = SFT()
    found = nats(noisy, whole)
    assert not torch.allclose(found, nats(plain, whole))
    torch.testing.assert_close(found, torch.cat([nats(noisy, part) for part in parts]))
    assert not torch.equal(found, nats(SFT(noise=5.0, noise_seed=1), whole))
    with torch.no_grad():
        assert torch.equal(nats(noisy, whole), nats(plain, whole))


# --- the stage


@pytest.fixture
def run(fresh, folder, tmp_path):
    training = {
        "steps": 10,
        "optimizer": {"kind": "AdamW", "lr": 0.01, "betas": (0.9, 0.99)},
        "schedule": {"kind": "Constant", "warmup": 0},
        "clip_norm": 100.0,
    }
    batches = {"sequence_length": LENGTH, "global_batch": 4, "micro_batch": 2}
    return build_tuning(fresh, folder, tmp_path / "tuned", None, training, batches=batches)


def read_losses(run):
    return [line["train/loss"] for line in metrics.read_series(run.output)]


@pytest.mark.slow
def test_the_loss_is_that_of_the_answers_by_the_plain_sum(without_ray, run, folder):
    """Compare fine-tuning with a loop that takes one conversation at a time."""
    posttrain(run)
    batches = open_conversations(folder, run.batches, PAD)
    wanted = list_documents(folder)
    model = open_model(run.checkpoint).build().train()
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
        ],
        lr=0.01,
        betas=(0.9, 0.99),
    )
    expected = []
    for step in range(10):
        numbers = [n for m in batches.at(step) for n in m.pieces[:, 2].tolist()]
        pairs = [compute_nats(model, *wanted[number]) for number in numbers]
        loss = sum(nats for nats, _ in pairs) / sum(weight for _, weight in pairs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert read_losses(run) == pytest.approx(expected, rel=1e-4)
    assert open_model(run.output).tuned is True


@pytest.mark.slow
def test_two_ranks_fine_tune_as_one_does_to_the_last_bit(without_ray, run, tmp_path):
    run = run.model_copy(update={"objective": SFT(noise=5.0)})
    posttrain(run)
    pair = run.model_copy(update={"output": str(tmp_path / "by-two"), "workers": 2})
    posttrain(pair)
    assert read_losses(pair) == read_losses(run)
    weights = [open_model(tuned.output).weights for tuned in (run, pair)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def chat_with(folder, capsys):
    """Return the output of `generate --chat`, which runs whatever the model has learnt."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli.main(["generate", folder, "--chat", "--prompt", "sea?", "--tokens", "2"])
    assert ended.value.code == 0
    return capsys.readouterr()


def test_chat_with_an_untuned_model_is_an_error(without_ray, make_run, tmp_path, capsys):
    pretrained = make_run(tmp_path / "pretrained", training={"steps": 3})
    pretrain(pretrained)
    said = chat_with(pretrained.output, capsys).err
    assert said.startswith(
        f"trainrig: {pretrained.output}: the model is not fine-tuned on conversations"
    )
    assert said.count("\n") == 1


@pytest.mark.slow
def test_a_finished_run_names_its_inputs_and_is_not_made_again(
    without_ray, run, monkeypatch, encode_rows
):
    made = posttrain(run)
    assert set(made.inputs) == {"checkpoint", "conversations"}
    monkeypatch.setattr(trainer, "run", None)
    monkeypatch.setattr(trainer, "check_fit", lambda workers: None)
    assert posttrain(run) == made
    encode_rows(ROWS[1:], output="others", sequence_length=LENGTH)
    others = run.conversations.replace("encoded", "others")
    with pytest.raises(OutputTaken, match="input `conversations` has other contents"):
        posttrain(run.model_copy(update={"conversations": others}))


@pytest.mark.slow
def test_a_run_starts_from_a_folder_of_hugging_face(without_ray, run, fresh, tmp_path):
    hub = str(tmp_path / "hub")
    export_checkpoint(fresh, hub, HubFolder())
    posttrain(run)
    started = run.model_copy(update={"checkpoint": hub, "output": str(tmp_path / "from-hub")})
    posttrain(started)
    assert read_losses(started) == read_losses(run)


def test_rows_longer_than_the_model_can_read_are_refused(run):
    longer = run.batches.model_copy(update={"sequence_length": 49})
    with pytest.raises(ConfigError, match=r"batches: sequence_length \(49 tokens\) is beyond"):
        posttrain(run.model_copy(update={"batches": longer}))


def test_rows_of_another_length_need_another_plan(run):
    shorter = run.batches.model_copy(update={"sequence_length": 40})
    with pytest.raises(ConfigError, match=r"run `conversations` with sequence_length = 40"):
        posttrain(run.model_copy(update={"batches": shorter}))


def test_a_checkpoint_or_conversations_that_are_not_there_are_refused(run, tmp_path):
    with pytest.raises(DataError, match="nowhere: no such folder"):
        posttrain(run.model_copy(update={"checkpoint": str(tmp_path / "nowhere")}))
    with pytest.raises(DataError, match="nothing"):
        posttrain(run.model_copy(update={"conversations": str(tmp_path / "nothing")}))
    assert not Path(run.output).exists()


@pytest.mark.slow
def test_held_out_conversations_are_measured_during_the_run(
    run, without_ray, encode_rows, tmp_path
):
    encode_rows(ROWS, output="split", sequence_length=LENGTH, held_out=0.4)
    folder = str(tmp_path / "split")
    count = manifest.read_input(folder, "conversations").counts["held_out_conversations"]
    assert 0 < count < len(ROWS)
    training = run.training.model_copy(update={"held_out": HeldOutSettings(every=5, rows=100)})
    posttrain(run.model_copy(update={"conversations": folder, "training": training}))
    measured = metrics.read_held_out_series(run.output)
    assert [line["step"] for line in measured] == [5, 10]
    model = open_model(run.output).build()
    shards = TokenShards.open(f"{folder}/held_out")
    nats = weight = 0
    for number in range(count):
        begin, end = shards.find_document_starts("chats", np.array([number, number + 1])).tolist()
        weights = np.empty(end - begin, dtype=np.int64)
        shards.read_weights("chats", begin, weights)
        ids = shards.read_window("chats", begin, end - begin).astype(np.int64)
        with torch.no_grad():
            loss, of = compute_nats(model, ids, weights)
        nats = nats + loss.item()
        weight = weight + of
    assert measured[-1]["eval/chats/loss"] == pytest.approx(nats / weight, rel=1e-5)


@dataclasses.dataclass(frozen=True)
class Deadly:
    """Batches of a run whose last rank dies once at `step`, after a complete checkpoint."""

    make: Callable
    step: int
    checkpoints: Path
    marker: Path

    def __call__(self):
        return dataclasses.replace(self, make=self.make())

    def __getattr__(self, name):
        if name.startswith("__") or name == "make":
            raise AttributeError(name)
        return getattr(self.make, name)

    def micro_batch(self, step, index):
        last = dist.get_rank() == dist.get_world_size() - 1
        if step == self.step and last and not self.marker.exists():
            until = time.monotonic() + 60
            while not any(self.checkpoints.rglob("manifest.json")) and time.monotonic() < until:
                time.sleep(0.01)
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.make.micro_batch(step, index)  # type: ignore[attr-defined]


@pytest.fixture
def ray_of_two(local_ray):
    """Start a Ray whose workers get this module's definitions by value."""
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.mark.ray
@pytest.mark.slow
def test_fine_tuning_on_ray_that_loses_a_worker_ends_as_one_rank_that_does_not(
    without_ray, ray_of_two, run, tmp_path
):
    training = run.training.model_dump() | {"prefetch_steps": 0, "checkpoints": {"every": 5}}
    run = FineTuning.model_validate(run.model_dump() | {"training": training})
    posttrain(run)
    pair = run.model_copy(update={"output": str(tmp_path / "by-two"), "workers": 2})
    job, _, _ = prepare(pair)
    Path(pair.output).mkdir()
    places = (Path(pair.output) / "checkpoints", tmp_path / "died")
    job = dataclasses.replace(job, make_batches=Deadly(job.make_batches, 7, *places))
    outcome = run_on_ray(job, 2)
    assert [attempt.resumed_step for attempt in RunFolder(job.folder).read_attempts()] == [0, 5]
    assert outcome.restarts == 1
    assert read_losses(pair) == read_losses(run)
    weights = [open_model(tuned.output).weights for tuned in (run, pair)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert open_model(pair.output).step == 10


@pytest.mark.slow
def test_the_manifest_counts_what_was_trained_on(without_ray, run):
    made = posttrain(run)
    assert made.counts["conversations"] == len(ROWS)
    assert json.loads(json.dumps(made.counts))["steps"] == 10
