import itertools
from pathlib import Path

import pytest
import torch
from support.losses import cross_entropy_sum

from trainrig.errors import ConfigError
from trainrig.models.decoder import Decoder, DecoderConfig, initialise
from trainrig.parallel import layer_compilation
from trainrig.parallel.layer_compilation import Compile, check_compiler, compile_layers
from trainrig.parallel.recompute import Full, Selective, choose_kept, recompute
from trainrig.train.elastic import trainer
from trainrig.train.pretrain import pretrain

CONFIG = DecoderConfig(layers=3, channels=32, heads=4, vocabulary=64, positions=64)
COMBINATIONS = list(
    itertools.product(("float32", "bfloat16"), (None, "Full", "Selective"), (None, "aot_eager"))
)


@pytest.fixture(autouse=True)
def settings_of_torch_put_back():
    torch.set_num_threads(1)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=8), torch._inductor.config.patch({}):
        yield


def build(settings, again=None, dtype=torch.float32):
    model = Decoder(CONFIG)
    initialise(model, 0)
    model = model.to(dtype)
    recompute(model.layers, choose_kept(len(model.layers), again))
    compile_layers(model.layers, settings)
    return model


def compute_gradients(model, length=24):
    ids = torch.randint(64, (2, length), generator=torch.Generator().manual_seed(length))
    loss = cross_entropy_sum(model(ids).logits, ids)
    model.zero_grad()
    loss.backward()
    return [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


def list_graphs():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.mark.slow
def test_all_layers_share_one_graph_and_names_stay():
    torch._dynamo.utils.counters.clear()
    model = build(Compile(backend="aot_eager"))
    compute_gradients(model)
    assert list_graphs() == 1
    assert [n for n, _ in model.named_parameters()] == [
        n for n, _ in build(None).named_parameters()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("again", [None, Full(), Selective()])
def test_the_graph_without_a_compiler_gives_the_bits_of_the_plain_layers(again):
    plain = compute_gradients(build(None))
    graph = compute_gradients(build(Compile(backend="aot_eager"), again))
    assert all(torch.equal(a, b) for a, b in zip(plain, graph, strict=True))


@pytest.mark.slow
def test_one_dynamic_graph_serves_rows_of_all_lengths():
    torch._dynamo.utils.counters.clear()
    plain = build(None)
    model = build(Compile(backend="aot_eager", dynamic=True, shapes=1))
    for length in (24, 9, 50, 33):
        for a, b in zip(
            compute_gradients(plain, length), compute_gradients(model, length), strict=True
        ):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert list_graphs() == 1


@pytest.mark.slow
def test_more_shapes_than_allowed_are_refused_in_one_line():
    model = build(Compile(backend="aot_eager", shapes=2))
    compute_gradients(model, 24)
    compute_gradients(model, 30)
    with pytest.raises(
        ConfigError, match=r"training\.compile: .*2 shapes.* dynamic = true"
    ) as said:
        compute_gradients(model, 40)
    assert "\n" not in str(said.value)


@pytest.mark.parametrize(("cxx", "named"), [(None, r"g\+\+ and clang\+\+"), ("icpx-9", "icpx-9")])
def test_a_missing_compiler_is_an_error_before_workers_start(cxx, named, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    if cxx:
        monkeypatch.setenv("CXX", cxx)
    with pytest.raises(ConfigError, match=rf"no C\+\+ compiler .*{named}.*remove the table"):
        check_compiler(Compile())
    check_compiler(Compile(backend="aot_eager"))
    check_compiler(None)


@pytest.mark.slow
def test_a_run_that_asks_for_compiling_is_refused_before_workers_start(
    make_run, monkeypatch, tmp_path
):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(trainer, "run", lambda *_: pytest.fail("workers were started"))
    monkeypatch.setattr(trainer, "check_fit", lambda *_: None)
    with pytest.raises(ConfigError, match=r"training\.compile.*no C\+\+ compiler"):
        pretrain(make_run(tmp_path / "run", training={"compile": {}}))


def test_missing_python_headers_are_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(layer_compilation.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(layer_compilation.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(ConfigError, match=r"Python\.h, which does not exist"):
        check_compiler(Compile())


@pytest.mark.slow
def test_every_combination_trains_to_the_losses_of_its_precision(ranks, make_job, tmp_path):
    found = {}
    for compute, again, backend in COMBINATIONS:
        training = {"steps": 4, "precision": {"compute": compute}}
        training |= {"recompute": {"kind": again}} if again else {}
        training |= {"compile": {"backend": backend}} if backend else {}
        job = make_job(tmp_path, training=training)
        # Two ranks trace each graph twice, so only the widest combination with a graph uses two.
        both = backend is None or (compute, again) == ("bfloat16", "Selective")
        first, *others = ranks(2 if both else 1, "steps", job=job, count=4)
        assert all(answer["digest"] == first["digest"] for answer in others)
        found[compute, again, backend] = first
    for (compute, again, backend), answer in found.items():
        plain = found[compute, None, None]
        if backend is None or compute == "float32":
            assert answer["digest"] == plain["digest"], (compute, again, backend)
        else:  # a graph keeps in float32 what plain layers round to bfloat16 in between
            assert answer["losses"] == pytest.approx(plain["losses"], rel=5e-3)


@pytest.mark.soak
@pytest.mark.timeout(1800)  # a compile takes a minute or two on busy cores
@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_compiled_training_is_close_to_plain_and_alike_at_any_number_of_ranks(
    compute, mortal_ranks, make_job, tmp_path
):
    cache = tmp_path / "cache"
    plain = {"steps": 4, "precision": {"compute": compute}, "recompute": {"kind": "Selective"}}
    (expected,) = mortal_ranks(1, "steps", job=make_job(tmp_path, training=plain), count=4)
    job = make_job(tmp_path, training=plain | {"compile": {"cache": str(cache)}})
    found = mortal_ranks(2, "steps", job=job, count=4)
    code = sorted(cache.rglob("*.so"))
    mortal_ranks.end()  # new processes find the compiled code, as after a restart
    found += mortal_ranks(1, "steps", job=job, count=4)
    assert code and sorted(Path(cache).rglob("*.so")) == code
    assert len({answer["digest"] for answer in found}) == 1
    tolerance = 1e-5 if compute == "float32" else 5e-3
    assert found[0]["losses"] == pytest.approx(expected["losses"], rel=tolerance)
