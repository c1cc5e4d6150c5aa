import hashlib
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainrig.corpus.rewrite.pii_mask import PII, mask

PUBLISHED_TEST_NUMBERS = [  # test numbers that the issuers publish
    "4111 1111 1111 1111",
    "4111-1111-1111-1111",
    "5555555555554444",
    "2223003122003222",
    "3782 822463 10005",
    "6011111111111117",
    "3530111333300000",
    "30569309025904",
]
PUBLISHED_IBANS = [
    "GB82 WEST 1234 5698 7654 32",
    "DE89370400440532013000",
    "NO9386011117947",
]

# Fake secrets in the issuers' formats, split so that no scanner takes them for real ones.
RANDOM = "k3Jx9QmZ7tBvR2nWcY5dLhG8sPfA1uEo4TiX6gVbN0MqDzKjSwCyHrUe"
JWT = "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0NSJ9." + RANDOM[:43]
PRIVATE_KEY = (
    "-----BEGIN RSA "
    + f"PRIVATE KEY-----\n{RANDOM}\n{RANDOM[:9]}\n"
    + ("-----END RSA " + "PRIVATE KEY-----")
)
TOKENS = [
    "AK" + "IA2QJZ7WUVB4KXN5TP",
    "gh" + "p_" + RANDOM[:36],
    "github_" + "pat_" + RANDOM[:22] + "_" + RANDOM[:56] + "abc",
    "gl" + "pat-" + RANDOM[:20],
    "xo" + "xb-" + "263594206564-" + RANDOM[:24],
    "AI" + "za" + RANDOM[:35],
    "sk" + "_live_" + RANDOM[:24],
    "sk" + "-proj-" + RANDOM[:48],
    "np" + "m_" + RANDOM[:36],
    "S" + "G." + RANDOM[:22] + "." + RANDOM[:43],
    JWT,
    PRIVATE_KEY,
]

# The parts of matches, so that matches come close to each other and to their masks.
FINDS = [
    "ann@example.com",
    "ann [at] example.com",
    "8.8.8.8",
    "2a00:1450:4001:82a::200e",
    TOKENS[0],
    TOKENS[1],
    "+49 30 1234567",
    "(212) 555-0123",
    "4111111111111111",
    *PUBLISHED_IBANS,
]
LOOSE = [
    *"@.-+1 x<>\n:=(_",
    "api_key",
    RANDOM[:20],
    "-----BEGIN PRIVATE KEY-----",
    "::1",
]
pieces = st.sampled_from([*FINDS, *TOKENS, "<EMAIL>", "version ", "Tel. ", "030", *LOOSE])


