import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainrig import config as run_files
from trainrig.errors import ConfigError
from trainrig.models.attention import KeyValueCache
from trainrig.models.decoder import Decoder, DecoderConfig, count_parameters, initialise
from trainrig.models.initial_values import fill_fresh

TINY = {"layers": 1, "channels": 8, "heads": 2}


def from_run_file(**keys):
    return run_files.build(DecoderConfig, TINY | keys, "run.toml")


def test_sizes_that_are_not_set_follow_from_the_others():
    shape = DecoderConfig(layers=12, channels=768, heads=12, vocabulary=50_304).shape
    assert (shape.kv_heads, shape.head_channels, shape.feedforward_channels) == (12, 64, 2048)
    assert (
        DecoderConfig(layers=1, channels=100, heads=2, vocabulary=1).shape.feedforward_channels
        == 320
    )


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"heads": 3}, "channels (8) must be a multiple of heads (3); the next multiple is 9"),
        ({"heads": 4, "kv_heads": 3}, "kv_heads may be 1, 2, 4"),
        ({"heads": 8}, "a head has 1 channels"),
        ({"head_channels": 3}, "a head has 3 channels"),
        ({"layers": 0}, "layers"),
        ({"position_embedding": {"kind": "Rope", "theta": -1.0}}, "position_embedding.theta"),
        ({"chanels": 8}, "did you mean 'channels'?"),
        ({"channels": 8.5}, "channels"),
    ],
)
def test_invalid_sizes_are_refused_with_a_suggestion(keys, message):
    with pytest.raises(ConfigError) as caught:
        from_run_file(**keys)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_vocabulary_is_the_tokenizers_up_to_a_multiple_of_64():
    assert from_run_file().for_tokenizer(1000).vocabulary == 1024
    assert from_run_file().for_tokenizer(1024).vocabulary == 1024
    assert from_run_file(vocabulary=1001).for_tokenizer(1000).vocabulary == 1001


def test_a_vocabulary_too_small_for_the_tokenizer_or_never_settled_is_refused():
    with pytest.raises(ConfigError, match=r"vocabulary \(999\) is below .* 1000 .* set 1024"):
        from_run_file(vocabulary=999).for_tokenizer(1000)
    with pytest.raises(ConfigError, match="vocabulary is not set"):
        Decoder(from_run_file())


