"""Tiny Shakespeare at nanoGPT's setting for a CPU: held-out loss and time of a run.

The peer is nanoGPT's architecture in nanoGPT's training loop.

Setting: README of github.com/karpathy/nanoGPT, "I only have a macbook": 4 layers, 4 heads, 128
channels, 64 positions, 12 rows, 2,000 steps, no dropout. It names a held-out loss of 1.88. Its
vocabulary is 65 characters, trainrig's is bytes. The text is ASCII, so a token is a character in
both.
"""

import itertools
import json
import math
import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from support import peers

from trainrig.models.decoder import DecoderConfig
from trainrig.parallel import numerics
from trainrig.tokens.document_set import is_held_out
from trainrig.tokens.prepare import Tokenization, tokenize
from trainrig.tokens.tokenizer import TokenizerTraining, make_tokenizer
from trainrig.tokens.tokenizers.tokenizer_kinds import ByteLevelBPE
from trainrig.train.loop import train
from trainrig.train.pretrain import prepare
from trainrig.train.run import metrics
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run_file.run_files import Pretraining

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7200)]
SEEDS = (0, 1, 2)
STEPS = 2000
ROWS = 12
LENGTH = 64
FEWER = 1000  # steps in which trainrig reaches the published loss
RATE = 1e-3
LEAST_RATE = 1e-4
WARMUP = 100
PUBLISHED = 1.88  # nats a character, held out
MODEL = {"layers": 4, "channels": 128, "heads": 4, "positions": LENGTH}


@pytest.fixture(scope="module")
def parts(test_data):
    """Return the training text and the held-out text, split as nanoGPT splits them."""
    text = (test_data / "sets" / "tinyshakespeare.txt").read_text()
    cut = int(len(text) * 0.9)
    return text[:cut], text[cut:]


@pytest.fixture(scope="module")
def tokens(parts, tmp_path_factory):
    """Write shards of the two texts: one document each, one token per character."""
    base = tmp_path_factory.mktemp("shakespeare")
    share = 0.1
    urls = [
        next(
            url
            for number in itertools.count()
            if is_held_out(url := f"https://shakespeare.example/{number}", share) == held
        )
        for held in (False, True)
    ]
    file = base / "documents.jsonl"
    rows = [{"url": url, "text": text} for url, text in zip(urls, parts, strict=True)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"kind": "JSONL", "paths": (str(file),), "source": "shakespeare", "url": "url"}
    documents = (source,)
    tokenizer = str(base / "tokenizer")
    output = str(base / "tokens")
    bytes_alone = ByteLevelBPE(vocabulary=264)
    make_tokenizer(
        TokenizerTraining.model_validate(
            {"documents": documents, "output": tokenizer, "tokenizer": bytes_alone}
        )
    )
    table = {"documents": documents, "tokenizer": tokenizer, "output": output, "held_out": share}
    tokenize(Tokenization.model_validate({**table, "workers": 0}))
    return output


def train_ours(tokens, folder, seed, steps=STEPS, **model):
    """Return (seconds, held-out loss) of a trainrig run of `steps` steps."""
    run = Pretraining.model_validate(
        {
            "tokens": tokens,
            "output": str(folder),
            "model": {**MODEL, **model},
            "batches": {
                "sequence_length": LENGTH,
                "global_batch": ROWS,
                "micro_batch": ROWS,
                "seed": seed,
                "epochs": {"shakespeare": 2.0},
            },
            "training": {
                "steps": steps,
                "seed": seed,
                "virtual_workers": 1,
                "optimizer": {"kind": "AdamW", "lr": RATE, "betas": (0.9, 0.99)},
                "schedule": {
                    "kind": "Cosine",
                    "warmup": WARMUP,
                    "floor": LEAST_RATE / RATE,
                },
                "held_out": {"every": steps, "rows": 1500},
                "checkpoints": {"every": steps},
            },
        }
    )
    job = prepare(run)
    Path(job.folder).mkdir(parents=True)
    began = time.process_time()
    train(job, RunFolder(job.folder).take_attempt(0), None)
    seconds = time.process_time() - began
    last = metrics.read_held_out_series(job.folder)[-1]
    return seconds, last["eval/loss"]


