"""Mixtures of experts, compared with loops over tokens and Transformers, and their balancing."""

import numpy as np
import pytest
import torch

from trainrig.config import build as build_settings
from trainrig.errors import ConfigError
from trainrig.models.architecture.decoder_config import DecoderConfig, count_parameters
from trainrig.models.architecture.layer_settings import (
    GELU,
    ClampedSwiGLU,
    ExpertGroups,
    MixtureOfExperts,
)
from trainrig.models.attention import KeyValueCache
from trainrig.models.layer_parts import activate
from trainrig.models.moe import ROUTER_TERMS, ExpertFeedForward, multiply_grouped
from trainrig.objectives.objective_interface import DeviceBatch
from trainrig.objectives.objective_kinds import SFT, CausalLM
from trainrig.optim import AdamW
from trainrig.tokens.batches import IGNORE, MicroBatch

IDS = torch.randint(61, (2, 24), generator=torch.Generator().manual_seed(3))
MIXTURE = MixtureOfExperts(experts=4, active=2, expert_channels=20)


def find_network(model) -> ExpertFeedForward:
    return model.layers[0].feedforward


def compute_by_loops(network: ExpertFeedForward, x: torch.Tensor) -> torch.Tensor:
    """Return the output, one token and one expert at a time."""
    settings = network.settings
    rows = []
    for token in x:
        logits = network.router.weight @ token
        if network.router.bias is not None:
            logits = logits + network.router.bias
        scores = logits.sigmoid() if settings.scores == "sigmoid" else logits.softmax(0)
        chosen = sorted(_list_allowed(scores, settings.groups), key=lambda e: -scores[e].item())
        chosen = chosen[: settings.active]
        total = scores[chosen].sum() if settings.normalise else 1.0
        row = torch.zeros_like(token) if network.shared is None else network.shared(token)
        if network.shared_gate is not None:
            row = row * torch.sigmoid(network.shared_gate.weight[0] @ token)
        for expert in chosen:
            given = _pass_expert(network.experts, expert, token)
            row = row + given * scores[expert] / total * settings.scale
        rows.append(row)
    return torch.stack(rows)


def _list_allowed(scores, groups):
    """Return the experts of the groups whose best experts have the highest scores in all."""
    if groups is None:
        return list(range(len(scores)))
    size = len(scores) // groups.count
    members = [list(range(first, first + size)) for first in range(0, len(scores), size)]
    worth = [sum(sorted(scores[group].tolist())[-groups.best :]) for group in members]
    best = sorted(range(groups.count), key=lambda group: -worth[group])[: groups.active]
    return [expert for group in best for expert in members[group]]


def _pass_expert(experts, expert, token):
    def project(name, x):
        y = getattr(experts, name)[expert] @ x
        bias = getattr(experts, f"{name}_bias")
        return y if bias is None else y + bias[expert]

    up = project("up", token)
    network = experts.network
    if experts.gate is None:
        return project("down", activate(network, up))
    gate = project("gate", token)
    if isinstance(network, ClampedSwiGLU):
        gate = gate.minimum(torch.tensor(network.limit))
        up = up.minimum(torch.tensor(network.limit)).maximum(torch.tensor(-network.limit))
        return project("down", gate / (1 + torch.exp(-network.alpha * gate)) * (1 + up))
    return project("down", activate(network, gate) * up)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"scores": "sigmoid", "scale": 2.5, "shared_experts": 2},
        {"normalise": False, "active": 1, "network": GELU()},
        {"experts": 7, "active": 7},
        {"experts": 6, "active": 3, "groups": ExpertGroups(count=3, active=2)},
        {"experts": 6, "groups": ExpertGroups(count=3, active=1, best=1), "normalise": False},
        {"shared_experts": 1, "shared_gate": True},
        {"network": ClampedSwiGLU(alpha=1.3, limit=0.2), "router_bias": True, "biased": True},
        {"network": GELU(), "biased": True, "shared_experts": 1},
    ],
)
def test_experts_equal_a_loop_over_tokens(build, changes):
    changes = dict(changes)
    biases = {"feedforward": changes.pop("biased", False)}
    mixture = MIXTURE.model_copy(update=changes)
    network = find_network(build(feedforward=mixture, biases=biases))
    with torch.no_grad():  # biases begin at 0, which would hide mistakes
        for number, (name, parameter) in enumerate(network.named_parameters()):
            if name.endswith("bias"):
                noise = torch.Generator().manual_seed(number)
                parameter.copy_(torch.randn(parameter.shape, generator=noise))
    x = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(0), requires_grad=True)
    found, _ = network(x)
    expected = compute_by_loops(network, x.flatten(0, 1)).view_as(x)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    inputs = [x, *network.parameters()]
    ours = torch.autograd.grad(found.square().sum(), inputs)
    theirs = torch.autograd.grad(expected.square().sum(), inputs)
    for one, other in zip(ours, theirs, strict=True):
        assert (one - other).abs().max() <= 1e-4 * max(1, other.abs().max())


