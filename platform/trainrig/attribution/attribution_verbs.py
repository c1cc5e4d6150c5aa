"""Command-line verbs on the training data of answers: attribute, chat, memorisation."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from trainrig import storage
from trainrig.attribution.attribution_options import (
    AnsweringCheckpoint,
    Canaries,
    CopyIndex,
    CopyLengths,
    CuratedFolder,
    Generations,
    HtmlPage,
    IndexOptions,
    Minimum,
    References,
    ScoringCheckpoint,
    ShownOptions,
    SoughtOptions,
    SourcesIndex,
)
from trainrig.command_line import Checkpoint, Json
from trainrig.errors import ConfigError
from trainrig.posttrain import generate_verbs
from trainrig.posttrain.generate_verbs import DrawOptions, Tokens

if TYPE_CHECKING:
    from trainrig.attribution.attributed_text import AttributedText, AttributionLimits
    from trainrig.attribution.corpus_index import CorpusIndex
    from trainrig.models.token_sampling import Sampling

DEFAULT_LENGTHS = (16, 32, 50)  # tokens in a row that make a copy


def attribute(
    checkpoint: AnsweringCheckpoint = None,
    *,
    index: IndexOptions,
    sought: SoughtOptions,
    draw: DrawOptions,
    shown: ShownOptions,
    corpus: CuratedFolder = None,
    html: HtmlPage = None,
    as_json: Json = False,
) -> None:
    """Find the training pages that parts of a text stand in, word for word.

    The text is --text, --text-file, or the answer of CKPT to --prompt. With CKPT, the steps that
    learned from each page are listed, of its run and of the runs that it was tuned from.
    """
    sought.check(checkpoint)
    from trainrig.attribution.attributed_text import AttributionLimits, attribute_text
    from trainrig.attribution.corpus_index import open_index
    from trainrig.attribution.learned_steps import open_family

    limits = AttributionLimits(**asdict(shown))
    sampling = draw.build("attribute", sought.tokens)
    opened = open_index(index.index, index.verify)
    runs = [] if checkpoint is None else open_family(checkpoint, opened)
    if sought.prompt is not None and checkpoint is not None:
        text = _answer(checkpoint, sought.prompt, sampling, sought.chat)
    else:
        text = _read_text(sought.text_file or "-") if sought.text is None else sought.text
    attributed = attribute_text(opened, text, limits, runs, corpus)
    if html is not None:
        from trainrig.attribution.attribution_page import render_attribution_page

        storage.write(html, render_attribution_page(attributed).encode())
    if as_json:
        print(json.dumps(attributed.to_json()))
    else:
        _show_attribution(attributed, html)


def _answer(checkpoint: str, prompt: str, sampling: "Sampling", chat: bool) -> str:
    from trainrig.posttrain.text_generator import TextGenerator

    return TextGenerator.open(checkpoint).speak(prompt, sampling, chat=chat).text


def _show_attribution(attributed: "AttributedText", page: str | None) -> None:
    """Print the spans with their documents, and the location of `page`, if it was written."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    for line in attributed.render():
        console.print(line)
    if page is not None:
        print(page)


def _read_text(path: str) -> str:
    try:
        data = sys.stdin.buffer.read() if path == "-" else storage.read(path)
        return storage.decode_utf8(data)
    except FileNotFoundError:
        raise ConfigError(f"--text-file {path}: no such file") from None
    except IsADirectoryError:
        raise ConfigError(f"--text-file {path}: is a folder; name a file of text in it") from None
    except storage.NotUtf8 as error:
        raise ConfigError(f"--text-file {path}: {error}; save the text as UTF-8") from None


def chat(
    checkpoint: Checkpoint,
    *,
    system: generate_verbs.System = None,
    sources: SourcesIndex = None,
    minimum: Minimum = 8,
    tokens: Tokens = 512,
    draw: DrawOptions,
) -> None:
    """Chat with a checkpoint: type a line and read the answer as it is written.

    An empty line starts a new conversation. The end of the input (Ctrl-D) ends the chat.
    """
    sampling = draw.build("chat", tokens)
    if sources is None:
        generate_verbs.hold_chat(checkpoint, system, sampling)
        return
    from trainrig.attribution.attributed_text import AttributionLimits
    from trainrig.attribution.corpus_index import open_index
    from trainrig.attribution.learned_steps import check_tokenizer

    index = open_index(sources)
    check_tokenizer(checkpoint, index)
    limits = AttributionLimits(minimum=minimum, spans=5, documents=1, context=10)
    generate_verbs.hold_chat(
        checkpoint, system, sampling, lambda answer: _show_sources(answer, index, limits)
    )


