"""Tuning an untrained model to add two numbers.

The answer to `aa+bb=` is three digits, the last first. 9,000 of the 10,000 sums are for training,
the others are held out. The soak test writes its figures to `results/addition.json`.
"""

import json
import random

import pytest

from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.models.token_sampling import Sampling
from trainrig.posttrain.conversations import encode_conversations
from trainrig.posttrain.row_run_files import ConversationEncoding
from trainrig.posttrain.text_generator import TextGenerator, TextRequest
from trainrig.posttrain.tuning.fine_tuning import posttrain
from trainrig.posttrain.tuning.tuning_run_file import FineTuning
from trainrig.tokens.chat.chat_messages import Message
from trainrig.tokens.tokenizer import train_tokenizer
from trainrig.tokens.tokenizers.tokenizer_kinds import ByteLevelBPE
from trainrig.train.checkpoint import write_model
from trainrig.train.run import metrics

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7200)]
SEEDS = (0, 1, 2)
HELD_OUT = 1_000
# With 500 steps at 2e-3, one seed of four stayed at an exact match of .083. With 1,000 at 1e-3,
# that seed reached .987, and a reward model .92, both still rising.
STEPS = 1_500
LR = 1e-3
# At 1e-3, which unlearns the sums, reward models reached .997, .970 and .913.
REWARD_LR = 3e-4
WRONG = 8  # answers to each sum
GREEDY = Sampling(temperature=0, maximum_tokens=5)


def format_reversed_sum(a, b):
    return f"{a + b:03d}"[::-1]


SUMS = [(f"{a:02d}+{b:02d}=", format_reversed_sum(a, b)) for a in range(100) for b in range(100)]
random.Random("addition").shuffle(SUMS)


def make_wrong_answer(prompt, answer, number=0):
    """Return `answer` with one digit changed, a different change for each `number`."""
    dice = random.Random(f"{prompt}{number}")
    place = dice.randrange(3)
    digit = (int(answer[place]) + dice.randrange(1, 10)) % 10
    return f"{answer[:place]}{digit}{answer[place + 1 :]}"


class Sums:
    """Runs of one seed in folders below `at`."""

    def __init__(self, at, seed):
        self.at = at
        self.seed = seed
        at.mkdir()
        text = train_tokenizer(ByteLevelBPE(vocabulary=263), ["0"]).decode()  # each byte is a token
        config = DecoderConfig(layers=2, channels=128, heads=4, positions=64, vocabulary=320)
        model = Decoder(config)
        initialise(model, seed=seed)
        self.fresh = str(at / "fresh")
        write_model(self.fresh, config, text, model.state_dict())

    def encode(self, name, kind, told, held_out):
        """Write training rows and held-out rows, and encode them."""
        sources = []
        for split, rows in (("train", told), ("held_out", held_out)):
            path = self.at / f"{name}-{split}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            sources.append({"paths": (str(path),), "source": "sums", "split": split})
        encode_conversations(
            ConversationEncoding(
                rows=kind, sources=tuple(sources), tokenizer=self.fresh, output=str(self.at / name),
                workers=0, sequence_length=64,
            )
        )  # fmt: skip
        return str(self.at / name)

    def tune(self, name, checkpoint, rows, objective, steps, batch, lr):
        """Run one tuning, and return its folder and its final held-out metrics."""
        length = {"sequence_length": 64, "seed": self.seed}
        run = {
            "checkpoint": checkpoint, "conversations": rows, "output": str(self.at / name),
            "objective": objective, "comparison": {"prompts": 0},
            "batches": length | {"global_batch": batch, "micro_batch": batch},
            "training": {
                "steps": steps, "seed": self.seed, "checkpoints": {"every": steps},
                "optimizer": {"kind": "AdamW", "lr": lr, "weight_decay": 0.0},
                "held_out": {"every": steps, "rows": 300},
            },
        }  # fmt: skip
        posttrain(FineTuning.model_validate(run))
        return run["output"], metrics.read_held_out_series(run["output"])[-1]


