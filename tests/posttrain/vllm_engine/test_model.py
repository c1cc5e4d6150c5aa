"""Requests to vLLM and the use of its answers, with a replacement for vLLM.

If vLLM is installed, it must have the names that trainrig uses.
"""

import ast
import importlib.util
import json
import sys
from pathlib import Path

import pytest

from trainrig import cli
from trainrig.errors import ClusterError, DataError
from trainrig.models.token_sampling import Sampling
from trainrig.posttrain.text_generator import TextGenerator, TextRequest, generate_file
from trainrig.tokens.chat.chat_messages import Message

GREEDY = Sampling(temperature=0, maximum_tokens=12)
DRAWN = Sampling(temperature=0.9, top_k=40, top_p=0.95, min_p=0.01, seed=7, maximum_tokens=12)
REQUESTS = [
    TextRequest("the sea", GREEDY),
    TextRequest("the sea is " * 3, DRAWN),
    TextRequest("the sea is " * 3, DRAWN.model_copy(update={"repetition_penalty": 1.3})),
    # Beyond the model's positions.
    TextRequest("a", DRAWN.model_copy(update={"maximum_tokens": 200})),
    TextRequest((Message("user", "is it?"),), DRAWN),
]


def test_a_checkpoint_says_what_it_says_without(vllm, fresh):
    expected = TextGenerator.open(fresh, "cpu").speak_all(REQUESTS)
    assert TextGenerator.open_in_vllm(fresh, 0.5).speak_all(REQUESTS) == expected
    assert {generation.stopped for generation in expected} >= {"length", "positions"}


def test_a_text_that_ends_an_answer_ends_it_though_more_was_drawn(vllm, fresh):
    generator = TextGenerator.open_in_vllm(fresh, 0.5)
    (free,) = generator.speak_all([TextRequest("the sea", GREEDY)])
    ends = free.text[3:5]
    cut = GREEDY.model_copy(update={"stop": (ends,)})
    (spoken,) = generator.speak_all([TextRequest("the sea", cut)])
    assert spoken == TextGenerator.open(fresh, "cpu").speak("the sea", cut)
    assert (spoken.text, spoken.stopped) == (free.text[: free.text.index(ends)], "stop")


def test_a_file_of_prompts_is_answered(vllm, fresh, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"the sea {n}"}) + "\n" for n in range(5)))
    ours = str(tmp_path / "ours.jsonl")
    theirs = str(tmp_path / "theirs.jsonl")
    generate_file(fresh, str(path), ours, DRAWN, batch=2)
    generate_file(fresh, str(path), theirs, DRAWN, batch=2, vllm_memory=0.5)
    assert Path(theirs).read_text() == Path(ours).read_text()
    assert vllm.LLM.loaded == 1  # not once a batch


def test_a_request_that_vllm_abandons_is_an_error(vllm, fresh, monkeypatch):
    generator = TextGenerator.open_in_vllm(fresh, 0.5)
    given_up = vllm.RequestOutput([vllm.CompletionOutput([5], None, "abort", None)])
    monkeypatch.setattr(vllm.LLM, "generate", lambda *_, **__: [given_up])
    with pytest.raises(ClusterError, match="ended a request after 1 tokens"):
        generator.speak_all([TextRequest("the sea", GREEDY)])


def test_a_prompt_that_does_not_fit_is_refused(vllm, fresh):
    with pytest.raises(DataError, match="this model reads from 1 to 48"):
        TextGenerator.open_in_vllm(fresh, 0.5).speak_all([TextRequest("sea " * 60, GREEDY)])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--prompts", "{rows}", "--out", "{out}"], "--engine vllm: the package vllm can't be"),
        (["--prompt", "the sea"], "vLLM answers a file of prompts"),
        (["--prompts", "{rows}", "--out", "{out}", "--workers", "2"], "leave --workers out"),
    ],
)
def test_invalid_settings_are_one_line_errors(
    arguments, told, fresh, tmp_path, capsys, monkeypatch
):
    monkeypatch.setitem(sys.modules, "vllm", None)  # pretend that vLLM is not installed
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a"}\n')
    names = {"rows": str(rows), "out": str(tmp_path / "out.jsonl")}
    asked = [argument.format(**names) for argument in arguments]
    monkeypatch.setattr("sys.argv", ["trainrig", "generate", fresh, "--engine", "vllm", *asked])
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert told in line


def find_classes(folder, *names):
    """Return the syntax trees of some classes of the package in `folder`, by name."""
    found = {}
    for name in names:
        for node in ast.walk(ast.parse(Path(folder, name).read_text())):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, node)
    return found


def list_fields(node):
    return {statement.target.id for statement in node.body if isinstance(statement, ast.AnnAssign)}


def list_arguments(node, method):
    (found,) = [
        statement
        for statement in node.body
        if isinstance(statement, ast.FunctionDef) and statement.name == method
    ]
    return {argument.arg for argument in (*found.args.args, *found.args.kwonlyargs)}


def test_the_package_has_the_names_that_are_used(stand_in):
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        pytest.skip("the package vllm is not installed")
    folder = found.submodule_search_locations[0]
    theirs = find_classes(
        folder, "entrypoints/llm.py", "engine/arg_utils.py", "sampling_params.py", "outputs.py",
        "logprobs.py", "inputs/llm.py", "v1/worker/gpu_model_runner.py",
    )  # fmt: skip
    ours = list_replacement_fields(stand_in)
    llm = theirs["LLM"]
    assert {"model", "gpu_memory_utilization"} <= list_arguments(llm, "__init__")
    assert {"max_model_len", "logprobs_mode"} <= list_fields(theirs["EngineArgs"])
    assert {"prompts", "sampling_params", "use_tqdm"} <= list_arguments(llm, "generate")
    assert {"method", "kwargs"} <= list_arguments(llm, "collective_rpc")
    assert list_arguments(llm, "reset_prefix_cache")
    assert "weights_path" in list_arguments(theirs["GPUModelRunner"], "reload_weights")
    assert "prompt_token_ids" in list_fields(theirs["TokensPrompt"])
    for name in ("SamplingParams", "CompletionOutput", "Logprob"):
        assert ours[name] <= list_fields(theirs[name]), name
    assert '"processed_logprobs"' in Path(folder, "config/model.py").read_text()


def list_replacement_fields(folder):
    """Return the fields of the replacement."""
    found = find_classes(folder, "vllm.py")
    return {name: list_fields(node) for name, node in found.items()}
