"""The command `generate`, and the conversation of the command `chat`.

They import their dependencies when they run.
"""

import contextlib
import json
import sys
from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer

from trainrig.command_line import Checkpoint, Json, flag, option
from trainrig.errors import ConfigError, InputError

Tokens = Annotated[int, option("N", help="Maximum number of tokens to generate.", min=1)]
Temperature = Annotated[
    float, option("T", help="Randomness of sampling; 0 always takes the most likely token.", min=0)
]
TopK = Annotated[int, option("N", help="Sample from the N most likely tokens.", min=1)]
TopP = Annotated[
    float, option("P", help="Sample from the fewest tokens whose probabilities add up to P.")
]
MinP = Annotated[
    float,
    option(
        "P",
        help="Sample from tokens that have at least P times the probability of the most likely "
        "one.",
    ),
]
Penalty = Annotated[
    float,
    option("X", help="Penalty on tokens that the text already has; above 1, repeats are rarer."),
]
Stop = Annotated[
    list[str] | None, option("TEXT", help="Text that ends the answer; repeatable.  [default: none]")
]
Seed = Annotated[int, option("N", help="Random seed; the same seed gives the same text.", min=0)]
Prompt = Annotated[
    str | None, option("TEXT", help="Text to continue or to answer; or give --prompts instead.")
]
PromptFile = Annotated[
    str | None,
    option(
        "FILE", help="JSONL file of prompts, instead of --prompt: rows with `prompt` or `messages`."
    ),
]
Prefix = Annotated[
    str | None,
    option(
        "TEXT",
        help="Text before a gap to fill, instead of --prompt, for a model trained by "
        "FillInTheMiddle or SpanCorruption.",
    ),
]
Suffix = Annotated[str | None, option("TEXT", help="Text after the gap of --prefix.")]
System = Annotated[
    str | None, option("TEXT", help="System message that begins the conversation.  [default: none]")
]
Engine = Annotated[
    Literal["trainrig", "vllm"],
    option("ENGINE", help="Engine for --prompts: trainrig, or vllm where it is installed."),
]
GpuMemory = Annotated[
    float, option("SHARE", help="Share of the GPU's memory that vLLM may use.", min=0.05, max=1)
]


def build_sampling(where: str, **given: Any) -> Any:
    """Build sampling settings from options; `where` is the command that errors name."""
    from trainrig import config
    from trainrig.models.token_sampling import Sampling

    return config.build(Sampling, given, where)


def _check_asked(
    prompt: str | None, prompts: str | None, out: str | None, gap: bool, chat: bool
) -> None:
    """Raise ConfigError unless exactly one kind of prompt is given, with its options."""
    asked = [prompt is not None, prompts is not None, gap]
    if sum(asked) != 1 or (prompts is None) != (out is None) or (gap and chat):
        raise ConfigError(
            "generate: give --prompt TEXT, or --prefix TEXT with --suffix TEXT for a gap "
            "between the two (without --chat), or --prompts FILE with --out FILE"
        )


def _check_engine(engine: str, prompts: str | None, workers: int) -> None:
    """Raise ConfigError if vLLM is asked for something else than a file of prompts."""
    if engine == "vllm" and (prompts is None or workers):
        raise ConfigError(
            "generate --engine vllm: vLLM answers a file of prompts, in this process; give "
            "--prompts FILE with --out FILE, and leave --workers out"
        )