def masked(text: str, **settings: object) -> str:
    return mask(text, PII.model_validate(settings))[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Write to ann.lee+news@mail.example.co.uk.", "Write to <EMAIL>."),
        ("(ann@example.com)", "(<EMAIL>)"),
        ("jürgen@bücher.de", "<EMAIL>"),
        ("from 8.8.8.8, and 1.1.1.1:53", "from <IP>, and <IP>:53"),
        ("call +49 30 1234567 or +1 (212) 555-0123", "call <PHONE> or <PHONE>"),
        ("ann [at] example [dot] com or ann (at) example.com", "<EMAIL> or <EMAIL>"),
        ("at 2a00:1450:4001:82a::200e, 2606:4700::6810:84E5.", "at <IP>, <IP>."),
        ("http://[2001:4860:4860::8888]:443", "http://[<IP>]:443"),
        ("Tel.: 030/226 343-0, Fax 030 2263 (0) 431", "Tel.: <PHONE>, Fax <PHONE>"),
        (
            "please call 0800 138 1016 or 0800 138 1017",
            "please call <PHONE> or <PHONE>",
        ),
        ("call 0800 0282 878 or 18001 0800 0282 878.", "call <PHONE> or <PHONE>."),
        ("Tel. 0221 / 9822", "Tel. <PHONE>"),
        ("Tél. (01) 23 45 67 89 / 01 23 45 67 88", "Tél. <PHONE> / <PHONE>"),
        (PRIVATE_KEY.partition("-----END")[0] + "The end", "<KEY>\nThe end"),
        *((f"use {token}, or", "use <KEY>, or") for token in TOKENS),
        (f'api_key = "{RANDOM[:24]}"', 'api_key = "<KEY>"'),
        (f"AWS_SECRET_ACCESS_KEY={RANDOM[:40]}", "AWS_SECRET_ACCESS_KEY=<KEY>"),
        (f"'token': '{RANDOM[:32]}'", "'token': '<KEY>'"),
        (f"password: {RANDOM[:16]}", "password: <KEY>"),
        ("(212) 555-0123, 212-555-0123, 1-212-555-0123", "<PHONE>, <PHONE>, <PHONE>"),
        *((f"paid with {number}.", "paid with <CARD>.") for number in PUBLISHED_TEST_NUMBERS),
        *((f"to {iban} AND soon", "to <IBAN> AND soon") for iban in PUBLISHED_IBANS),
    ],
)
def test_personal_data_are_masked(text: str, expected: str):
    assert masked(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "@property and ann@localhost",
        "the image logo@2x.png",
        "10.0.0.1, 127.0.0.1, 192.168.1.1, 100.64.0.1 and 203.0.113.7 are of no one",
        "version 2.0.0.1, v1.2.3.4, release 4.5.6.7 and section 3.1.4.1",
        "256.1.1.1 and 08.08.08.08 and 1.2.3.4.5",
        "on 2024-05-18 at 12.30, pages 100-200, 3.14159265358979",
        "array([300 200 1000 4000])",
        "4111 1111 1111 1112 fails Luhn, 4222222222222222222222 is long",
        "1000000000000008 and 9999999999999995 pass Luhn and are of no issuer",
        "GB83 WEST 1234 5698 7654 32 fails mod 97",
        "GB25 1234 1234 5698 7654 32 passes mod 97, but its bank has no letters",
        "ISBN 978-3-16-148410-0, 1-800",
        "+1 -1 +3.5e10",
        "at(x)[at] and {at} in x (at) y, array[at].max()",
        "x[2000::100], std::vector, ::1, fe80::1, 2001:db8::8:800:200c:417a, 12:34:56:78:9a:bc",
        "2024:01:02:03:04:05 and abc::def:1 and 2a00:1450 and 2001::5",
        "hotel 0123456789, tell 5551234567 and 030 1234567 alone",
        "AK" + "IAIOSFODNN7EXAMPLE, AKIAXXXXXXXXXXXXXXXX, ghp_" + "x" * 36,
        "sk-toggle-container-with-a-very-long-name-of-a-class",
        "-----BEGIN PRIVATE KEY----- is how it begins, -----END PRIVATE KEY----- how it ends",
        "eyJhbGciOiJIUzI1NiJ8.eyJzdWIiOiIxMjM0NSJ9.notatokenatall",
        "api_key = your_api_key_goes_here, secret_key=config.get_secret_value(1234567890)",
        f"the key = {RANDOM[:20]}, monkey={RANDOM[:20]}, md5: d41d8cd98f00b204e9800998ecf8427e",
        "Tel. 123 456, Tel. 0123456789012345678",
        f"{'a' * 65}@example.com",
        "2a00::5 and x2a00:1450:4001:82a::200e, xGB82WEST12345698765432",
        "tokens: 1000000000000000000, token = tokenizer_from_pretrained2",
    ],
)
def test_similar_looking_text_is_not_masked(text: str):
    assert masked(text) == text


