"""A run with garbled pages, a killed worker and a resize, and its report page.

The data are two domains of real pages, cut into documents of one window each, so that the documents
of four steps can be garbled: their letters are drawn at random. Only the data is changed.
"""

import html
import json
import os
import random
import re
import signal
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastwarc.warc import ArchiveIterator, WarcRecordType
from resiliparse.extract.html2text import extract_plain_text
from support import faults

from trainrig import manifest
from trainrig.corpus.curate import Curation
from trainrig.corpus.curation_settings import CurationSource
from trainrig.errors import Unfinished
from trainrig.runs.culprits import find_culprits, find_url
from trainrig.runs.watch import build_live_page
from trainrig.tokens.prepare import Tokenization, tokenize
from trainrig.tokens.tokenizer import TokenizerTraining, make_tokenizer
from trainrig.tokens.tokenizers.tokenizer_kinds import ByteLevelBPE
from trainrig.train.pretrain import prepare, pretrain
from trainrig.train.run import metrics
from trainrig.train.run.checkpoint_scores import read_scores
from trainrig.train.run.run_folder import RunFolder
from trainrig.train.run_file.run_files import Pretraining
from trainrig.train.run_report.sampled_answers import read_followed

pytestmark = [*(getattr(pytest.mark, name) for name in ("ray", "slow", "chaos", "soak", "data"))]

LENGTH = 128  # tokens of a window, and of a document with its end token
GARBLED = range(60, 64)  # data steps whose documents are garbled
HOSTS = {"reference": "https://numpy.org/", "blog": "https://lilianweng.github.io/"}
DOCUMENTS = 1_500  # documents of each domain


def read_documents(crawl: Path) -> list[dict[str, str]]:
    """Return pieces of real pages, one letter a token, each as long as a window."""
    found = {source: [] for source in HOSTS}
    for path in sorted(crawl.glob("*.warc.gz")):
        with path.open("rb") as file:
            for record in ArchiveIterator(file, WarcRecordType.response, parse_http=True):
                url = record.headers["WARC-Target-URI"]
                source = next((s for s, host in HOSTS.items() if url.startswith(host)), None)
                if source is None or len(found[source]) >= DOCUMENTS:
                    continue
                page = record.reader.read().decode(errors="ignore")
                text = extract_plain_text(page, main_content=True)
                text = re.sub(r"\s+", " ", text.encode("ascii", "ignore").decode())
                pieces = [text[at : at + LENGTH - 1] for at in range(0, len(text), LENGTH - 1)]
                for number, piece in enumerate(pieces[:60]):
                    if len(piece) == LENGTH - 1:
                        row = {"id": f"{url}/{number}", "url": f"{url}?piece={number}"}
                        found[source].append(row | {"source": source, "text": piece})
    assert all(found.values()), {source: len(rows) for source, rows in found.items()}
    return [row | {"language": "en"} for rows in found.values() for row in rows[:DOCUMENTS]]


def write_tokens(folder: Path, rows: list[dict[str, str]]) -> str:
    """Tokenize `rows` and return the folder of tokens."""
    source = CurationSource(name="pages", paths=("pages.warc",))
    curated = str(folder / "curated")
    stage = manifest.claim(curated, Curation(output=curated, workers=0, sources=(source,)), {})
    Path(stage.build_path("kept")).mkdir(exist_ok=True)
    files = {}
    for domain in HOSTS:
        name = f"kept/{domain}.parquet"
        own = [row for row in rows if row["source"] == domain]
        pq.write_table(pa.Table.from_pylist(own), stage.build_path(name))
        files[name] = manifest.compute_file_sum(stage.build_path(name))
    stage.finish({"kept": len(rows)}, files)
    tokenizer = str(folder / "tokenizer")
    tokens = str(folder / "tokens")
    settings = ByteLevelBPE(vocabulary=263)  # bytes and special tokens, no merges
    make_tokenizer(TokenizerTraining(documents=curated, output=tokenizer, tokenizer=settings))
    tokenize(
        Tokenization(
            documents=curated, tokenizer=tokenizer, output=tokens, workers=0, held_out=0.05
        )
    )
    return tokens