@given(
    layers=st.integers(1, 3),
    groups=st.integers(1, 3),
    kv_heads=st.integers(1, 3),
    width=st.sampled_from([2, 4, 6]),
    own_width=st.booleans(),
    feedforward=st.none() | st.integers(1, 90),
    tied=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_the_parameter_count_equals_the_built_model(
    layers, groups, kv_heads, width, own_width, feedforward, tied
):
    heads = groups * kv_heads
    config = DecoderConfig(
        layers=layers,
        channels=heads * width,
        heads=heads,
        kv_heads=kv_heads,
        head_channels=width + 2 if own_width else None,
        feedforward_channels=feedforward,
        vocabulary=77,
        tie_embeddings=tied,
    )
    with torch.device("meta"):
        model = Decoder(config)
    counted = count_parameters(config)
    assert counted.total == sum(p.numel() for p in model.parameters())
    assert counted.embedding == model.embedding.weight.numel()
    assert counted.layers == sum(
        p.numel() for n, p in model.named_parameters() if n.startswith(("layers.", "norm."))
    )


def test_llama_2_7b_has_its_published_number_of_parameters():
    llama = DecoderConfig(
        layers=32,
        channels=4096,
        heads=32,
        feedforward_channels=11_008,
        vocabulary=32_000,
        tie_embeddings=False,
    )
    assert count_parameters(llama).total == 6_738_415_616


def test_a_later_token_never_changes_an_earlier_logit(build):
    model = build()
    ids = torch.randint(61, (3, 12), generator=torch.Generator().manual_seed(1))
    before = model(ids).logits
    for position in range(12):
        changed = ids.clone()
        changed[:, position] = (changed[:, position] + 7) % 61
        after = model(changed).logits
        assert torch.equal(after[:, :position], before[:, :position])
        assert not torch.allclose(after[:, position], before[:, position], atol=1e-3)


def test_order_matters_to_a_later_token(build):
    model = build()
    forward, swapped = model(torch.tensor([[1, 2, 3], [2, 1, 3]])).logits
    assert not torch.allclose(forward[2], swapped[2], atol=1e-3)


def test_rows_of_a_batch_do_not_see_each_other(build):
    model = build()
    ids = torch.randint(61, (4, 10), generator=torch.Generator().manual_seed(2))
    alone = torch.cat([model(ids[row : row + 1]).logits for row in range(4)])
    assert torch.allclose(model(ids).logits, alone, atol=1e-5)


@pytest.mark.parametrize("pieces", [[1] * 24, [10, 1, 1, 12], [23, 1]])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_logits_through_a_cache_equal_those_without(build, pieces, kv_heads):
    model = build(kv_heads=kv_heads)
    ids = torch.randint(61, (2, 24), generator=torch.Generator().manual_seed(3))
    caches = [KeyValueCache() for _ in model.layers]
    logits = torch.cat([model(piece, caches).logits for piece in ids.split(pieces, dim=1)], dim=1)
    assert (logits - model(ids).logits).abs().max() <= 1e-5


def test_more_tokens_than_positions_are_refused_with_and_without_a_cache(build):
    model = build()
    with pytest.raises(ValueError, match=r"25 tokens.*only 24 positions"):
        model(torch.zeros(1, 25, dtype=torch.long))
    caches = [KeyValueCache() for _ in model.layers]
    model(torch.zeros(1, 24, dtype=torch.long), caches)
    with pytest.raises(ValueError, match="25 tokens"):
        model(torch.zeros(1, 1, dtype=torch.long), caches)


def test_a_tied_head_is_the_embedding_and_has_no_own_entry(build):
    tied = build()
    untied = build(tie_embeddings=False)
    assert set(untied.state_dict()) - set(tied.state_dict()) == {"head.weight"}
    ids = torch.tensor([[5]])
    with torch.no_grad():
        untied.head.weight.copy_(untied.embedding.weight)
    assert torch.allclose(tied(ids).logits, untied(ids).logits, atol=1e-6)


def test_fresh_weights_depend_on_seed_and_name_alone(build):
    first = build(seed=1)
    again = build(seed=1)
    other = build(seed=2)
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
        assert value.ndim == 1 or not torch.equal(value, other.state_dict()[name])
    # A deeper model begins with the same layers, except for weights that scale with depth.
    deeper = build(seed=1, layers=4).state_dict()
    assert torch.equal(
        deeper["layers.1.attention.key.weight"], first.layers[1].attention.key.weight
    )
    values = [v.flatten()[:8].tolist() for v in first.state_dict().values() if v.ndim > 1]
    assert len({tuple(v) for v in values}) == len(values)


def test_fresh_weights_leave_the_global_generator_alone(build):
    model = build()
    state = torch.get_rng_state()
    initialise(model, 3)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_model_from_the_meta_device_begins_like_any_other(build):
    model = build(seed=4)
    with torch.device("meta"):
        other = Decoder(model.config)
    other.to_empty(device="cpu")
    initialise(other, 4)
    ids = torch.arange(20)[None]
    assert torch.equal(other(ids).logits, model(ids).logits)


def test_fresh_weights_have_the_configured_scale():
    config = DecoderConfig(layers=8, channels=256, heads=4, vocabulary=512, initial_std=0.02)
    for name, std in [
        ("embedding.weight", 0.02),
        ("layers.3.feedforward.up.weight", 0.02),
        ("layers.3.attention.output.weight", 0.02 / math.sqrt(16)),
        ("layers.3.feedforward.down.weight", 0.02 / math.sqrt(16)),
    ]:
        value = torch.empty(512, 256)
        fill_fresh(value, name, (512, 256), (0, 0), config, seed=0)
        assert value.std().item() == pytest.approx(std, rel=0.02)
        assert abs(value.mean().item()) < std / 50
    gains = torch.empty(5)
    fill_fresh(gains, "norm.weight", (5,), (0,), config, seed=0)
    assert torch.equal(gains, torch.ones(5))


@pytest.mark.parametrize("first", [(0, 0), (3, 0), (0, 20), (511, 255), (100, 7)])
def test_a_slice_of_fresh_weights_can_be_drawn_alone(first):
    config = DecoderConfig(layers=8, channels=256, heads=4, vocabulary=512)
    whole = torch.empty(512, 256)
    fill_fresh(whole, "embedding.weight", (512, 256), (0, 0), config, seed=0)
    wanted = whole[first[0] : first[0] + 90, first[1] : first[1] + 200]
    part = torch.empty(wanted.shape)
    fill_fresh(part, "embedding.weight", (512, 256), first, config, seed=0)
    assert torch.equal(part, wanted)


def test_every_parameter_gets_a_gradient_and_a_short_text_is_learnt_by_heart(build):
    model = build(initial_std=0.02)
    ids = torch.tensor([[7, 3, 9, 9, 1, 3, 7, 12, 60, 0, 4, 3, 3]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(80):
        logits = model(ids[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits[0], ids[0, 1:])
        loss.backward()
        assert all(p.grad is not None and p.grad.any() for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(61), abs=0.2)  # the model starts without knowledge
    assert losses[-1] < 0.05
    assert torch.equal(model(ids[:, :-1]).logits.argmax(-1), ids[:, 1:])