def test_transformers_mixtral_gives_the_same_logits(build):
    transformers = pytest.importorskip("transformers")
    model = build(feedforward=MIXTURE, tie_embeddings=False)
    shape = model.shape
    theirs = transformers.MixtralForCausalLM(
        transformers.MixtralConfig(
            vocab_size=shape.vocabulary,
            hidden_size=shape.channels,
            intermediate_size=20,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            num_local_experts=4,
            num_experts_per_tok=2,
            rms_norm_eps=1e-5,
            rope_theta=10_000.0,
            sliding_window=None,
        )
    )
    ours = model.state_dict()
    state = {}
    for name in theirs.state_dict():
        state[name] = _from_ours(name, ours)
    theirs.load_state_dict(state)
    with torch.no_grad():
        assert (theirs(IDS).logits - model(IDS).logits).abs().max() <= 1e-5


def _from_ours(name, ours):
    mine = name.removeprefix("model.").replace("self_attn.", "attention.")
    for theirs, our in {
        "q_proj": "query",
        "k_proj": "key",
        "v_proj": "value",
        "o_proj": "output",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "feedforward_norm",
        "embed_tokens": "embedding",
        "lm_head": "head",
        "block_sparse_moe": "feedforward",
        "mlp": "feedforward",
        "feedforward.gate.": "feedforward.router.",
        "down_proj": "down",
    }.items():
        mine = mine.replace(theirs, our)
    if mine.endswith("gate_up_proj"):
        stem = mine.removesuffix("gate_up_proj")
        return torch.cat([ours[stem + "gate"], ours[stem + "up"]], dim=1)
    return ours[mine]


def test_beyond_its_capacity_an_expert_lets_later_tokens_pass(build):
    model = build(feedforward=MIXTURE.model_copy(update={"active": 1, "capacity": 0.5}))
    network = find_network(model)
    with torch.no_grad():
        network.router.weight.zero_()
        network.router.weight[2] = 1.0  # all tokens with a positive sum go to expert 2
    x = torch.rand(1, 16, 32)
    found, _ = network(x)
    # 0.5 of an even share of 16 tokens over 4 experts is 2 tokens.
    assert (found[0, 2:] == 0).all()
    assert (found[0, :2] - compute_by_loops(network, x[0, :2])).abs().max() <= 1e-5


def test_router_losses_equal_their_formulas(build):
    settings = MIXTURE.model_copy(update={"balance_loss": 0.5, "router_z_loss": 0.25})
    model = build(feedforward=settings, layers=1)
    seen = []
    find_network(model).register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    terms = model(IDS).auxiliary
    logits = seen[0].flatten(0, 1) @ find_network(model).router.weight.T
    scores = logits.softmax(-1)
    chosen = scores.topk(2).indices
    share = torch.stack([(chosen == e).sum() for e in range(4)]) / chosen.numel()
    balance = 0.5 * 4 * (share * scores.mean(0)).sum()
    z = 0.25 * logits.exp().sum(-1).log().square().mean()
    tokens = terms.pop("expert_tokens/0")
    assert tokens.tolist() == [(chosen == e).sum() for e in range(4)]
    assert terms.keys() == {"expert_balance", "router_z"}
    assert terms["expert_balance"].item() == pytest.approx(balance.item(), rel=1e-5)
    assert terms["router_z"].item() == pytest.approx(z.item(), rel=1e-5)


PADDED = [  # every way to mark padding, for rows of 10, 7 and 3 tokens in 12 positions
    lambda there: {"text_BT": there},
    lambda there: {"places_N": there.flatten().nonzero().squeeze(1)},
    lambda there: {
        "documents_BS": there.long(),
        "positions_BT": torch.arange(12).expand(3, -1),
    },
]


