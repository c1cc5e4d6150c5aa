"""The prose of the code is plain English: turns that made strangers stumble do not come back.

ruff's pydocstyle rules hold docstrings to whole imperative sentences. They cannot see the words.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import compare_code

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "platform" / "trainrig"
# Folders and files of the package whose prose is plain. The list grows until it is the package.
REWRITTEN: tuple[str, ...] = (
    "corpus/compiled.py",
    "corpus/curate.py",
    "corpus/datatrove_signals",
    "corpus/decontaminate",
    "corpus/dedup",
    "corpus/document.py",
    "corpus/extract",
    "corpus/files",
    "corpus/filters",
    "corpus/language",
    "corpus/limits.py",
    "corpus/models",
    "corpus/read",
    "corpus/report",
    "corpus/rewrite",
    "corpus/row_schema.py",
    "corpus/run_file.py",
    "corpus/signals",
    "corpus/stages",
    "corpus/urls",
    "estimate",
    "evaluate/__init__.py",
    "evaluate/checkpoint_scoring.py",
    "evaluate/checks/__init__.py",
    "evaluate/checks/answers.py",
    "evaluate/checks/maths.py",
    "evaluate/checks/settings.py",
    "evaluate/confined/__init__.py",
    "evaluate/confined/exchange.py",
    "evaluate/confined/judge.py",
    "evaluate/confined/kernel.py",
    "evaluate/confined/launcher.py",
    "evaluate/confined/values.py",
    "evaluate/contamination.py",
    "evaluate/embed",
    "evaluate/engine",
    "evaluate/evaluation_verbs.py",
    "evaluate/harness",
    "evaluate/model_card.py",
    "evaluate/perplexity.py",
    "evaluate/pseudo_perplexity.py",
    "evaluate/report",
    "evaluate/run_file.py",
    "evaluate/scorecard.py",
    "evaluate/scores/__init__.py",
    "evaluate/scores/calibration.py",
    "evaluate/scores/card.py",
    "evaluate/scores/estimates.py",
    "evaluate/tasks",
    "evaluate/vectors",
    "launch/__init__.py",
    "launch/check/__init__.py",
    "launch/check/clouds",
    "launch/check/containers.py",
    "launch/check/document.py",
    "launch/check/kubernetes",
    "launch/check/notice.py",
    "launch/check/ray_file.py",
    "launch/check/secrets.py",
    "launch/check/shape.py",
    "launch/check/shipped.py",
    "launch/check/show.py",
    "launch/check/spot_agent.py",
    "launch/cluster_verbs.py",
    "launch/clusters/__init__.py",
    "launch/clusters/down.py",
    "launch/clusters/kinds.py",
    "launch/clusters/leaks.py",
    "launch/clusters/local_head.py",
    "launch/clusters/mounts.py",
    "launch/clusters/providers/__init__.py",
    "launch/clusters/providers/commands.py",
    "launch/clusters/providers/compute_engine.py",
    "launch/clusters/providers/ec2.py",
    "launch/clusters/providers/kubernetes.py",
    "launch/clusters/providers/local_processes.py",
    "launch/clusters/ray_launcher.py",
    "launch/clusters/runs.py",
    "launch/clusters/stamp.py",
    "launch/clusters/token.py",
    "launch/clusters/up.py",
    "launch/cost/__init__.py",
    "launch/follow/__init__.py",
    "launch/follow/follow.py",
    "launch/follow/resubmit.py",
    "launch/follow/stop.py",
    "launch/launch_verbs.py",
    "launch/record",
    "launch/redaction.py",
    "launch/spot/__init__.py",
    "launch/spot/__main__.py",
    "launch/spot/agent.py",
    "launch/spot/aws.py",
    "launch/spot/drain.py",
    "launch/spot/gcp.py",
    "launch/spot/kubernetes.py",
    "launch/spot/local_cluster.py",
    "launch/spot/metadata.py",
    "launch/spot/notices.py",
    "launch/spot/provider.py",
    "launch/spot/trace.py",
    "launch/submit/__init__.py",
    "launch/submit/cluster_view.py",
    "launch/submit/limit_options.py",
    "launch/submit/output_check.py",
    "launch/submit/package_upload.py",
    "launch/submit/run_paths.py",
    "launch/submit/shipped_files.py",
    "launch/submit/submit.py",
    "launch/submit/write_access.py",
    "launch/supervise",
    "models",
    "objectives",
    "optim",
    "parallel",
    "posttrain/__init__.py",
    "posttrain/chat_source.py",
    "posttrain/classification",
    "posttrain/comparison/__init__.py",
    "posttrain/comparison/settings.py",
    "posttrain/constitutional",
    "posttrain/conversation_run.py",
    "posttrain/conversations.py",
    "posttrain/distillation",
    "posttrain/environments",
    "posttrain/generate_file.py",
    "posttrain/generate_verbs.py",
    "posttrain/huggingface.py",
    "posttrain/huggingface_verbs.py",
    "posttrain/initial_model.py",
    "posttrain/memory",
    "posttrain/peft_adapter",
    "posttrain/preference_rows.py",
    "posttrain/prompt_text.py",
    "posttrain/rewards/__init__.py",
    "posttrain/rewards/contract.py",
    "posttrain/rewards/exact.py",
    "posttrain/rewards/formula.py",
    "posttrain/rewards/judge.py",
    "posttrain/rewards/numeric.py",
    "posttrain/rewards/overlong.py",
    "posttrain/rewards/pattern.py",
    "posttrain/rewards/program.py",
    "posttrain/rewards/python_function.py",
    "posttrain/rewards/reward_model.py",
    "posttrain/rewards/user_code.py",
    "posttrain/rewards/user_code_worker.py",
    "posttrain/rewards/weighted.py",
    "posttrain/rollouts/__init__.py",
    "posttrain/rollouts/batches.py",
    "posttrain/rollouts/memory.py",
    "posttrain/rollouts/partial_batches.py",
    "posttrain/rollouts/partial_waves.py",
    "posttrain/rollouts/sampled_groups.py",
    "posttrain/rollouts/stage.py",
    "posttrain/rollouts/transcripts.py",
    "posttrain/sampling/__init__.py",
    "posttrain/sampling/prompted.py",
    "posttrain/sampling/run_file.py",
    "posttrain/score",
    "posttrain/sft.py",
    "posttrain/text_generator.py",
    "posttrain/vllm_engine",
    "processes/__init__.py",
    "processes/append_log.py",
    "processes/child_process.py",
    "processes/fork_server.py",
    "processes/forking.py",
    "processes/guard.py",
    "processes/home.py",
    "processes/lease.py",
    "processes/peer.py",
    "processes/process_group.py",
    "processes/process_identity.py",
    "processes/retry_policy.py",
    "processes/stop_file.py",
    "processes/stop_signals.py",
    "ray_runtime/__init__.py",
    "ray_runtime/autoscaler_request.py",
    "ray_runtime/rank_order.py",
    "ray_runtime/ray_private.py",
    "ray_runtime/ray_session.py",
    "ray_runtime/session_folder.py",
    "ray_runtime/start_checks.py",
    "runs/__init__.py",
    "runs/overlay.py",
    "runs/run_list.py",
    "runs/run_verbs.py",
    "runs/trace.py",
    "runs/traced_run_file.py",
    "runs/watch.py",
    "scaling/__init__.py",
    "scaling/batch_rate_rules.py",
    "scaling/laws",
    "scaling/layout",
    "scaling/mixture",
    "scaling/model_ladder.py",
    "scaling/plan",
    "scaling/plots",
    "scaling/sweep",
    "storage/__init__.py",
    "storage/held_folder.py",
    "storage/s3_credentials.py",
    "storage/s3_objects.py",
    "storage/utf8.py",
    "storage/writable.py",
    "tokens/__init__.py",
    "tokens/batch_makers.py",
    "tokens/batches.py",
    "tokens/chat/__init__.py",
    "tokens/chat/answer_words.py",
    "tokens/chat/answers.py",
    "tokens/chat/chat_tokenizer.py",
    "tokens/chat/continuations.py",
    "tokens/chat/glaive.py",
    "tokens/chat/message_forms.py",
    "tokens/chat/rendering.py",
    "tokens/chat/rows.py",
    "tokens/chat/samples.py",
    "tokens/chat/template.py",
    "tokens/chat_template.py",
    "tokens/documents",
    "tokens/encoding",
    "tokens/held_out.py",
    "tokens/inspection.py",
    "tokens/mixing",
    "tokens/packing",
    "tokens/permutation.py",
    "tokens/prepare.py",
    "tokens/row_view.py",
    "tokens/shards",
    "tokens/special.py",
    "tokens/special_tokens.py",
    "tokens/tokenizer.py",
    "tokens/tokenizers",
    "tokens/tokens_verbs.py",
    "tokens/vocabulary",
    "train",
)

# A summary or a comment that begins so is a scrap of a sentence.
FRAGMENT = re.compile(
    r"(What|Whether|Of|As|Those|Which|Whose|Who|By|In|Until|See|That|How|Where|Its|For|From|With|Only"
    r"|Not|Each|All)\b"
)
SCRAP = re.compile(
    r"(of|what|who|by|that|those|whose|as|in|which|whether|its|it|they|for|from|so|else|but)\b"
)
# Turns that the field has plain words for.
TURN = re.compile(
    r"\b(anew|whoever|lest|nobody|somebody|hangs on|gone past|sees to|as many as|so many"
    r"|(is|are|was|were|be) told|told apart|comes? to know|in numbers|is at it|what for|none of it"
    r"|each once|other than that|of its own|of their own|that of|those of|of whose|has to be"
    r"|who (asks|says|waits|comes|learns|begins|is asked)"
    r"|what (it|they|is|has|was|an?|the|comes|stays|goes|there)\b[^.?]{0,60}?"
    r"\b(is|are|was|has|goes|stays|comes))\b",
    re.I,
)
ODD_NAME = re.compile(
    r"_*(a|an|the|what|who|which|that|those|it|its|they|there|of|as|told|see|look|tell|knows?"
    r"|comes?|goes|has|is_there)_"
)


def find_sources() -> list[Path]:
    found = [PACKAGE / name for name in REWRITTEN]
    return sorted(
        path for place in found for path in ([place] if place.is_file() else place.rglob("*.py"))
    )


def iterate_prose(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the kind and the words of each docstring's summary and each comment."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if docstring := ast.get_docstring(node):
            yield node.lineno, "summary", " ".join(docstring.split("\n\n")[0].split())
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], "comment", token.string.lstrip("# ")


def find_stumbles(text: str) -> list[str]:
    """Return each sentence that a stranger would stumble over, with its line."""
    found = []
    for line, kind, words in iterate_prose(text):
        start = FRAGMENT if kind == "summary" else SCRAP
        if start.match(words):
            found.append(f"{line}: a fragment: {words}")
        elif turn := TURN.search(words):
            found.append(f"{line}: say `{turn[0]}` in plain words: {words}")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and node.id == "each":
            found.append(f"{node.lineno}: a variable named `each`: name the thing")
        if isinstance(node, ast.FunctionDef) and ODD_NAME.match(node.name):
            found.append(f"{node.lineno}: `{node.name}` is no verb with its object")
    return found


@pytest.mark.parametrize("path", find_sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_sentence_of_the_code_makes_a_stranger_stumble(path: Path) -> None:
    assert not find_stumbles(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "source",
    [
        "def count():\n    '''Its rows.'''",
        "def end():\n    '''Return whether nobody is left.'''",
        "seconds = 1  # what it takes",
        "names = [each for each in rows]",
        "def _the_rule_holds():\n    pass",
    ],
)
def test_the_old_dialect_is_found(source: str) -> None:
    assert find_stumbles(source)


@pytest.mark.parametrize(
    ("old", "new", "equal"),
    [
        ("def f():\n  'Old.'\n  return 1  # old", "def f():\n  'New.'\n  return 1", True),
        ("def f():\n  return 1", "def f():\n  return 2", False),
        (
            "def f(xs):\n  return [e for e in xs if e]",
            "def f(xs):\n  return [x for x in xs if x]",
            True,
        ),
        (
            "def f():\n  a, b = 1, 2\n  return a - b",
            "def f():\n  c = 1\n  d = 2\n  return c - d",
            True,
        ),
        (
            "def f():\n  a, b = 1, 2\n  return a - b",
            "def f():\n  c = 1\n  d = 2\n  return d - c",
            False,
        ),
        ("def f(a, b):\n  a, b = b, a", "def f(a, b):\n  a = b\n  b = a", False),
        ("def f():\n  a = 1\n  b = 2\n  return a", "def f():\n  x = 1\n  x = 2\n  return x", False),
        ("def f(a):\n  return a", "def f(b):\n  return b", False),
        ("def told(x):\n  return x.told", "def is_known(x):\n  return x.is_known", True),
    ],
)
def test_a_rewrite_of_names_is_told_from_a_change(old: str, new: str, equal: bool) -> None:
    found = compare_code.compare_sources(old, new, {"told": "is_known"}, local_names=True)
    assert (found is None) == equal