def generate(
    checkpoint: Checkpoint,
    prompt: Prompt = None,
    prefix: Prefix = None,
    suffix: Suffix = None,
    prompts: PromptFile = None,
    out: Annotated[str | None, option("FILE", help="JSONL file to write, for --prompts.")] = None,
    chat: Annotated[bool, flag("--chat", help="Answer the prompt as a chat assistant.")] = False,
    tokens: Tokens = 64,
    temperature: Temperature = 0.8,
    top_k: TopK = 50,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    repetition_penalty: Penalty = 1.0,
    stop: Stop = None,
    seed: Seed = 0,
    batch: Annotated[
        int, option("N", help="Number of rows of --prompts to generate together.", min=1)
    ] = 16,
    workers: Annotated[
        int,
        option(
            "N",
            help="Ray workers for --prompts, on GPUs if there are some; 0: this process.",
            min=0,
        ),
    ] = 0,
    engine: Engine = "trainrig",
    memory: GpuMemory = 0.9,
    as_json: Json = False,
) -> None:
    """Generate text with a checkpoint, from a prompt or a file of prompts."""
    from trainrig.posttrain.text_generator import TextGenerator

    sampling = build_sampling(
        "generate",
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        stop=tuple(stop or ()),
        seed=seed,
        maximum_tokens=tokens,
    )
    gap = prefix is not None or suffix is not None
    _check_asked(prompt, prompts, out, gap, chat)
    _check_engine(engine, prompts, workers)
    if prompts is not None and out is not None:
        share = memory if engine == "vllm" else None
        _answer_file(checkpoint, prompts, out, sampling, batch, workers, share, as_json)
        return
    generator = TextGenerator.open(checkpoint)
    if gap:
        asked = {"prefix": prefix, "suffix": suffix}
        made = generator.fill(prefix or "", suffix or "", sampling)
    else:
        assert prompt is not None
        asked = {"prompt": prompt}
        _warn_if_untaught(checkpoint, generator, chat)
        made = generator.speak(prompt, sampling, chat=chat)
    facts = {**asked, "text": made.text, "stopped": made.stopped}
    print(json.dumps(facts) if as_json else made.text)


def _answer_file(
    checkpoint: str,
    prompts: str,
    out: str,
    sampling: Any,
    batch: int,
    workers: int,
    vllm_memory: float | None,
    as_json: bool,
) -> None:
    from trainrig.posttrain.text_generator import generate_file

    with contextlib.redirect_stdout(sys.stderr):  # Ray prints its messages to stdout.
        counts = generate_file(
            checkpoint,
            prompts,
            out,
            sampling,
            batch=batch,
            workers=workers,
            vllm_memory=vllm_memory,
        )
    print(json.dumps({"output": out, **counts}) if as_json else f"{out}: {counts['rows']} rows")


def hold_chat(
    checkpoint: str,
    system: str | None,
    sampling: Any,
    after_answer: Callable[[str], None] | None = None,
) -> None:
    """Answer the lines of stdin with a checkpoint, until the input ends.

    An empty line starts a new conversation. `system` is the message that begins each one.
    `after_answer` is called with each answer, once it is printed.
    """
    from trainrig.posttrain.text_generator import TextGenerator
    from trainrig.tokens.chat.chat_messages import Message

    generator = TextGenerator.open(checkpoint)
    _warn_if_untaught(checkpoint, generator, chatting=True)
    beginning = [Message("system", system)] if system else []
    messages = list(beginning)
    while (line := _read_line()) is not None:
        if not line:
            messages = list(beginning)
            continue
        messages.append(Message("user", line))
        try:
            answer = generator.answer(messages, sampling, _show)
        except InputError as error:  # For example, the conversation no longer fits.
            typer.echo(
                f"trainrig: {error}; enter an empty line to start a new conversation", err=True
            )
            messages.pop()
            continue
        print(flush=True)
        messages.append(Message("assistant", answer.text))
        if after_answer is not None:
            after_answer(answer.text)


def _read_line() -> str | None:
    """Return the next line without surrounding spaces, or None at the end of the input."""
    if sys.stdin.isatty():
        typer.echo("> ", err=True, nl=False)
    line = sys.stdin.readline()
    return line.strip() if line else None


def _show(piece: str) -> None:
    print(piece, end="", flush=True)


def _warn_if_untaught(checkpoint: str, generator: Any, chatting: bool) -> None:
    if chatting and generator.tuned is False:
        warning = (
            "the model is not fine-tuned on conversations, so its answers may make no sense; "
            "fine-tune it with `trainrig posttrain`"
        )
        typer.echo(f"trainrig: {checkpoint}: {warning}", err=True)