def _show_sources(answer: str, index: "CorpusIndex", limits: "AttributionLimits") -> None:
    """Print the answer again with its spans marked, and a page of each."""
    from rich.console import Console

    from trainrig.attribution.attributed_text import attribute_text, choose_colour
    from trainrig.report.number_formats import escape_invisible

    if not index.encode(answer):
        return
    attributed = attribute_text(index, answer, limits)
    console = Console(highlight=False, soft_wrap=True)
    if attributed.spans:
        console.print(attributed.render_marked())
    for span in attributed.spans:
        pages = ", ".join(escape_invisible(document.title) for document in span.documents)
        console.print(f"[{span.number}] {pages}", style=choose_colour(span.number), markup=False)
    console.print(attributed.verdict, style="dim")


def memorisation(
    checkpoint: ScoringCheckpoint = None,
    index: CopyIndex = None,
    generations: Generations = None,
    tokens: CopyLengths = None,
    canaries: Canaries = None,
    references: References = None,
    as_json: Json = False,
) -> None:
    """Measure how much generations copy training pages, and how exposed injected texts are.

    Copies need --generations and --index. Exposure needs CKPT, --canaries and --references: log2 of
    the number of references and the canary, minus log2 of the canary's rank among them by loss.
    """
    copies = (generations, index)
    exposure = (checkpoint, canaries, references)
    asked = [any(group) for group in (copies, exposure)]
    if not any(asked) or any(any(group) != all(group) for group in (copies, exposure)):
        raise ConfigError(
            "memorisation: give --generations FILE with --index DIR, or CKPT with --canaries FILE "
            "and --references FILE, or all of them"
        )
    result: dict[str, Any] = {}
    if generations is not None and index is not None:
        result["copies"] = _count_copies(generations, index, tokens or DEFAULT_LENGTHS)
    if checkpoint is not None and canaries is not None and references is not None:
        result["exposure"] = _measure_exposure(checkpoint, canaries, references)
    print(json.dumps(result) if as_json else "\n".join(_describe_memorisation(result)))


def _count_copies(generations: str, index: str, lengths: Iterable[int]) -> list[dict[str, Any]]:
    from trainrig.attribution import memorisation as measures
    from trainrig.attribution.corpus_index import open_index

    texts = measures.read_texts(generations)
    shares = measures.count_copies(open_index(index), texts, sorted(set(lengths)))
    return [share.to_json() for share in shares]


def _measure_exposure(checkpoint: str, canaries: str, references: str) -> dict[str, Any]:
    from trainrig.attribution import memorisation as measures
    from trainrig.attribution.canary_losses import TextLosses

    injected = measures.read_texts(canaries)
    others = measures.read_texts(references)
    exposures = measures.compute_exposures(TextLosses(checkpoint), injected, others)
    return {
        "references": len(others),
        "bits": measures.summarise_exposures(exposures),
        "canaries": [asdict(exposure) for exposure in exposures],
    }


def _describe_memorisation(result: Mapping[str, Any]) -> Iterator[str]:
    for found in result.get("copies", ()):
        sources = ", ".join(f"{name} {count:,}" for name, count in found["by_source"].items())
        yield (
            f"{found['copies']:,} of {found['generations']:,} generations ({found['share']:.1%}) "
            f"copy {found['tokens']} tokens or more" + (f": {sources}" if sources else "")
        )
    if exposure := result.get("exposure"):
        bits = exposure["bits"]
        yield (
            f"exposure of {len(exposure['canaries']):,} canaries among {exposure['references']:,} "
            f"references: mean {bits['mean']:.2f} bits, {bits['least']:.2f} to "
            f"{bits['largest']:.2f}; below about 1.4 on average if never seen"
        )
