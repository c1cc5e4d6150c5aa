"""Undisturbed reference runs, made once, and tokens of real pages."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from fastwarc.warc import ArchiveIterator, WarcRecordType
from resiliparse.extract.html2text import extract_plain_text
from support.remembered import remember

from trainrig.tokens.prepare import Tokenization, tokenize
from trainrig.tokens.tokenizer import TokenizerTraining, make_tokenizer
from trainrig.tokens.tokenizers.tokenizer_kinds import ByteLevelBPE
from trainrig.train.checkpoint import find_newest_valid
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.training_job import TrainingJob

STEPS = 20
# A checkpoint every fourth step, all of them kept.
TRAINING = {"steps": STEPS, "checkpoints": {"every": 4, "keep": 100}}

Straight = Callable[[int], TrainingJob]


@pytest.fixture(scope="session")
def straight(ranks, make_job, tmp_path_factory) -> Straight:
    """Return `straight(2)`: the job of a run of STEPS steps by two ranks without a stop."""

    @remember
    def run(world: int) -> TrainingJob:
        job = make_job(tmp_path_factory.mktemp(f"straight-{world}"), training=TRAINING)
        ranks(world, "train", job=job, attempt=RunFolder(job.folder).take_attempt(0))
        return job

    return run


@pytest.fixture
def go_on(ranks) -> Callable[..., None]:
    """Return `go_on(2, job)`: one more attempt by two ranks, from the newest valid checkpoint."""

    def attempt(world: int, job: TrainingJob) -> None:
        folder = RunFolder(job.folder)
        newest, _ = find_newest_valid(folder)
        assert newest is not None
        path = newest.path
        ranks(world, "train", job=job, attempt=folder.take_attempt(newest.step), resume_from=path)

    return attempt


@pytest.fixture
def last_weights() -> Callable[[TrainingJob], dict[str, bytes]]:
    """Return a function that returns the bytes of each tensor file of a run's last checkpoint."""

    def read(job: TrainingJob) -> dict[str, bytes]:
        newest, damages = find_newest_valid(RunFolder(job.folder))
        assert newest is not None and not damages
        return {path.name: path.read_bytes() for path in Path(newest.path).glob("*.safetensors")}

    return read


def read_pages(crawl: Path) -> Iterator[dict[str, str]]:
    """Yield address, host and text of each page of two hosts: a reference and a blog."""
    for path in sorted(crawl.glob("*.warc.gz")):
        with path.open("rb") as file:
            for record in ArchiveIterator(file, WarcRecordType.response, parse_http=True):
                url = record.headers["WARC-Target-URI"]
                if urlsplit(url).hostname not in {"numpy.org", "lilianweng.github.io"}:
                    continue
                page = record.reader.read().decode(errors="ignore")
                text = extract_plain_text(page, main_content=True)
                if len(text) > 200:
                    text = re.sub(r"[ \t]+", " ", text)
                    yield {"url": url, "host": urlsplit(url).hostname or "", "text": text}


@pytest.fixture(scope="session")
def crawl_tokens(test_data: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write token shards of real pages in two sources, `reference` and `blog`.

    A twentieth is held out.
    """
    base = tmp_path_factory.mktemp("pages")
    pages = list(read_pages(test_data / "crawl"))
    documents: list[dict[str, Any]] = []
    for source, host in (("reference", "numpy.org"), ("blog", "lilianweng.github.io")):
        rows = [{n: page[n] for n in ("url", "text")} for page in pages if page["host"] == host]
        file = base / f"{source}.jsonl"
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        documents.append({"kind": "JSONL", "paths": (str(file),), "source": source, "url": "url"})
    tokenizer = str(base / "tokenizer")
    output = str(base / "tokens")
    of = {"documents": tuple(documents)}
    bytes_and_merges = ByteLevelBPE(vocabulary=512)
    make_tokenizer(
        TokenizerTraining.model_validate({**of, "output": tokenizer, "tokenizer": bytes_and_merges})
    )
    told = {**of, "tokenizer": tokenizer, "output": output, "held_out": 0.05, "workers": 0}
    tokenize(Tokenization.model_validate(told))
    return output
