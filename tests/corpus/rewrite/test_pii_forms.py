"""Tables of matches and of similar strings that must not match, for each kind."""

import random
import re

import pytest
from stdnum import iban, luhn, numdb

from trainrig.corpus.rewrite.pii_mask import PII, mask
from trainrig.quickstart.site.personal_data import make_personal_items

SECTIONS = """Section 4.2.1.3 says more|see 8.1.2.3 for details|§ 5.3.2.1|§5.3.2.1
1.2.3.4 Introduction
Chapter 3.1.4.1|as clause 6.1.2.1 requires|Appendix 1.2.3.4|(see 4.3.2.1 and 4.3.2.2)
Table 3.2.1.1
Figure 2.1.1.4 shows|subsection 9.2.3.1|in 7.3.1.2 above|step 1.2.2.1|Sections 2.3.4.5 and 2.3.4.6
2.3.1.1. Scope|3.4.5.6 Server configuration|Art. 12.1.3.2|rule 11.2.1.4 of the code
under 22.1.3.4, it"""
VERSIONS = """version 2.0.0.1|v1.2.3.4|Firefox 3.6.28.1|libfoo-1.2.3.4.tar.gz
Django 1.2.3.4|upgrade to 11.4.1.2|Python 2.7.18.1 is old|OpenSSL 1.0.2.1|build 7.8.9.11
from 5.6.7.8 to 5.6.7.9
requires foo==1.2.3.4|foo>=2.1.0.5|Opera/12.16.2.1 (X11)|release 4.5.6.7
Update 115.0.2.1 fixes it
versions 1.1.2.3, 1.1.2.4 and 1.1.2.5|firmware 192.0.32.10|Firefox 115.0.2.1
the 2.2.16.1 release
Ver. 31.0.15.28"""
COORDINATES = """+48.858370, +2.294481|+40.7128-074.0060/|48.8583701, 2.2944813
+12.971598 +77.594562
at +51.500729 latitude|(37.774929, -122.419416)|geo:+37.786971,-122.399677|+35.68950+139.69171/
N +46.2276 E +2.2137|+52.520008|+27.5916+086.5640+8850/"""
ADDRESSES = """from 8.8.8.8|the server at 12.34.56.7|IP: 5.6.7.8|ping 4.3.2.1|http://5.9.13.7/x
104.16.132.229 - - [10/Oct|client 93.184.216.34 connected|blocked 23.45.12.9|ssh root@5.9.1.2
traffic from 17.5.7.8|5.9.0.0/16|12.34.56.7:8080|hosts 5.6.7.8 and 5.6.7.9"""
PHONES = """020 7946 0958|(020) 7946 0958|0161 496 0000|07700 900123|212 555 0123|(212) 555 0123
030 123456|0151 23456789|030/123456|01 23 45 67 89|912 34 56 78|06 1234 5678|020-123 4567
044 668 18 00|(02) 9374 4000|1300 123 456|098765 43210|03-1234-5678|(11) 91234-5678|22 123 45 67
33 12 34 56|(0212) 123 45 67"""


def rows(table: str) -> list[str]:
    return table.replace("\n", "|").split("|")


def masked(text: str) -> str:
    return mask(text, PII())[0]


@pytest.mark.parametrize("text", [*rows(SECTIONS), *rows(VERSIONS), *rows(COORDINATES)])
def test_numbers_of_sections_versions_and_places_are_left(text: str):
    assert masked(text) == text


@pytest.mark.parametrize("text", rows(ADDRESSES))
def test_addresses_are_masked_next_to_a_label(text: str):
    assert "<IP>" in masked(text)
    assert masked(masked(text)) == masked(text)


@pytest.mark.parametrize(
    "sentence",
    [
        "call us at {}",
        "Call us on {} today.",
        "Please phone {} for details",
        "ring {}",
        "Phone number: {}",
        "you can reach our office by phone at {}",
        "Contact us: {}",
        "To book, text {}",
    ],
)
@pytest.mark.parametrize("number", rows(PHONES))
def test_national_numbers_are_masked_after_words_for_telephone(sentence, number):
    assert masked(sentence.format(number)) == sentence.format("<PHONE>")