def train_theirs(parts, seed):
    """Return (seconds, seconds without evaluations, held-out loss) of nanoGPT's architecture.

    The plain loop has nanoGPT's own settings: random crops, AdamW with decay of matrices, clipped
    gradients, and every 250 steps the loss of 20 batches of each part.
    """
    torch.manual_seed(seed)
    letters = sorted(set("".join(parts)))
    numbers = {letter: number for number, letter in enumerate(letters)}
    trained, held = (torch.tensor([numbers[c] for c in part]) for part in parts)
    sizes = DecoderConfig.model_validate({**MODEL, **peers.NANOGPT, "vocabulary": len(letters)})
    model = peers.GPT(sizes)
    for name, weight in model.named_parameters():
        if weight.ndim == 2:  # output projections start smaller, as nanoGPT draws them
            inward = name.endswith(("output.weight", "down.weight"))
            deviation = 0.02 / math.sqrt(2 * MODEL["layers"]) if inward else 0.02
            torch.nn.init.normal_(weight, std=deviation)
    matrices = [p for p in model.parameters() if p.ndim == 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.99))

    def batch(of):
        begins = torch.randint(len(of) - LENGTH, (ROWS,))
        ids = torch.stack([of[begin : begin + LENGTH] for begin in begins])
        targets = torch.stack([of[begin + 1 : begin + 1 + LENGTH] for begin in begins])
        return ids, targets

    def loss(ids, targets):
        return F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())

    began = time.process_time()
    evaluating = 0.0
    for step in range(STEPS):
        if step % 250 == 0:
            before = time.process_time()
            with torch.no_grad():
                for of in (trained, held):
                    sum(loss(*batch(of)).item() for _ in range(20))
            evaluating += time.process_time() - before
        if step < WARMUP:
            rate = RATE * (step + 1) / (WARMUP + 1)
        else:
            fallen = (step - WARMUP) / (STEPS - WARMUP)
            rate = LEAST_RATE + (1 + math.cos(math.pi * fallen)) / 2 * (RATE - LEAST_RATE)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss(*batch(trained)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    seconds = time.process_time() - began
    rows = held[: (len(held) - 1) // LENGTH * LENGTH + 1]
    ids = rows[:-1].view(-1, LENGTH)
    targets = rows[1:].view(-1, LENGTH)
    with torch.no_grad():
        return seconds, seconds - evaluating, loss(ids, targets).item()


@pytest.mark.data
def test_tiny_shakespeare_compared_with_nanogpt(alone, tokens, parts, tmp_path, write_result):
    """Compare CPU seconds of one thread, in alternation.

    trainrig's runs include data, metrics, the last evaluation and the checkpoint.
    """
    found = []
    for seed in SEEDS:
        numerics.settle(1, deterministic=False)
        peer = train_theirs(parts, seed)
        default = train_ours(tokens, tmp_path / f"ours-{seed}", seed)
        fewer = train_ours(tokens, tmp_path / f"fewer-{seed}", seed, FEWER)
        same = train_ours(tokens, tmp_path / f"gpt-{seed}", seed, **peers.NANOGPT)
        found.append(
            {
                "seed": seed,
                "nanoGPT": {"seconds": peer[0], "without_evaluations": peer[1], "loss": peer[2]},
                "ours": {"seconds": default[0], "loss": default[1]},
                f"ours, {FEWER:,} steps": {"seconds": fewer[0], "loss": fewer[1]},
                "ours, nanoGPT's architecture": {"seconds": same[0], "loss": same[1]},
            }
        )
        print(json.dumps(found[-1]), flush=True)
    write_result("shakespeare-beside-nanogpt.json", {"steps": STEPS, "seeds": found})
    for losses in found:
        same = losses["ours, nanoGPT's architecture"]
        fewer = losses[f"ours, {FEWER:,} steps"]
        assert losses["ours"]["loss"] <= PUBLISHED and fewer["loss"] <= PUBLISHED
        assert fewer["seconds"] < losses["nanoGPT"]["seconds"]
        assert same["loss"] == pytest.approx(losses["nanoGPT"]["loss"], abs=0.05)
        # A ratio above this would be a regression.
        assert same["seconds"] < 1.4 * losses["nanoGPT"]["seconds"]
