"""Rows of several documents, none of which sees another."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.layer_settings import Rope
from trainrig.models.attention import (
    Attention,
    KeyValueCache,
    Sight,
    make_document_mask,
    number_documents,
)
from trainrig.models.decoder import Decoder
from trainrig.models.families.llama import LLAMA
from trainrig.models.families.tensors import list_tensor_shapes, list_tensors
from trainrig.models.kernels import cpu_attention
from trainrig.models.layer_parts import Rotation

ROWS = [[5, 1, 9, 7], [22], [1, 1, 20], [11, 11]]  # document lengths of each row
T = 22


@pytest.fixture(params=["under a mask", "by document"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test both code paths: short rows use a mask, unless the limit is lowered here."""
    if request.param == "by document":
        monkeypatch.setattr(cpu_attention, "TOGETHER", 24)  # six positions


def packed_positions(rows: list[list[int]]) -> torch.Tensor:
    return torch.stack([torch.cat([torch.arange(n) for n in lengths]) for lengths in rows])


def random_ids(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(61, (rows, T), generator=torch.Generator().manual_seed(seed))


def compute_by_document(model, ids: torch.Tensor) -> torch.Tensor:
    """Return logits of `ids` cut into the documents of ROWS, each run alone."""
    return torch.stack(
        [
            torch.cat([model(document[None]).logits[0] for document in row.split(lengths)])
            for row, lengths in zip(ids, ROWS, strict=True)
        ]
    )


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_documents_in_one_row_get_the_logits_that_each_gets_alone(build, kv_heads):
    model = build(kv_heads=kv_heads)
    ids = random_ids(4)
    with torch.no_grad():
        packed = model(ids, positions_BT=packed_positions(ROWS)).logits
        assert (packed - compute_by_document(model, ids)).abs().max() <= 1e-5
        assert (packed[0] - model(ids).logits[0])[
            5:
        ].abs().max() > 1e-2  # without documents, the row's logits differ


@pytest.mark.usefixtures("either_way")
def test_documents_in_one_row_give_the_gradients_that_each_gives_alone(build):
    model = build()
    ids = random_ids(4)
    targets = random_ids(4, seed=1)
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = [
        torch.autograd.grad(F.cross_entropy(logits.flatten(0, 1), targets.flatten()), parameters)
        for logits in (
            model(ids, positions_BT=packed_positions(ROWS)).logits,
            compute_by_document(model, ids),
        )
    ]
    for name, together, alone in zip(names, *gradients, strict=True):
        assert (together - alone).abs().max() <= 1e-5 * max(1, alone.abs().max()), name


@pytest.mark.usefixtures("either_way")
def test_transformers_gives_each_document_alone_the_same_logits(build):
    transformers = pytest.importorskip("transformers")
    model = build()
    ids = random_ids(4)
    shape = model.shape
    config = model.config
    llama = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=shape.vocabulary,
            hidden_size=shape.channels,
            intermediate_size=shape.feedforward_channels,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            max_position_embeddings=config.positions,
            rms_norm_eps=config.norm.epsilon,
            rope_theta=config.position_embedding.theta,
            tie_word_embeddings=config.tie_embeddings,
        )
    )
    state = model.state_dict()
    names = list_tensors(LLAMA, config, list_tensor_shapes(config))
    theirs = {name.theirs: state[name.ours[0]] for name in names}
    missing = llama.load_state_dict(theirs, strict=False)
    assert missing.missing_keys == ["lm_head.weight"]  # tied
    with torch.no_grad():
        packed = model(ids, positions_BT=packed_positions(ROWS)).logits
        theirs = compute_by_document(llama, ids)
    assert (packed - theirs).abs().max() <= 1e-5


@pytest.mark.usefixtures("either_way")
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.data())
def test_a_document_that_changes_changes_no_other(build, lengths, data):
    model = build()
    positions = packed_positions([lengths])[:, :T]
    ids = random_ids(1)[:, : positions.shape[1]]
    place = data.draw(st.integers(0, ids.shape[1] - 1))
    changed = ids.clone()
    changed[0, place] = (changed[0, place] + 7) % 61
    with torch.no_grad():
        before, after = (model(x, positions_BT=positions).logits[0] for x in (ids, changed))
    document = (positions[0] == 0).cumsum(0)
    others = (document != document[place]) | (torch.arange(ids.shape[1]) < place)
    assert torch.equal(after[others], before[others])
    assert not torch.allclose(after[place], before[place], atol=1e-3)


