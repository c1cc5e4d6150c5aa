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
from torch.nn import functional

from trainrig import cli
from trainrig.errors import ConfigError, DataError, OutputTaken
from trainrig.posttrain.chat import Message, render
from trainrig.posttrain.sft import ConversationBatches, FineTuning, posttrain, prepare
from trainrig.tokens.batches import IGNORE, BatchSizes
from trainrig.train.checkpoint import open_model
from trainrig.train.elastic import trainer
from trainrig.train.elastic.trainer import run as run_on_ray
from trainrig.train.held_out import HeldOutSettings
from trainrig.train.pretrain import pretrain
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder

PAD = 1
CHATS = [
    (Message("user", f"is the sea grey {n}"), Message("assistant", f"a mirror {'and ' * n}é"))
    for n in range(7)
]
LONG = (Message("user", "x " * 40), Message("assistant", "now"))


def sizes(**changes):
    return BatchSizes(**{"sequence_length": 40, "global_batch": 4, "micro_batch": 2} | changes)


def rows(batches, steps):
    """(sample, ids, targets) of each row, in order."""
    for step in range(steps):
        for micro in batches.at(step):
            yield from zip(micro.samples.tolist(), micro.ids, micro.targets, strict=True)


def conversation_of(ids_T, targets_T, kept):
    """The one of `kept` that a row shows; checks all of the row on the way."""
    for index, rendered in enumerate(kept):
        length = len(rendered.ids) - 1
        if tuple(ids_T[:length]) == rendered.ids[:-1]:
            wanted = np.where(rendered.trained[1:], rendered.ids[1:], IGNORE)
            np.testing.assert_array_equal(targets_T[:length], wanted)
            assert set(ids_T[length:]) <= {PAD} and set(targets_T[length:]) <= {IGNORE}
            return index
    raise AssertionError("a row of no conversation")


def test_every_conversation_comes_once_an_epoch_whole_and_padded(encoder):
    batches = ConversationBatches(CHATS, encoder, sizes(global_batch=7, micro_batch=7))
    kept = [render(each, encoder) for each in CHATS]
    epochs = [
        [conversation_of(ids, targets, kept) for _, ids, targets in rows(batches, 3)][at : at + 7]
        for at in (0, 7, 14)
    ]
    assert [Counter(epoch) for epoch in epochs] == [Counter(range(7))] * 3
    assert epochs[0] != epochs[1]  # each epoch has its own order


def test_batches_are_a_function_of_the_step_and_cut_the_same_samples(encoder):
    by_twos = ConversationBatches(CHATS, encoder, sizes())
    by_fours = ConversationBatches(CHATS, encoder, sizes(micro_batch=4))
    for step in (5, 0, 5):
        (four,) = by_fours.at(step)
        two = by_twos.at(step)
        assert four.samples.tolist() == list(range(4 * step, 4 * step + 4))
        narrow = [row for micro in two for row in zip(micro.ids, micro.targets, strict=True)]
        for row, (ids, targets) in enumerate(narrow):  # each as wide as its own longest
            np.testing.assert_array_equal(four.ids[row, : len(ids)], ids)
            np.testing.assert_array_equal(four.targets[row, : len(ids)], targets)
            assert set(four.targets[row, len(ids) :].tolist()) <= {IGNORE}


def test_a_micro_batch_is_as_wide_as_its_longest_conversation(encoder):
    lengths = [len(render(each, encoder).ids) - 1 for each in CHATS]
    batches = ConversationBatches(CHATS, encoder, sizes(global_batch=7, micro_batch=7))
    assert [micro.ids.shape for micro in batches.at(0)] == [(7, max(lengths))]


def test_the_targets_of_a_step_are_known_before_it_is_read(encoder):
    batches = ConversationBatches(CHATS, encoder, sizes())
    for step in range(5):  # into the third epoch
        assert batches.targets(step) == sum(
            int((micro.targets != IGNORE).sum()) for micro in batches.at(step)
        )


def test_a_row_says_which_conversation_it_is(encoder):
    batches = ConversationBatches(CHATS, encoder, sizes())
    kept = [render(each, encoder) for each in CHATS]
    for micro in (each for step in range(5) for each in batches.at(step)):
        shown = [conversation_of(*row, kept) for row in zip(micro.ids, micro.targets, strict=True)]
        assert micro.pieces.tolist() == [[row, 0, number] for row, number in enumerate(shown)]
        assert not micro.sources.any() and micro.positions is None


def test_another_seed_gives_another_order(encoder):
    orders = [
        [ids.tolist() for _, ids, _ in rows(ConversationBatches(CHATS, encoder, each), 2)]
        for each in (sizes(), sizes(), sizes(seed=1))
    ]
    assert orders[0] == orders[1] != orders[2]


