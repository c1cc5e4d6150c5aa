import itertools
import os
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainrig import config, storage
from trainrig.corpus.curation_settings import Curation, CurationSource
from trainrig.launch.redaction import MASK, Redactor, find_secrets, redact
from trainrig.launch.supervise.attempt_ends import Limits
from trainrig.launch.supervise.run_record import Home

# Secrets of two letters, so that they touch, overlap and begin with each other.
SECRETS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)
TEXTS = st.text("abc", max_size=60)


def mask_at_once(text, secrets):
    """Return the expected mask: leftmost first, and of those the longest."""
    longest_first = sorted(secrets, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, longest_first)), MASK, text) if secrets else text


@given(TEXTS, SECRETS, st.lists(st.integers(0, 60)))
def test_where_a_stream_is_cut_makes_no_difference(text, secrets, cuts):
    masking = Redactor(secrets)
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b].encode() for a, b in itertools.pairwise(places)]
    said = b"".join([*map(masking.feed, pieces), masking.flush()])
    assert said.decode() == mask_at_once(text, secrets)


@given(st.binary(max_size=200))
def test_without_secrets_every_byte_passes_at_once(data):
    assert Redactor([]).feed(data) == data


def test_text_that_cannot_become_a_secret_is_not_held_back():
    masking = Redactor(["hunter2-hunter2"])
    assert masking.feed(b"step 1\nhunter") == b"step 1\n"
    assert masking.feed(b"s\n") == b"hunters\n"
    assert masking.feed(b"hunter2-hunter2") == b"[masked]"


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "DB_PASSWORD", "password", "MY_SECRETS",
     "apiKey", "GITHUB_TOKENS", "SECRET", "RAY_AUTH_TOKEN", "PGPASSWORD",
     "AZURE_STORAGE_CONNECTION_STRING"],
)  # fmt: skip
def test_names_that_end_like_a_secrets_are_masked(name):
    assert find_secrets({name: "0123456789"}) == ["0123456789"]


@pytest.mark.parametrize(
    "name", ["PATH", "KEYBOARD", "AWS_ACCESS_KEY_ID", "TOKENIZERS_PARALLELISM", "HOME"]
)
def test_other_names_are_not_masked(name):
    assert find_secrets({name: "0123456789"}) == []


def test_a_key_of_several_lines_is_masked_line_by_line():
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBg\n  kqhkiG9w0BAQEF\n-----END KEY-----\n"
    found = find_secrets({"TLS_KEY": key})
    assert {"MIIEvQIBADANBg", "kqhkiG9w0BAQEF"} <= set(found)


def test_short_values_are_not_masked(monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "nothing")
    assert redact("nothing to do") == "nothing to do"
    monkeypatch.setenv("MY_TOKEN", "correct horse")
    assert redact({"a": ["the correct horse", 1, None]}) == {"a": ["the [masked]", 1, None]}


@pytest.mark.slow
def test_the_cause_of_a_failure_has_no_secrets(tmp_path):
    """Check the record and the supervisor's output, which Ray keeps and its dashboard shows."""
    secret = "canary0123456789abcdef"
    run = Curation(
        output=str(tmp_path / "out"),
        workers=0,
        sources=(CurationSource(name="web", paths=(f"{tmp_path}/{secret}.jsonl",), filters=()),),
    )
    record = Home(str(tmp_path / "home")).create(run.verb, run.output)
    storage.write(record.run_file, config.to_toml(run).encode())
    record.take_attempt("job-{attempt}", "http://here", "", Limits().model_dump(mode="json"))
    supervise = [
        sys.executable,
        "-m",
        "trainrig.launch.supervise.entrypoint",
        "--home",
        str(tmp_path / "home"),
    ]
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    done = subprocess.run(
        [*supervise, "--run", record.id, "--attempt", "1"],
        env=environment | {"SOME_TOKEN": secret},
        capture_output=True,
        text=True,
        timeout=120,
    )
    (ended,) = [event for event in record.read_events(1) if event["event"] == "ended"]
    assert done.returncode == ended["exit_code"] == 2
    assert f"{MASK}.jsonl" in ended["message"] and f"{MASK}.jsonl" in done.stderr
    assert secret not in done.stdout + done.stderr + str(list(record.read_events()))