@pytest.mark.parametrize("tell", PADDED, ids=["text", "places", "documents"])
@pytest.mark.parametrize(
    "changes",
    [
        {"balance_loss": 0.5, "router_z_loss": 0.25},
        {"scores": "sigmoid", "balance_bias": True, "active": 1},
        {"capacity": 0.4, "shared_experts": 1},
    ],
    ids=["terms", "bias", "capacity"],
)
def test_padding_counts_nowhere(build, changes, tell):
    """Change or remove the padding; terms, loads, logits and gradients stay equal."""
    model = build(feedforward=MIXTURE.model_copy(update=changes))
    ids = torch.randint(60, (3, 12), generator=torch.Generator().manual_seed(5))
    there = torch.arange(12) < torch.tensor([10, 7, 3])[:, None]

    def read(padding):
        model.zero_grad()
        output = model(ids.where(there, padding), **tell(there))
        logits = output.logits if output.logits.ndim == 2 else output.logits[there]
        scalars = [term for term in output.auxiliary.values() if not term.ndim]
        (logits.square().mean() + sum(scalars)).backward()
        gradients = {n: parameter.grad.clone() for n, parameter in model.named_parameters()}
        return logits.detach(), output.auxiliary, gradients

    logits, terms, gradients = read(60)
    other_logits, other_terms, other_gradients = read(11)
    torch.testing.assert_close(other_logits, logits, rtol=0, atol=0)
    torch.testing.assert_close(other_terms, terms, rtol=0, atol=0)
    torch.testing.assert_close(other_gradients, gradients)
    for layer in range(2):
        sent = terms[f"expert_tokens/{layer}"].sum()
        assert sent == there.sum() * model.config.feedforward.active


