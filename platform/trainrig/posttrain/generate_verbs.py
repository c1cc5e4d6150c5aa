"""The command `generate`, and the conversation of the command `chat`.

They import their dependencies when they run.
"""

import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from trainrig.command_line import Checkpoint, Json, flag, option
from trainrig.errors import ConfigError, InputError

if TYPE_CHECKING:
    from trainrig.models.token_sampling import Sampling

Tokens = Annotated[int, option("N", help="Maximum number of tokens to generate.", min=1)]
Stop = Annotated[
    list[str] | None, option("TEXT", help="Text that ends the answer; repeatable.  [default: none]")
]
System = Annotated[
    str | None, option("TEXT", help="System message that begins the conversation.  [default: none]")
]


@dataclass(frozen=True)
class DrawOptions:
    """Options of all commands that answer with a checkpoint: how tokens are drawn."""

    temperature: Annotated[
        float,
        option("T", help="Randomness of sampling; 0 always takes the most likely token.", min=0),
    ] = 0.8
    top_k: Annotated[int, option("N", help="Sample from the N most likely tokens.", min=1)] = 50
    top_p: Annotated[
        float, option("P", help="Sample from the fewest tokens whose probabilities add up to P.")
    ] = 1.0
    min_p: Annotated[
        float,
        option(
            "P",
            help="Sample from tokens that have at least P times the probability of the most likely "
            "one.",
        ),
    ] = 0.0
    repetition_penalty: Annotated[
        float,
        option(
            "X", help="Penalty on tokens that the text already has; above 1, repeats are rarer."
        ),
    ] = 1.0
    seed: Annotated[
        int, option("N", help="Random seed; the same seed gives the same text.", min=0)
    ] = 0

    def build(self, where: str, tokens: int, stop: Sequence[str] = ()) -> "Sampling":
        """Build the sampling settings; `where` is the command that errors name."""
        from trainrig import config
        from trainrig.models.token_sampling import Sampling

        given = {**asdict(self), "maximum_tokens": tokens, "stop": tuple(stop)}
        return config.build(Sampling, given, where)


@dataclass(frozen=True)
class PromptOptions:
    """Options of `generate` that name what to answer: a prompt, a gap or a file of prompts."""

    prompt: Annotated[
        str | None, option("TEXT", help="Text to continue or to answer; or give --prompts instead.")
    ] = None
    prefix: Annotated[
        str | None,
        option(
            "TEXT",
            help="Text before a gap to fill, instead of --prompt, for a model trained by "
            "FillInTheMiddle or SpanCorruption.",
        ),
    ] = None
    suffix: Annotated[str | None, option("TEXT", help="Text after the gap of --prefix.")] = None
    prompts: Annotated[
        str | None,
        option(
            "FILE",
            help="JSONL file of prompts, instead of --prompt: rows with `prompt` or `messages`.",
        ),
    ] = None
    out: Annotated[str | None, option("FILE", help="JSONL file to write, for --prompts.")] = None
    chat: Annotated[bool, flag("--chat", help="Answer the prompt as a chat assistant.")] = False

    @property
    def gap(self) -> bool:
        """True if the text between a prefix and a suffix is to be written."""
        return self.prefix is not None or self.suffix is not None

    def check(self) -> None:
        """Raise ConfigError unless exactly one kind of prompt is given, with its options."""
        asked = [self.prompt is not None, self.prompts is not None, self.gap]
        file_alone = (self.prompts is None) != (self.out is None)
        if sum(asked) != 1 or file_alone or (self.gap and self.chat):
            raise ConfigError(
                "generate: give --prompt TEXT, or --prefix TEXT with --suffix TEXT for a gap "
                "between the two (without --chat), or --prompts FILE with --out FILE"
            )


@dataclass(frozen=True)
class EngineOptions:
    """Options of `generate` for a file of prompts: what generates, and how many rows together."""

    batch: Annotated[
        int, option("N", help="Number of rows of --prompts to generate together.", min=1)
    ] = 16
    workers: Annotated[
        int,
        option(
            "N",
            help="Ray workers for --prompts, on GPUs if there are some; 0: this process.",
            min=0,
        ),
    ] = 0
    engine: Annotated[
        Literal["trainrig", "vllm"],
        option("ENGINE", help="Engine for --prompts: trainrig, or vllm where it is installed."),
    ] = "trainrig"
    memory: Annotated[
        float, option("SHARE", help="Share of the GPU's memory that vLLM may use.", min=0.05, max=1)
    ] = 0.9

    def check(self, prompts: str | None) -> None:
        """Raise ConfigError if vLLM is asked for something else than a file of prompts."""
        if self.engine == "vllm" and (prompts is None or self.workers):
            raise ConfigError(
                "generate --engine vllm: vLLM answers a file of prompts, in this process; give "
                "--prompts FILE with --out FILE, and leave --workers out"
            )


def generate(
    checkpoint: Checkpoint,
    *,
    asked: PromptOptions,
    tokens: Tokens = 64,
    draw: DrawOptions,
    stop: Stop = None,
    engine: EngineOptions,
    as_json: Json = False,
) -> None:
    """Generate text with a checkpoint, from a prompt or a file of prompts."""
    from trainrig.posttrain.text_generator import TextGenerator

    sampling = draw.build("generate", tokens, stop or ())
    asked.check()
    engine.check(asked.prompts)
    if asked.prompts is not None and asked.out is not None:
        _answer_file(checkpoint, asked.prompts, asked.out, sampling, engine, as_json)
        return
    generator = TextGenerator.open(checkpoint)
    if asked.gap:
        given = {"prefix": asked.prefix, "suffix": asked.suffix}
        made = generator.fill(asked.prefix or "", asked.suffix or "", sampling)
    else:
        assert asked.prompt is not None
        given = {"prompt": asked.prompt}
        _warn_if_untaught(checkpoint, generator, asked.chat)
        made = generator.speak(asked.prompt, sampling, chat=asked.chat)
    facts = {**given, "text": made.text, "stopped": made.stopped}
    print(json.dumps(facts) if as_json else made.text)


def _answer_file(
    checkpoint: str,
    prompts: str,
    out: str,
    sampling: "Sampling",
    engine: EngineOptions,
    as_json: bool,
) -> None:
    from trainrig.posttrain.text_generator import generate_file

    memory = engine.memory if engine.engine == "vllm" else None
    with contextlib.redirect_stdout(sys.stderr):  # Ray prints its messages to stdout.
        counts = generate_file(
            checkpoint,
            prompts,
            out,
            sampling,
            batch=engine.batch,
            workers=engine.workers,
            vllm_memory=memory,
        )
    print(json.dumps({"output": out, **counts}) if as_json else f"{out}: {counts['rows']} rows")


def hold_chat(
    checkpoint: str,
    system: str | None,
    sampling: "Sampling",
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