def test_conversations_that_do_not_fit_a_row_are_left_out_and_counted(encoder):
    longest = max(len(render(each, encoder).ids) for each in CHATS)
    exact = ConversationBatches([*CHATS, LONG], encoder, sizes(sequence_length=longest - 1))
    assert (len(exact), exact.too_long) == (7, 1)
    short = ConversationBatches([*CHATS, LONG], encoder, sizes(sequence_length=longest - 2))
    assert (len(short), short.too_long) == (6, 2)


def test_conversations_none_of_which_fits_are_refused(encoder):
    shortest = min(len(render(each, encoder).ids) for each in CHATS)
    message = rf"none of 7 fits sequence_length \(3\); the shortest has {shortest} tokens"
    with pytest.raises(DataError, match=message):
        ConversationBatches(CHATS, encoder, sizes(sequence_length=3))
    with pytest.raises(DataError, match="none of 0 fits"):
        ConversationBatches([], encoder, sizes())


def test_the_fingerprint_is_of_what_is_trained_on(encoder):
    def fingerprint(chats, **changes):
        return ConversationBatches(chats, encoder, sizes(**changes)).fingerprint

    same = [fingerprint(CHATS), fingerprint([*CHATS, LONG]), fingerprint(CHATS, micro_batch=4)]
    assert len(set(same)) == 1
    other = [fingerprint(CHATS[1:]), fingerprint(CHATS[::-1]), fingerprint(CHATS, seed=1)]
    assert len({*same, *other}) == 4


# --- the stage


@pytest.fixture
def run(fresh, tmp_path):
    path = tmp_path / "chats.jsonl"
    lines = [{"messages": [dataclasses.asdict(m) for m in each]} for each in CHATS]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return FineTuning.model_validate(
        {
            "stage": "posttrain",
            "checkpoint": fresh,
            "conversations": str(path),
            "output": str(tmp_path / "tuned"),
            "batches": {"sequence_length": 40, "global_batch": 4, "micro_batch": 2},
            "training": {
                "steps": 15,
                "optimizer": {"kind": "AdamW", "lr": 0.01, "betas": (0.9, 0.99)},
                "schedule": {"kind": "Constant", "warmup": 0},
                "clip_norm": 100.0,
            },
        }
    )


def losses(run):
    return [line["train/loss"] for line in metrics.series(run.output)]


def assistant_nats(model, rendered):
    """(Nats, number) of the ids that the assistant says, each from all that stands before it."""
    ids = torch.tensor(rendered.ids)
    logits = model(ids[None, :-1]).logits[0]
    said = [i for i, trained in enumerate(rendered.trained) if trained]
    picked = torch.stack([logits[i - 1] for i in said])
    return functional.cross_entropy(picked, ids[said], reduction="sum"), len(said)


def order_of(batches, steps, kept):
    return [conversation_of(ids, targets, kept) for _, ids, targets in rows(batches, steps)]