def test_a_span_has_a_position_and_no_text():
    text = "ann@example.com wrote to bob@example.com, ann@example.com to 8.8.8.8"
    _, spans = mask(text, PII(), key=b"secret")
    assert [(span.kind, text[span.start : span.start + span.length]) for span in spans] == [
        ("EMAIL", "ann@example.com"),
        ("EMAIL", "bob@example.com"),
        ("EMAIL", "ann@example.com"),
        ("IP", "8.8.8.8"),
    ]
    digest = hashlib.blake2b(b"ann@example.com", digest_size=8, key=b"secret").hexdigest()
    assert spans[0].digest == spans[2].digest == digest
    assert spans[1].digest != digest
    assert "ann" not in str(spans)


def test_only_the_chosen_kinds_are_masked():
    text = "ann@example.com 8.8.8.8"
    assert masked(text, kinds=("IP",)) == "ann@example.com <IP>"
    assert masked(text, kinds=()) == text


@pytest.mark.parametrize(("allowed", "broken"), [(None, False), (2, False), (1, True), (0, True)])
def test_a_document_of_too_many_finds_breaks_a_rule(allowed: int | None, broken: bool):
    settings = PII(max_per_document=allowed)
    _, spans = mask("ann@example.com, bob@example.com", settings)
    columns = {"pii_finds": np.array([len(spans)])}
    assert any(bool(limit.mark_broken(columns)[0]) for limit in settings.iterate_limits()) is broken


def test_the_first_of_two_matching_kinds_masks():
    assert masked("4111111111111111@example.com") == "<EMAIL>"


def test_a_find_that_another_had_hidden_is_found_as_well():
    assert masked("8.8.8.8-ann@example.com") == masked(masked("8.8.8.8-ann@example.com"))


@given(st.one_of(st.lists(pieces, max_size=12).map("".join), st.text(st.characters())))
@example("me@x.version 8.8.8.8")
@example("ann@example.com" * 3)
def test_a_masked_text_has_nothing_left_to_mask(text: str):
    once, spans = mask(text, PII())
    assert mask(once, PII()) == (once, ())
    # Outside the spans, nothing has changed.
    rebuilt = ""
    at = 0
    for span in spans:
        rebuilt += text[at : span.start] + f"<{span.kind}>"
        at = span.start + span.length
    assert rebuilt + text[at:] == once


@given(st.lists(st.sampled_from(FINDS), max_size=8))
def test_separate_finds_are_all_found(finds: list[str]):
    _, spans = mask(" | ".join(finds), PII())
    assert [span.length for span in spans] == [len(find) for find in finds]


@pytest.mark.parametrize(
    "text",
    [
        *("a@", "a.", "1.", "+1", "1 ", "AB12 ", "1234 ", "(212) ", "+1 2", "tel 1", "a (at) "),
        *("sk-", "AKIA", "eyJ.", "eyJa", "2a00:", "token=a", "api_key = ", "AA00"),
        "-----BEGIN PRIVATE KEY-----",
    ],
)
def test_no_text_takes_more_than_linear_time(text: str):
    # Quadratic patterns would take hours. No text has anything to mask.
    assert masked(text * 200_000) == text * 200_000


@pytest.mark.data
def test_e_mail_addresses_in_notes_of_companies_are_masked(
    capsys: pytest.CaptureFixture[str],
):
    folder = os.environ.get("TRAINRIG_TEST_DATA")
    if not folder:
        pytest.skip("TRAINRIG_TEST_DATA is not set")
    rows = Path(folder, "sets/enterprise_pii_classification.jsonl").read_text().splitlines()
    found = 0
    sensitive = 0
    both = 0
    for row in map(json.loads, rows):
        text, spans = mask(row["query"].split("'''")[1], PII())
        label = row["choices"][row["gold"]] == "yes"
        found = found + bool(spans)
        sensitive = sensitive + label
        both += label and bool(spans)
        assert not re.search(r"\w@\w+\.\w", text)
    with capsys.disabled():
        # The labels are about business secrets: no sensitive passage contains an e-mail address.
        print(f"\nPII on {len(rows)} passages: precision {both}/{found}, recall {both}/{sensitive}")
    assert found