@pytest.mark.usefixtures("either_way")
def test_a_row_of_one_document_is_a_row_without_positions(build):
    model = build()
    ids = random_ids(3)
    with torch.no_grad():
        packed = model(ids, positions_BT=packed_positions([[T]] * 3)).logits
        assert (packed - model(ids).logits).abs().max() <= 1e-5


@pytest.mark.usefixtures("either_way")
def test_rotations_use_the_given_positions(build):
    # Only distances count, so an offset of all positions changes nothing. A gap does.
    model = build()
    ids = random_ids(1)[:, :6]
    near = torch.tensor([[0, 1, 2, 3, 4, 5]])
    far = torch.tensor([[0, 1, 2, 13, 14, 15]])
    with torch.no_grad():
        logits = model(ids, positions_BT=near).logits[0]
        apart = model(ids, positions_BT=far).logits[0]
    assert torch.equal(logits[:3], apart[:3])
    assert (logits - apart)[3:].abs().amax(-1).min() > 1e-3


def test_a_row_may_begin_inside_a_document():
    positions = torch.tensor([[4, 5, 0, 1], [0, 1, 2, 0]])
    assert make_document_mask(number_documents(positions), 4).int().tolist() == [
        [[[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]],
        [[[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1]]],
    ]


def test_each_rows_positions_rotate_it():
    x = torch.randn(2, 3, 7, 16)
    positions = torch.stack([torch.arange(7), torch.tensor([0, 1, 0, 1, 2, 3, 0])])
    together = Rotation(positions, 16, Rope(theta=100.0))(x)
    for row in range(2):
        assert torch.equal(
            together[row], Rotation(positions[row], 16, Rope(theta=100.0))(x[row : row + 1])[0]
        )


def test_a_mask_shared_by_all_layers_gives_the_same_bits(build, monkeypatch):
    """Check that layers share a mask; torch converts a boolean mask to numbers for each layer."""
    model = build()
    ids = random_ids(2)
    positions = packed_positions([[3, T - 3], [T]])
    kept = {}
    found = []

    def keep(tensor):
        if tensor.shape[-2:] == (T, T):
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    for numbers in (True, False):
        if not numbers:
            monkeypatch.setattr(Sight, "mask_for", lambda sight, dtype: sight.mask_B1TS)
        kept.clear()
        model.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            output = model(ids, positions_BT=positions)
        output.logits.sum().backward()
        gradients = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        found.append((len(kept), output.logits.detach().clone(), gradients))
    assert [count for count, *_ in found] == [1, len(model.layers)]
    assert torch.equal(found[0][1], found[1][1]) and torch.equal(found[0][2], found[1][2])


@pytest.mark.parametrize(
    ("pattern", "cap", "made"),
    [(("local",), None, False), (("local", "global"), None, True), (("global",), 5.0, False)],
)
def test_numbers_are_made_of_a_mask_only_where_a_kernel_takes_them(pattern, cap, made):
    window = {"size": 4, "pattern": pattern} if "local" in pattern else None
    attention = {"window": window, "logit_cap": cap}
    sizes = {"layers": 2, "channels": 8, "heads": 2, "vocabulary": 4, "positions": T}
    model = Decoder(DecoderConfig.model_validate(sizes | {"attention": attention}))
    positions = packed_positions([[3, T - 3]])
    sights = model.sights(positions, number_documents(positions), dtype=torch.float32)
    assert [sight.added_B1TS is not None for sight in sights.values()] == [made] * len(sights)


def test_gradients_under_a_mask_match_finite_differences():
    config = DecoderConfig(layers=1, channels=4, heads=2, kv_heads=1, vocabulary=4)
    attention = Attention(
        config.shapes.layers[0].attention, 2, config.norm, config.attention
    ).double()
    positions = torch.tensor([[0, 1, 0, 1]])
    numbers = number_documents(positions)
    rotation = Rotation(positions, 2, Rope(theta=100.0))
    sight = Sight(rotation, numbers, mask_B1TS=make_document_mask(numbers, 4))
    x = torch.randn(1, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: attention(x, sight), (x,))


def test_positions_with_caches_are_refused(build):
    model = build()
    with pytest.raises(ValueError, match=r"positions_BT.*also needs documents_BS"):
        model(random_ids(1), [KeyValueCache() for _ in model.layers], packed_positions([[T]]))