def test_the_loss_is_that_of_the_assistants_words_by_the_plain_sum(without_ray, run, encoder):
    """Fine-tuning, against a loop that takes one unpadded conversation at a time."""
    posttrain(run)
    kept = [render(each, encoder) for each in CHATS]
    order = order_of(ConversationBatches(CHATS, encoder, run.batches), 15, kept)
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
    for step in range(15):
        pairs = [assistant_nats(model, kept[i]) for i in order[4 * step : 4 * step + 4]]
        loss = sum(nats for nats, _ in pairs) / sum(count for _, count in pairs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert losses(run) == pytest.approx(expected, rel=1e-4)
    tokens = [line["train/tokens"] for line in metrics.series(run.output)]
    job, _, _ = prepare(run)
    assert tokens[0] == job.make_batches().targets(0)
    assert tokens[0] == sum(sum(kept[i].trained) for i in order[:4])


def test_two_ranks_fine_tune_as_one_does_to_the_last_bit(without_ray, run, tmp_path):
    posttrain(run)
    pair = run.model_copy(update={"output": str(tmp_path / "by-two"), "workers": 2})
    posttrain(pair)
    assert losses(pair) == losses(run)
    weights = [open_model(each.output).weights for each in (run, pair)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_rows_that_are_no_conversations_are_set_aside_with_place_and_reason(
    without_ray, run, caplog, capsys
):
    with Path(run.conversations).open("a") as file:
        file.write('{"prompt": "a", "completion": 1}\n')
    manifest = posttrain(run)
    assert (manifest.counts["conversations"], manifest.counts["conversations_refused"]) == (7, 1)
    (line,) = Path(run.output, "quarantine", "conversations.jsonl").read_text().splitlines()
    reason = "content is int, not text"
    assert json.loads(line) == {"file": run.conversations, "line": 8, "reason": reason}
    assert f"1 of 8 rows set aside in {run.output}" in caplog.text
    assert open_model(run.output).tuned is True
    assert asked(run.output, capsys).err == ""


def asked(folder, capsys):
    """What `generate --chat` prints; it goes on whatever the model has learnt."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli.main(["generate", folder, "--chat", "--prompt", "sea?", "--tokens", "2"])
    assert ended.value.code == 0
    return capsys.readouterr()


def test_who_asks_an_untuned_model_is_told_that_it_is_none(without_ray, make_run, tmp_path, capsys):
    pretrained = make_run(tmp_path / "pretrained", training={"steps": 3})
    pretrain(pretrained)
    said = asked(pretrained.output, capsys).err
    assert said.startswith(f"trainrig: {pretrained.output}: not tuned on conversations, so expect")
    assert said.count("\n") == 1


def test_a_finished_run_names_its_inputs_and_is_not_made_again(without_ray, run, monkeypatch):
    manifest = posttrain(run)
    _, inputs, _ = prepare(run)
    assert manifest.inputs == inputs and set(inputs) == {"checkpoint", "conversations"}
    assert manifest.counts["checkpoint"] == "checkpoints/step_00000015/attempt-0001"
    monkeypatch.setattr(trainer, "run", None)
    monkeypatch.setattr(trainer, "check_fit", lambda workers: None)
    assert posttrain(run) == manifest
    with Path(run.conversations).open("a") as file:
        file.write('{"prompt": "a", "completion": "b"}\n')
    with pytest.raises(OutputTaken, match="input `conversations` has other contents"):
        posttrain(run)


def test_conversations_that_change_after_the_run_began_end_it(run):
    job, _, _ = prepare(run)
    with Path(run.conversations).open("a") as file:
        file.write('{"prompt": "a", "completion": "b"}\n')
    with pytest.raises(DataError, match="holds other conversations than when the run began"):
        job.make_batches()


def test_rows_longer_than_the_model_can_read_are_refused(run):
    longer = run.batches.model_copy(update={"sequence_length": 49})
    with pytest.raises(ConfigError, match=r"batches: sequence_length \(49 tokens\) is beyond"):
        posttrain(run.model_copy(update={"batches": longer}))


def test_a_checkpoint_that_is_not_there_is_refused(run, tmp_path):
    with pytest.raises(DataError, match="nowhere: no whole checkpoint there"):
        posttrain(run.model_copy(update={"checkpoint": str(tmp_path / "nowhere")}))


@dataclasses.dataclass(frozen=True)
class Deadly:
    """Batches of a run whose last rank dies at `step`, once: when a checkpoint is whole."""

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
        return self.make.micro_batch(step, index)


@pytest.fixture
def ray_of_two():
    """A Ray whose workers get what is defined here by value."""
    from trainrig.ray_runtime.ray_session import connect

    connect(2, "workers")
    import ray
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    ray.shutdown()


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
    assert [attempt.resumed_step for attempt in RunFolder(job.folder).attempts()] == [0, 5]
    assert outcome.restarts == 1
    assert losses(pair) == losses(run)
    assert losses(run)[-1] < 0.5 * losses(run)[0]
    weights = [open_model(each.output).weights for each in (run, pair)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert open_model(pair.output).step == 15


def test_held_out_conversations_are_measured_as_the_run_goes_on(
    run, without_ray, encoder, tmp_path
):
    path = tmp_path / "held-out.jsonl"
    lines = [{"messages": [dataclasses.asdict(m) for m in each]} for each in (LONG, *CHATS[:3])]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    training = run.training.model_copy(update={"held_out": HeldOutSettings(every=10, rows=3)})
    posttrain(run.model_copy(update={"held_out_conversations": str(path), "training": training}))
    measured = metrics.held_out_series(run.output)
    assert [line["step"] for line in measured] == [10, 15]
    # Of its first three conversations, the one that is too long for a row is left out.
    model = open_model(run.output).build()
    nats = targets = 0
    for chat in CHATS[:2]:
        rendered = render(chat, encoder)
        logits = model(torch.tensor([rendered.ids[:-1]])).logits[0].detach()
        each = functional.cross_entropy(logits, torch.tensor(rendered.ids[1:]), reduction="none")
        nats += float(each[torch.tensor(rendered.trained[1:])].sum())
        targets += sum(rendered.trained[1:])
    assert measured[-1]["eval/conversations/loss"] == pytest.approx(nats / targets, rel=1e-5)
    assert measured[-1]["eval/loss"] == measured[-1]["eval/conversations/loss"]


def test_held_out_conversations_that_are_not_there_are_refused(run, tmp_path):
    missing = str(tmp_path / "missing.jsonl")
    with pytest.raises(DataError, match=r"missing\.jsonl"):
        posttrain(run.model_copy(update={"held_out_conversations": missing}))
    assert not Path(run.output).exists()
