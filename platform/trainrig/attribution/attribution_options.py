"""Options of the command-line verbs on the training data of answers."""

from dataclasses import dataclass
from typing import Annotated

from trainrig.command_line import argument, flag, option
from trainrig.errors import ConfigError
from trainrig.posttrain.generate_verbs import Tokens

Minimum = Annotated[int, option("N", help="Number of tokens of the shortest span.", min=1)]
AnsweringCheckpoint = Annotated[
    str | None,
    argument(
        "CKPT",
        help="Run folder or checkpoint: its steps are named, and it answers --prompt.  "
        "[default: none]",
    ),
]


@dataclass(frozen=True)
class IndexOptions:
    """Options of `attribute` that name the index of the training data."""

    index: Annotated[str, option("DIR", "--index", help="Folder that `trainrig index` wrote.")]
    verify: Annotated[
        bool,
        flag(
            "--verify",
            help="Read the whole index and its tokens first, and compare them with their sums.",
        ),
    ] = False


@dataclass(frozen=True)
class SoughtOptions:
    """Options of `attribute` that name the text to look for, one of three."""

    text: Annotated[str | None, option("TEXT", help="Text to look for.  [default: none]")] = None
    text_file: Annotated[
        str | None,
        option("FILE", help="File with the text to look for; - is stdin.  [default: none]"),
    ] = None
    prompt: Annotated[
        str | None,
        option("TEXT", help="Prompt that CKPT answers; the answer is looked for.  [default: none]"),
    ] = None
    chat: Annotated[bool, flag("--chat", help="Answer the prompt as a chat assistant.")] = False
    tokens: Tokens = 64

    def check(self, checkpoint: str | None) -> None:
        """Raise ConfigError unless one text is named, and a checkpoint that answers a prompt."""
        if [self.text, self.text_file, self.prompt].count(None) != 2:
            raise ConfigError("attribute: give exactly one of --text, --text-file and --prompt")
        if self.prompt is not None and checkpoint is None:
            raise ConfigError("attribute --prompt: name the checkpoint that answers it")


@dataclass(frozen=True)
class ShownOptions:
    """Options of `attribute` that limit the spans of a text, their pages and contexts."""

    minimum: Minimum = 8
    spans: Annotated[int, option("N", help="Most spans to show, the rarest ones.", min=1)] = 10
    documents: Annotated[int, option("N", help="Most documents to show of a span.", min=0)] = 3
    context: Annotated[int, option("N", help="Number of tokens to show around a span.", min=0)] = 30


CuratedFolder = Annotated[
    str | None,
    option(
        "DIR",
        help="Folder of `curate` that the tokens were made of: adds each page's signals.  "
        "[default: none]",
    ),
]
HtmlPage = Annotated[
    str | None, option("FILE", help="Page to write, with spans to click.  [default: none]")
]
SourcesIndex = Annotated[
    str | None,
    option(
        "DIR",
        help="Folder that `trainrig index` wrote: parts of answers that stand in the training "
        "pages are marked, with their pages.  [default: none]",
    ),
]
ScoringCheckpoint = Annotated[
    str | None,
    argument(
        "CKPT", help="Run folder or checkpoint that --canaries are scored by.  [default: none]"
    ),
]
CopyIndex = Annotated[
    str | None,
    option("DIR", help="Folder that `trainrig index` wrote, for --generations.  [default: none]"),
]
Generations = Annotated[
    str | None,
    option(
        "FILE",
        help="JSONL file of generated texts, as `generate --prompts` writes it.  [default: none]",
    ),
]
CopyLengths = Annotated[
    list[int] | None,
    option(
        "N",
        help="Number of tokens in a row that make a copy; repeatable.  [default: 16, 32, 50]",
        min=1,
    ),
]
Canaries = Annotated[
    str | None,
    option(
        "FILE",
        help="JSONL file of texts that were injected into the training data.  [default: none]",
    ),
]
References = Annotated[
    str | None,
    option("FILE", help="JSONL file of texts of the same form that were not.  [default: none]"),
]
VerifyFiles = Annotated[
    bool, flag("--verify", help="Read all files that are found, and compare them with their sums.")
]
