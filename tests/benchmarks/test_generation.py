"""Tokens per CPU second, compared with Transformers' `generate` on the same weights in one run.

Both run on one thread, so that other processes on the machine change little.
"""

import statistics
import time

import pytest
import torch

from trainrig.models.decoder import Decoder
from trainrig.models.generation import Request, generate_batch
from trainrig.models.huggingface import open_folder
from trainrig.models.token_sampling import Sampling

PROMPT = 64
NEW = 64
ROUNDS = 5


@pytest.mark.bench
@pytest.mark.parametrize("rows", [1, 16])
def test_generation_is_ahead_of_transformers(rows, tmp_path, write_result, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    torch.set_num_threads(1)
    config = transformers.LlamaConfig(
        vocab_size=4096, hidden_size=256, intermediate_size=704, num_hidden_layers=6,
        num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=256,
        eos_token_id=None, bos_token_id=None, pad_token_id=0, initializer_range=0.1,
    )  # fmt: skip
    theirs = transformers.LlamaForCausalLM(config).eval()
    theirs.save_pretrained(tmp_path)
    from tokenizers import Tokenizer
    from tokenizers.models import BPE

    (tmp_path / "tokenizer.json").write_text(Tokenizer(BPE({"a": 0}, [])).to_str())
    hub = open_folder(str(tmp_path))
    ours = Decoder(hub.config).eval()
    ours.load_state_dict(hub.read_state())
    ids = torch.randint(4096, (rows, PROMPT), generator=torch.Generator().manual_seed(1))
    greedy = Sampling(temperature=0.0, maximum_tokens=NEW)
    requests = [Request(tuple(row), greedy) for row in ids.tolist()]

    def by_us() -> list[list[int]]:
        return [list(completion.ids) for completion in generate_batch(ours, requests, stop=())]

    def by_them() -> list[list[int]]:
        made = theirs.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW
        )
        return [row[PROMPT:] for row in made.tolist()]

    assert by_us() == by_them()  # the comparison also warms up both
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(ROUNDS):
        for name, run in (("ours", by_us), ("theirs", by_them)):
            began = time.process_time()
            run()
            seconds[name].append(time.process_time() - began)
    ratios = [b / a for a, b in zip(seconds["ours"], seconds["theirs"], strict=True)]
    found = {
        "rows": rows,
        "tokens_per_second": {k: rows * NEW / statistics.median(v) for k, v in seconds.items()},
        "ratio": statistics.median(ratios),
        "ratios": sorted(ratios),
    }
    print(found)
    write_result(f"generation-{rows}.json", found)
    assert found["ratio"] > 1
