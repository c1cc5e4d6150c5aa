"""Options of the command-line verbs on the training data of answers."""

from typing import Annotated

from trainrig.command_line import argument, flag, option

Index = Annotated[str, option("DIR", "--index", help="Folder that `trainrig index` wrote.")]
Minimum = Annotated[int, option("N", help="Number of tokens of the shortest span.", min=1)]
Verify = Annotated[
    bool,
    flag(
        "--verify",
        help="Read the whole index and its tokens first, and compare them with their sums.",
    ),
]
AnsweringCheckpoint = Annotated[
    str | None,
    argument(
        "CKPT",
        help="Run folder or checkpoint: its steps are named, and it answers --prompt.  [default: "
        "none]",
    ),
]
Text = Annotated[str | None, option("TEXT", help="Text to look for.  [default: none]")]
TextFile = Annotated[
    str | None, option("FILE", help="File with the text to look for; - is stdin.  [default: none]")
]
AnsweredPrompt = Annotated[
    str | None,
    option("TEXT", help="Prompt that CKPT answers; the answer is looked for.  [default: none]"),
]
AsChat = Annotated[bool, flag("--chat", help="Answer the prompt as a chat assistant.")]
MostSpans = Annotated[int, option("N", help="Most spans to show, the rarest ones.", min=1)]
MostDocuments = Annotated[int, option("N", help="Most documents to show of a span.", min=0)]
ContextTokens = Annotated[int, option("N", help="Number of tokens to show around a span.", min=0)]
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