def test_positions_with_caches_do_not_mark_padding(build):
    """Read a shared prefix as evaluation does: none of its logits are wanted, but it is text."""
    model = build(feedforward=MIXTURE).eval()
    ids = torch.randint(60, (2, 12), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        expected = model(ids).logits[:, -1]
        caches = [KeyValueCache() for _ in model.layers]
        model(ids[:, :8], caches=caches, places_N=torch.empty(0, dtype=torch.int64))
        found = model(ids[:, 8:], caches=caches, places_N=torch.tensor([3, 7])).logits
    torch.testing.assert_close(found, expected)


def test_padding_takes_no_capacity_from_other_rows(build):
    """A row's output is the same with and without a padded row before it."""
    model = build(feedforward=MIXTURE.model_copy(update={"capacity": 1.0, "active": 1}), layers=1)
    network = find_network(model)
    with torch.no_grad():
        network.router.weight.zero_()
        network.router.weight[2] = 1.0  # all tokens go to expert 2
    x = torch.rand(2, 8, 32)
    text = torch.tensor([[True] * 2 + [False] * 6, [True] * 6 + [False] * 2])
    found, router = network(x, text)
    assert router[3:].tolist() == [0, 0, 8, 0]
    # An even share of 8 tokens over 4 experts is 2 tokens: both of the first row.
    assert (found[0, :2] != 0).any(-1).all()
    assert (found[0, 2:] == 0).all()
    assert (found[1] == 0).all()


@pytest.mark.parametrize("changes", [{}, {"capacity": 0.5}, {"balance_bias": True}])
def test_rows_without_padding_keep_their_bits(build, changes):
    model = build(feedforward=MIXTURE.model_copy(update=changes))
    found = model(IDS, text_BT=torch.ones_like(IDS, dtype=torch.bool))
    expected = model(IDS)
    assert torch.equal(found.logits, expected.logits)
    for name, term in expected.auxiliary.items():
        assert torch.equal(found.auxiliary[name], term), name


@pytest.mark.parametrize("objective", [CausalLM(), SFT()])
def test_objectives_pass_row_ends_to_a_mixture(build, objective):
    model = build(feedforward=MIXTURE)
    targets = IDS.clone()
    targets[:, 15:] = IGNORE
    targets[:, :3] = IGNORE

    def compute(padding):
        ids = IDS.clone()
        ids[:, 15:] = padding
        arrays = {"ids": ids.numpy(), "targets": targets.numpy()}
        arrays["weights"] = (targets != IGNORE).long().numpy() * 100
        rows = np.arange(2)
        micro = MicroBatch(arrays, rows, rows, np.zeros((0, 3), dtype=np.int64))
        return objective.compute(model, DeviceBatch.copy(micro, torch.device("cpu")), {}).auxiliary

    torch.testing.assert_close(compute(60), compute(11), rtol=0, atol=0)
    assert compute(60)["expert_tokens/0"].sum() == 2 * 2 * 15


def test_without_losses_there_are_no_terms(build):
    quiet = MIXTURE.model_copy(update={"balance_loss": 0.0, "router_z_loss": 0.0})
    assert not [term for term in build(feedforward=quiet)(IDS).auxiliary.values() if not term.ndim]


def test_the_gradient_of_the_bias_is_the_excess_of_tokens_and_its_step_balances(build):
    settings = MIXTURE.model_copy(
        update={"balance_bias": True, "balance_loss": 0.0, "router_z_loss": 0.0}
    )
    network = find_network(build(feedforward=settings, layers=1))
    assert network.balance_bias is not None and not network.balance_bias.any()
    with torch.no_grad():
        network.router.weight[1] += 0.1
    x = torch.rand(8, 32, 32)
    excess = []
    for _ in range(100):
        _, terms = network(x)
        terms = terms[: len(ROUTER_TERMS)]
        assert terms.sum() == 0
        (gradient,) = torch.autograd.grad(terms.sum(), [network.balance_bias])
        assert abs(float(gradient.sum())) <= 1e-6
        excess.append(float(gradient.max()))
        with torch.no_grad():
            network.balance_bias -= 0.01 * gradient.sign()
    assert min(excess[-10:]) < 0.5 * excess[0]


def test_rows_beyond_the_counts_are_zero_and_gradients_those_of_the_values():
    x = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(3, 2, 3, dtype=torch.float64, requires_grad=True)
    counts = torch.tensor([2, 0, 3])
    assert (multiply_grouped(x, weights, counts)[5] == 0).all()
    assert torch.autograd.gradcheck(lambda a, b: multiply_grouped(a, b, counts), (x, weights))


def test_parameters_are_counted_in_all_and_by_token(build):
    model = build(feedforward=MIXTURE.model_copy(update={"shared_experts": 1, "dense_layers": 1}))
    counted = count_parameters(model.config)
    assert counted.total == sum(p.numel() for p in model.parameters())
    assert counted.total - counted.active == 2 * 3 * 32 * 20  # 2 idle experts in the second layer


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"feedforward": {"active": 5}}, "active (5) must be at most experts (4)"),
        (
            {"feedforward": {"dense_layers": 2}},
            "dense_layers (2) leaves no experts in the 2 layers",
        ),
        ({"feedforward": {"shared_gate": True}}, "shared_gate needs shared experts"),
        ({"feedforward": {"groups": {"count": 3, "active": 1}}}, "must divide experts (4) evenly"),
        ({"feedforward": {"groups": {"count": 4, "active": 1}}}, "at least active (2) experts"),
        ({"feedforward": {"groups": {"count": 2, "active": 3}}}, "at most groups.count (2)"),
        (
            {"feedforward": {"groups": {"count": 4, "active": 2, "best": 2}}},
            "groups.best (2) exceeds the 1 experts of a group",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    sizes = {"layers": 2, "channels": 32, "heads": 4, "vocabulary": 61}
    mixture = {"kind": "MixtureOfExperts", "experts": 4, "active": 2} | settings["feedforward"]
    with pytest.raises(ConfigError) as caught:
        build_settings(DecoderConfig, sizes | settings | {"feedforward": mixture}, "run.toml")
    assert message in str(caught.value)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_balancing_evens_the_load_after_500_steps(train_on_characters, write_result):
    """Compare the ways to balance with none, and keep the result in results/expert_balance.json.

    It has the highest and lowest load of the last 50 steps, in even shares, and the validation
    loss.
    """
    ways = {
        "none": {"balance_loss": 0.0, "router_z_loss": 0.0},
        "balance_loss": {"balance_loss": 0.01, "router_z_loss": 0.0},
        "balance_bias": {"balance_loss": 0.0, "router_z_loss": 0.0, "balance_bias": True},
        "router_z_loss": {"balance_loss": 0.0, "router_z_loss": 0.001},
    }
    found = {}
    steps = 500
    for name, way in ways.items():
        mixture = MixtureOfExperts(experts=8, active=2, expert_channels=64, **way)
        config = DecoderConfig(
            layers=2, channels=64, heads=2, positions=32, initial_std=0.08, feedforward=mixture
        )
        seen = []
        loss = train_on_characters(config, AdamW(lr=2.0**-8), steps, look=seen.append)
        last = seen[steps - 50 : steps]
        loads = [
            sum(counts[f"expert_tokens/{layer}"] for counts in last).double() for layer in range(2)
        ]
        shares = torch.cat([load / load.mean() for load in loads])
        highest = round(shares.max().item(), 3)
        lowest = round(shares.min().item(), 3)
        found[name] = {"highest_load": highest, "lowest_load": lowest, "loss": round(loss, 4)}
    write_result("expert_balance.json", {"steps": steps, "ways": found})
    assert found["balance_loss"]["highest_load"] < found["none"]["highest_load"], found
    assert found["balance_bias"]["highest_load"] < found["none"]["highest_load"], found