def test_an_area_code_in_brackets_that_begins_with_zero_needs_no_word():
    assert masked("(020) 7946 0958") == "<PHONE>"


# Format of the account number by country, such as 8!n10!n: 8 digits and 10 digits.
ACCOUNT_FORMATS = {low: facts["bban"] for _, low, _, facts, _ in numdb.get("iban").prefixes}


@pytest.mark.parametrize("country", ACCOUNT_FORMATS)
def test_accounts_of_every_country_are_masked_in_capitals_and_small_letters(country: str):
    draw = random.Random(country)
    signs = {"n": "0123456789", "c": "0123456789", "a": "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
    account = "".join(
        draw.choice(signs[kind])
        for count, kind in re.findall("([0-9]+)!([nac])", ACCOUNT_FORMATS[country])
        for _ in range(int(count))
    )
    check = int(iban.calc_check_digits(f"{country}00{account}"))
    number = f"{country}{check:02}{account}"
    in_fours = " ".join(number[at : at + 4] for at in range(0, len(number), 4))
    for form in (number, in_fours, number.lower(), in_fours.lower()):
        assert masked(f"to {form}.") == "to <IBAN>."
    wrong = f"{country}{(check + 1) % 100:02}{account}"
    assert "<IBAN>" not in masked(wrong)


@pytest.mark.parametrize("prefix", ["62", "6221", "50", "56", "58", "63", "67", "69", "2200"])
@pytest.mark.parametrize("length", [16, 19])
def test_cards_of_unionpay_maestro_and_mir_are_masked(prefix: str, length: int):
    body = (prefix + "1203405607809012345")[: length - 1]
    card = body + luhn.calc_check_digit(body)
    in_fours = " ".join(card[at : at + 4] for at in range(0, length, 4))
    assert masked(f"with {card}.") == "with <CARD>."
    assert masked(f"with {in_fours}.") == "with <CARD>."


def test_a_short_maestro_card_needs_a_word_before_it():
    assert masked("my Maestro card 501800000009 expired") == "my Maestro card <CARD> expired"
    assert masked("part 501800000009 is out of stock") == "part 501800000009 is out of stock"


@pytest.mark.parametrize(
    "key",
    [
        "do" + "p_v1_" + "0123456789abcdef" * 4,
        "hooks." + "slack.com/services/T01ABCDEF23/B04GHJKL567/k3Jx9QmZ7tBvR2nWcY5dLhG8",
        "discord" + ".com/api/webhooks/123456789012345678/" + "k3Jx9QmZ7tBvR2nWcY5d" * 3 + "abcd",
    ],
)
def test_tokens_of_digitalocean_and_webhooks_are_masked(key: str):
    assert masked(f"at https://{key} now") == "at https://<KEY> now"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SSN 123-45-6789", "SSN <SSN>"),
        ("123-45-6789", "<SSN>"),
        ("my social security number is 123 45 6789", "my social security number is <SSN>"),
        ("ssn: 123456789", "ssn: <SSN>"),
        ("SSN 000-12-3456, 666-12-3456, 900-12-3456, 123-00-1234, 123-45-0000, 078-05-1120", None),
        ("SSN 457-55-5462, printed in advertisements", None),
        ("123 45 6789 and 123456789", None),
        ("+81 158-23-2012", "<PHONE>"),
        ("part 123-45-67890, 0123-45-6789", None),
    ],
)
def test_social_security_numbers(text: str, expected: str | None):
    assert masked(text) == (text if expected is None else expected)


@pytest.mark.parametrize("seed", range(3))
def test_all_personal_data_that_the_quickstart_injects_are_masked(seed: int):
    for item in make_personal_items(120, seed):
        assert item.value not in masked(item.sentence)


@pytest.mark.parametrize(
    "text",
    [
        "look at example dot com",
        "one two three four five six seven",
        "a scheduled call on 2021-03-25, the next call on 29.03.2021",
    ],
)
def test_words_and_dates_that_are_no_address_and_no_number_are_left(text: str):
    assert masked(text) == text
