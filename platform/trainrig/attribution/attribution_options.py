"""Options of the command-line verbs on the training data of answers."""

from typing import Annotated

import typer

Index = Annotated[
    str,
    typer.Option("--index", metavar="DIR", help="Folder that `trainrig index` wrote."),
]
Minimum = Annotated[
    int, typer.Option(metavar="N", min=1, help="Number of tokens of the shortest span.")
]
Verify = Annotated[
    bool,
    typer.Option(
        "--verify",
        help="Read the whole index and its tokens first, and compare them with their sums.",
    ),
]
AnsweringCheckpoint = Annotated[
    str | None,
    typer.Argument(
        metavar="CKPT",
        help="Run folder or checkpoint: its steps are named, and it answers --prompt.  "
        "[default: none]",
    ),
]
Text = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Text to look for.  [default: none]")
]
TextFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="File with the text to look for; - is stdin.  [default: none]"
    ),
]
AnsweredPrompt = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="Prompt that CKPT answers; the answer is looked for.  [default: none]",
    ),
]
AsChat = Annotated[bool, typer.Option("--chat", help="Answer the prompt as a chat assistant.")]
MostSpans = Annotated[
    int, typer.Option(metavar="N", min=1, help="Most spans to show, the rarest ones.")
]
MostDocuments = Annotated[
    int, typer.Option(metavar="N", min=0, help="Most documents to show of a span.")
]
ContextTokens = Annotated[
    int,
    typer.Option(metavar="N", min=0, help="Number of tokens to show around a span."),
]
CuratedFolder = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Folder of `curate` that the tokens were made of: adds each page's signals.  "
        "[default: none]",
    ),
]
HtmlPage = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Page to write, with spans to click.  [default: none]"),
]
SourcesIndex = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Folder that `trainrig index` wrote: parts of answers that stand in the training "
        "pages are marked, with their pages.  [default: none]",
    ),
]
ScoringCheckpoint = Annotated[
    str | None,
    typer.Argument(
        metavar="CKPT",
        help="Run folder or checkpoint that --canaries are scored by.  [default: none]",
    ),
]
CopyIndex = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Folder that `trainrig index` wrote, for --generations.  [default: none]",
    ),
]
Generations = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="JSONL file of generated texts, as `generate --prompts` writes it.  [default: none]",
    ),
]
CopyLengths = Annotated[
    list[int] | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Number of tokens in a row that make a copy; repeatable.  [default: 16, 32, 50]",
    ),
]
Canaries = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="JSONL file of texts that were injected into the training data.  [default: none]",
    ),
]
References = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="JSONL file of texts of the same form that were not.  [default: none]",
    ),
]
VerifyFiles = Annotated[
    bool,
    typer.Option(
        "--verify", help="Read all files that are found, and compare them with their sums."
    ),
]