def measure_exact_match(folder):
    """Return the share of held-out sums that are answered correctly."""
    generator = TextGenerator.open(folder)
    right = 0
    for first in range(0, HELD_OUT, 250):
        asked = SUMS[first : first + 250]
        requests = [TextRequest((Message("user", prompt),), GREEDY) for prompt, _ in asked]
        said = generator.speak_all(requests)
        right += sum(s.text == answer for s, (_, answer) in zip(said, asked, strict=True))
    return right / HELD_OUT


def make_chat(prompt, answer):
    return {"prompt": prompt, "completion": answer}


def make_pair(prompt, answer, number=0):
    return {
        "prompt": prompt,
        "chosen": answer,
        "rejected": make_wrong_answer(prompt, answer, number),
    }


def swap_half(rows):
    """Return `rows` with chosen and rejected swapped in every other row, at random."""
    dice = random.Random("swapped")
    ways = (
        {"chosen": "chosen", "rejected": "rejected"},
        {"chosen": "rejected", "rejected": "chosen"},
    )
    return [row | {name: row[of] for name, of in dice.choice(ways).items()} for row in rows]


def test_sums_are_learnt_and_preferred_to_wrong_ones(without_ray, tmp_path, write_result):
    told = SUMS[HELD_OUT:]
    held_out = SUMS[:HELD_OUT]
    others = random.Random("shuffled").sample([answer for _, answer in told], len(told))
    shuffled = [(prompt, other) for (prompt, _), other in zip(told, others, strict=True)]
    chats_apart = [make_chat(*case) for case in held_out]
    pairs_apart = [make_pair(*case) for case in held_out]
    # The reward model sees several wrong answers to each sum.
    judged = [make_pair(*case, number) for number in range(WRONG) for case in told]
    accuracy = "eval/diagnostics/reward_accuracy"
    found = []
    for seed in SEEDS:
        sums = Sums(tmp_path / str(seed), seed)
        rows = [make_chat(*case) for case in told]
        rows = sums.encode("chats", "conversations", rows, chats_apart)
        pairs = sums.encode("pairs", "pairs", [make_pair(*case) for case in told], pairs_apart)
        all_pairs = sums.encode("all-pairs", "pairs", judged, pairs_apart)
        tuned, _ = sums.tune("tuned", sums.fresh, rows, {"kind": "SFT"}, STEPS, 40, LR)
        # Such a strong pull to the reference keeps correct answers as likely as before: with beta =
        # 0.1, exact match fell from 1 to .954.
        aligned, dpo = sums.tune(
            "aligned", tuned, pairs, {"kind": "DPO", "beta": 3.0}, 300, 64, 4e-5
        )
        _, reward = sums.tune("reward", tuned, all_pairs, {"kind": "Reward"}, STEPS, 64, REWARD_LR)
        figures = {
            "seed": seed,
            "untrained": measure_exact_match(sums.fresh),
            "sft": measure_exact_match(tuned),
            "dpo": measure_exact_match(aligned),
            "dpo_reward_accuracy": dpo[accuracy],
            "reward_model_accuracy": reward[accuracy],
        }
        if seed == SEEDS[0]:
            rows = [make_chat(*case) for case in shuffled]
            rows = sums.encode("no-chats", "conversations", rows, chats_apart)
            untaught, _ = sums.tune("untaught", sums.fresh, rows, {"kind": "SFT"}, 500, 40, LR)
            figures["sft_on_shuffled"] = measure_exact_match(untaught)
            no_pairs = sums.encode("no-pairs", "pairs", swap_half(judged), pairs_apart)
            _, untaught = sums.tune(
                "no-reward", tuned, no_pairs, {"kind": "Reward"}, 500, 64, REWARD_LR
            )
            figures["reward_model_on_swapped"] = untaught[accuracy]
        found.append(figures)
        print("\n" + json.dumps(figures), flush=True)
        write_result(
            "addition.json", {"benchmark": "addition", "held_out": HELD_OUT, "seeds": found}
        )
    for figures in found:
        assert figures["untrained"] < 0.01
        assert figures["sft"] >= 0.99
        assert figures["dpo"] >= figures["sft"]
        assert figures["dpo_reward_accuracy"] >= 0.95
        assert figures["reward_model_accuracy"] >= 0.98
    assert found[0]["sft_on_shuffled"] < 0.05
    assert 0.4 < found[0]["reward_model_on_swapped"] < 0.6
