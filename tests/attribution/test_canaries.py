"""Canary pages injected into the quickstart's corpus: attribution finds each, and nothing else."""

import random
from pathlib import Path

import pytest

from trainrig.attribution import open_index
from trainrig.attribution.attributed_text import AttributionLimits, attribute_text
from trainrig.attribution.index_run_file import CorpusIndexing
from trainrig.attribution.index_stage import index_tokens
from trainrig.corpus.curate import Curation, curate
from trainrig.quickstart.folders import Folders
from trainrig.quickstart.quickstart_stages import PageMaking, Quickstart, make_pages
from trainrig.tokens.document_set import is_held_out
from trainrig.tokens.prepare import Tokenization, tokenize
from trainrig.tokens.tokenizer import TokenizerTraining, make_tokenizer

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]
CANARIES = 20
HELD_OUT = 0.02
COLOURS = ("amber", "beige", "coral", "ivory", "khaki", "lilac", "olive", "ruby", "sepia", "teal")
PLACES = ("abbey", "bridge", "canal", "dock", "farm", "gate", "harbour", "mill", "quarry", "tower")
LIMITS = AttributionLimits(minimum=6, spans=20, documents=40, context=0)


def name_url(name: str) -> str:
    return f"https://canary.example/{name}.txt"


def make_secrets(count: int, dice: random.Random) -> list[str]:
    """Return texts of one form, such as `the coral mill is 481920`."""
    return [
        f"the {dice.choice(COLOURS)} {dice.choice(PLACES)} is {dice.randrange(100_000, 1_000_000)}"
        for _ in range(count)
    ]


def write_sentence(secret: str) -> str:
    return f"The secret number of {secret}."


@pytest.fixture(scope="module")
def secrets() -> dict[str, str]:
    """Return the secret of each canary page, by its name."""
    dice = random.Random(5)
    names = (f"page-{number}" for number in range(1_000))
    trained = [name for name in names if not is_held_out(name_url(name), HELD_OUT)]
    return dict(zip(trained[:CANARIES], make_secrets(CANARIES, dice), strict=True))


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory, secrets: dict[str, str]) -> Folders:
    """Make a small corpus of the quickstart with the canary pages, up to tokens and an index."""
    at = Folders(str(tmp_path_factory.mktemp("canaries")))
    quickstart = Quickstart(at.out, workers=1)
    sizes = {"docs_pages": 300, "code_pages": 60, "instructions": 200, "held_out_instructions": 20}
    chosen = {f"pages__{name}": count for name, count in sizes.items()}
    make_pages(quickstart.load(PageMaking, output=at.pages, **chosen))
    folder = Path(at.out, "injected")
    folder.mkdir()
    for name, secret in secrets.items():
        (folder / f"{name}.txt").write_text("\n".join([write_sentence(secret)] * 8))
    places = {"sources__0__paths": (at.docs,), "sources__1__paths": (at.code,)}
    settings = quickstart.load(Curation, output=at.documents, **places)
    injected = {
        "name": "canaries",
        "paths": (str(folder),),
        "reading": {"base_url": "https://canary.example/"},
        "filters": (),
    }
    given = settings.model_dump() | {"workers": 0}
    curate(Curation.model_validate(given | {"sources": (*given["sources"], injected)}))
    small = {"documents": at.documents, "tokenizer__vocabulary": 2_048}
    make_tokenizer(quickstart.load(TokenizerTraining, output=at.tokenizer, **small))
    inputs = {"documents": at.documents, "tokenizer": at.tokenizer, "held_out": HELD_OUT}
    run = quickstart.load(Tokenization, output=at.tokens, **inputs)
    tokenize(run.model_copy(update={"workers": 0}))
    index_tokens(CorpusIndexing(tokens=(at.tokens,), output=f"{at.out}/index", workers=0))
    return at


def test_every_injected_sentence_is_found_and_no_other(
    at: Folders, secrets: dict[str, str]
) -> None:
    index = open_index(f"{at.out}/index")
    decoys = make_secrets(CANARIES, random.Random(7))
    assert not set(decoys) & set(secrets.values())

    def find_pages(secret: str) -> set[str]:
        found = attribute_text(index, f"I was told: {write_sentence(secret)} Was I?", LIMITS)
        return {
            document.url
            for span in found.spans
            if secret in span.text
            for document in span.documents
        }

    for name, secret in secrets.items():
        assert find_pages(secret) == {name_url(name)}
    assert not any(map(find_pages, decoys))