def write_task(rows: list[dict[str, str]], folder: Path) -> str:
    """Write a task of continuing some pages of both domains and return its file."""
    pages = [row for domain in HOSTS for row in [r for r in rows if r["source"] == domain][:3]]
    asked = [{"begin": row["text"][:60], "end": row["text"][60:90]} for row in pages]
    (folder / "pages.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in asked))
    task = folder / "going-on.toml"
    task.write_text(
        f'name = "going-on"\nrows = "{folder}/pages.jsonl"\nprompt = "{{{{ begin }}}}"\n'
        'delimiter = ""\n[scoring]\nkind = "GeneratedAnswer"\ntargets = "end"\n'
        "maximum_tokens = 30\n"
    )
    return str(task)


def make_run(tokens: str, output: Path, workers: int, task: str | None = None) -> Pretraining:
    pages = {"name": "pages", "tasks": (task,), "every": 20, "where": "workers"}
    training = {
        "steps": 160,
        "optimizer": {"kind": "AdamW", "lr": 0.003},
        "schedule": {"kind": "Cosine", "warmup": 10},
        "virtual_workers": 2,
        "checkpoints": {"every": 10, "keep": 20},
        "held_out": {"every": 20, "rows": 8},
        "metrics": {"every": 5, "layers_every": 10},
        "spikes": {"window": 32},
        "averaging": {"horizons": (20,)},
        "evaluations": (pages,) if task else (),
    }
    sizes = {"layers": 4, "channels": 128, "heads": 4, "positions": LENGTH}
    return Pretraining(
        tokens=tokens,
        output=str(output),
        workers=workers,
        model=sizes,
        batches={"sequence_length": LENGTH, "global_batch": 16, "micro_batch": 4},
        training=training,
    )


def garble_steps(rows: list[dict[str, str]], folder: Path) -> tuple[str, dict[int, set[str]]]:
    """Return the tokens of `rows`, with the steps GARBLED garbled, and their URLs by step."""
    job = prepare(make_run(write_tokens(folder / "clean", rows), folder / "unused", 1))
    batches = job.make_batches()
    urls: dict[int, set[str]] = {}
    for step in GARBLED:
        for micro in batches.at(step):
            for row, place, number in micro.pieces.tolist():
                if place == 0:
                    source = batches.sources[micro.sources[row]]
                    urls.setdefault(step, set()).add(batches.shards.document(source, number).url)
    garbled = set().union(*urls.values())
    dice = random.Random(25)
    letters = [chr(code) for code in range(33, 127)]
    for row in rows:
        if row["url"] in garbled:
            row["text"] = "".join(dice.choices(letters, k=LENGTH - 1))
    return write_tokens(folder / "planted", rows), urls


@pytest.mark.timeout(3_000)
def test_a_report_page_explains_a_run_with_bad_data_a_kill_and_a_resize(
    one_ray, test_data, write_result, tmp_path
):
    rows = read_documents(test_data / "crawl")
    task = write_task(rows, tmp_path)
    tokens, urls = garble_steps(rows, tmp_path)
    run = make_run(tokens, tmp_path / "run", 2, task)
    events = faults.Events(run.output)

    def trouble():
        events.wait("checkpoint", 2)
        os.kill(events.ranks()[1], signal.SIGKILL)
        events.wait("spike")
        events.wait("attempt_started", 3)
        events.wait_for_a_step()
        Path(run.output, "stop").touch()

    began = time.monotonic()
    aside = faults.Aside(trouble)
    with pytest.raises(Unfinished):
        pretrain(run)
    aside.end()
    pretrain(make_run(tokens, tmp_path / "run", 1, task))  # resumes on half the workers
    seconds = time.monotonic() - began

    (spike,) = events.all("spike")
    begin, end = spike["skip"]
    assert GARBLED.start - 2 <= begin <= GARBLED.start and GARBLED.stop <= end <= GARBLED.stop + 2
    for step in GARBLED:
        found = find_culprits(run.output, None, step)
        worst = {checked.url for checked in found if checked.rules and " " not in checked.text}
        assert worst == urls[step], step
    seen = find_url(run.output, min(urls[GARBLED.start]))
    assert seen.steps == ()  # the data of these steps was skipped
    page = build_live_page(run.output)
    for label in ("restart", "spike, rolled back", "resize, 2 → 1"):
        assert f">{label}<" in page, label
    last = metrics.read_series(run.output)[-1]
    held_out = metrics.read_held_out_series(run.output)[-1]["eval/loss"]
    assert f"{held_out:.3f}" in page and f"{last['train/loss']:.3f}" in page
    scored = read_scores(RunFolder(run.output), "pages")
    assert [score.step for score in scored] == list(range(20, 161, 20))
    followed = read_followed(RunFolder(run.output), scored)
    assert [len(prompt.answers) for prompt in followed] == [5, 5, 5]
    for prompt in followed:
        assert f">{html.escape(prompt.answers[-1].text)}<" in page, prompt
    alarms = [event["name"] for event in events.all("alarm")]
    found = {"seconds": round(seconds), "steps": last["step"], "skip": spike["skip"]}
    write_result("story.json", found | {"planted": sum(map(len, urls.values())), "alarms": alarms})
