"""Shares of generated personal data that are found, and of similar strings that are not."""

import random
import string
from collections import Counter
from collections.abc import Callable

import pytest
from stdnum import luhn, verhoeff
from stdnum.br import cpf
from stdnum.cn import ric
from stdnum.in_ import aadhaar
from stdnum.jp import in_ as my_number
from stdnum.mx import curp
from stdnum.ru import inn

from trainrig.corpus.rewrite.pii_mask import PII, mask

Draw = random.Random
NAMES = ("jane", "li.wei", "omar_k", "anna.berg7", "sofia")
HOSTS = ("example", "lantern", "birchmail")
ALNUM = string.ascii_letters + string.digits
HEX = "0123456789abcdef"


def take(draw: Draw, count: int, signs: str = ALNUM) -> str:
    return "".join(draw.choices(signs, k=count))


DISGUISES = (
    "{} [at] {} [dot] com",
    "{}(at){}.org",
    "{} (at) {} (dot) net",
    "{}[at]{}[.]com",
    "{} {{at}} {} {{dot}} com",
    "{}<at>{}<dot>org",
    "{} AT {} DOT com",
    "{}&#64;{}.com",
    "{}&#x40;{}&#46;org",
    "{}&commat;{}.net",
    "{}%40{}.com",
    "{}@{} dot com",
    "{}@{}[dot]com",
    "{} -at- {} -dot- com",
    "{}＠{}.com",
    "e-mail: {} at {} dot com",
    "write to {} @ {} . com",
)


def make_mail(draw: Draw) -> str:
    return draw.choice(DISGUISES).format(draw.choice(NAMES), draw.choice(HOSTS))


def make_key(draw: Draw) -> str:
    word = ALNUM + "_-"
    forms: tuple[Callable[[], str], ...] = (
        lambda: "AK" + "IA" + take(draw, 16, string.ascii_uppercase + "234567"),
        lambda: "gh" + "p_" + take(draw, 36),
        lambda: "gl" + "pat-" + take(draw, 20),
        lambda: f"xo{'xb'}-{take(draw, 12, string.digits)}-{take(draw, 24)}",
        lambda: "sk" + "_live_" + take(draw, 24),
        lambda: "sk" + "-ant-api03-" + take(draw, 93, word) + "AA",
        lambda: "sk" + "-proj-" + take(draw, 74, word) + "T3Blbk" + take(draw, 20),
        lambda: "hf" + "_" + take(draw, 34, string.ascii_letters),
        lambda: "np" + "m_" + take(draw, 36),
        lambda: "pypi" + "-AgEIcHlwaS5vcmc" + take(draw, 80, word),
        lambda: "S" + "G." + take(draw, 22, word) + "." + take(draw, 43, word),
        lambda: "AI" + "za" + take(draw, 35, word),
        lambda: take(draw, 10, "123456789") + ":AA" + take(draw, 33, word),
        lambda: "S" + "K" + take(draw, 32, HEX),
        lambda: "dap" + "i" + take(draw, 32, HEX),
        lambda: "hv" + "s." + take(draw, 95, word),
        lambda: f"M{take(draw, 23)}.{take(draw, 6, word)}.{take(draw, 27, word)}",
        lambda: f"{take(draw, 3)}8Q~{take(draw, 34)}",
        lambda: f"AccountKey={take(draw, 86, ALNUM + '+/')}==",
        lambda: f"Authorization: Bearer {take(draw, 40)}",
        lambda: f"<apiKey>{take(draw, 32)}</apiKey>",
        lambda: f'"client_secret": "{take(draw, 32)}"',
        lambda: f"SECRET_KEY_BASE={take(draw, 64, HEX)}",
        lambda: f"postgres://admin:{take(draw, 11)}7@db/x",
    )
    return draw.choice(forms)()


def make_id(draw: Draw) -> str:
    nine = take(draw, 9, "123456789")
    taxpayer = f"77{take(draw, 8, string.digits)}"
    body = f"110105{draw.randrange(1950, 2010)}0{draw.randrange(1, 10)}1{draw.randrange(1, 9)}123"
    resident = f"2{take(draw, 10, string.digits)}"
    person = f"BOXW{draw.randrange(50, 99)}0{draw.randrange(1, 10)}1{draw.randrange(1, 9)}HNERXN0"
    forms = (
        cpf.format(nine + cpf._calc_check_digits(nine)),
        body + ric.calc_check_digit(f"{body}0"),  # ignores the last digit
        f"Aadhaar {aadhaar.format(resident + verhoeff.calc_check_digit(resident))}",
        f"ИНН {taxpayer + inn.calc_personal_check_digits(taxpayer)}",
        f"個人番号: {take_my_number(draw)}",
        person + curp.calc_check_digit(person),
    )
    return draw.choice(forms)


def take_my_number(draw: Draw) -> str:
    body = take(draw, 11, "123456789")
    return body + my_number.calc_check_digit(body)


def make_address(draw: Draw) -> str:
    address = f"{draw.randrange(81, 95)}.{draw.randrange(200, 250)}.14.{draw.randrange(1, 250)}"
    form = draw.choice(
        ("SRC={}", "client_ip={}", "<ip>{}</ip>", '"host": "{}"', "remote_addr: {}", "from {}")
    )
    return form.format(address)


def make_card(draw: Draw) -> str:
    body = "4242 42" + take(draw, 2, string.digits) + " " + take(draw, 4, string.digits) + " "
    body += take(draw, 3, string.digits)
    return body + luhn.calc_check_digit(body.replace(" ", ""))


MAKERS = {
    "EMAIL": make_mail,
    "KEY": make_key,
    "NATIONAL_ID": make_id,
    "IP": make_address,
    "CARD": make_card,
}
WORDS = ("server", "localhost", "phone", "items", "work", "street")
SENTENCE_STARTS = ("In this", "No such", "It was a", "My", "Be sure. The")
VERBS = ("register", "donate", "advertise", "handl", "locat", "comment")
LOOK_ALIKES: tuple[Callable[[Draw], str], ...] = (
    lambda draw: f"commit {take(draw, 40, HEX)}",
    lambda draw: f"sha256:{take(draw, 64, HEX)}",
    lambda draw: f"order {take(draw, 12, string.digits)}",
    lambda draw: f"ISBN 978{take(draw, 10, string.digits)}",
    lambda draw: f"version={draw.randrange(20, 130)}.0.{draw.randrange(99)}.{draw.randrange(99)}",
    lambda draw: f"<version>{draw.randrange(20, 130)}.200.14.9</version>",
    lambda draw: f"numpy=={draw.randrange(1, 9)}.2.3.{draw.randrange(1, 9)}",
    lambda draw: f"look at {draw.choice(HOSTS)} dot com for prices",
    lambda draw: f"Node.js at {draw.choice(HOSTS)}.org",
    lambda draw: f"section {draw.randrange(9)}(a) of the act. The court",
    lambda draw: f"array[at].max({draw.randrange(99)})",
    lambda draw: f"find us @ {draw.choice(HOSTS)}.com",
    lambda draw: f"the token is_read_by_the_parser_{draw.randrange(9)}",
    lambda draw: f"secret_key=config.get_secret_value({take(draw, 9, string.digits)})",
    lambda draw: f"part {take(draw, 5, string.digits)}-{take(draw, 7, string.digits)}-Z",
    lambda draw: f"{take(draw, 8, string.digits)}{draw.choice('TRWAG')} in stock",
    lambda draw: f"at {take(draw, 13, '123456789')} ms",
    lambda draw: f"/blob/{take(draw, 40, HEX)}/x.py",
    lambda draw: f"uuid {take(draw, 8, HEX)}-{take(draw, 4, HEX)}-4{take(draw, 3, HEX)}-a123",
    lambda draw: f"sk-button-with-a-long-class-name-{draw.randrange(9)}",
    lambda draw: f"ssh root@{draw.choice(WORDS)}. {draw.choice(SENTENCE_STARTS)} case",
    lambda draw: f"to {draw.choice(VERBS)} at {draw.choice(HOSTS)} dot com",
    lambda draw: f"Contact us to {draw.choice(VERBS)} at {draw.choice(HOSTS)} dot com",
    lambda draw: f"by {draw.choice(WORDS)} at {draw.choice(HOSTS)} dot com",
    lambda draw: f"Mail is {draw.choice(VERBS)}ed at {draw.choice(HOSTS)}.com",
    lambda draw: f"Contact: Headquarters at {draw.choice(HOSTS)}.com",
    lambda draw: f"else if (at) this.{draw.choice(WORDS)}.push(at)",
    lambda draw: f'pwd="/home/u{draw.randrange(9)}/{draw.choice(WORDS)}.y-z"',
    lambda draw: f"SIN {take(draw, 9, string.digits)} pesos, sin {take(draw, 9, string.digits)}",
    lambda draw: f"uid: 2{take(draw, 11, string.digits)}",
    lambda draw: f"serial {take(draw, 15, string.digits)}",
    lambda draw: f"Upgraded from: {draw.randrange(4, 9)}.8.0.12 to: {draw.randrange(4, 9)}.1.2.7",
)


@pytest.mark.parametrize("seed", range(3))
def test_of_200_planted_items_at_least_190_are_found(seed: int):
    draw = random.Random(seed)
    missed: Counter[str] = Counter()
    for number in range(200):
        kind = list(MAKERS)[number % len(MAKERS)]
        item = MAKERS[kind](draw)
        masked, spans = mask(f"You will see {item} in the file.", PII())
        missed[kind] += kind not in {span.kind for span in spans} or item in masked
    assert missed.total() <= 10, missed


@pytest.mark.parametrize("seed", range(3))
def test_of_200_look_alikes_at_most_5_are_masked(seed: int):
    draw = random.Random(seed)
    texts = [make(draw) for make in LOOK_ALIKES for _ in range(10)]
    masked = [text for text in texts if mask(f"You will see {text} there.", PII())[1]]
    assert len(masked) <= 5, masked


@pytest.mark.parametrize(
    "text",
    [
        *("ssh root@server. In this case", "user@localhost. No idea", "P@ssword. My friend"),
        *(
            "5@shop. No more",
            "mail@work. It was",
            "mail @ work. It was late",
            "he @ home . It rains",
        ),
        *("to register at example dot com", "or donate at patreon dot com"),
        *("by phone at amazon dot com", "Want to advertise at example dot com"),
        *("Mail is handled at google.com", "Mail is handled at google dot com"),
        *("Their address is located at bitcoin.org", "Contact: Headquarters at example.com"),
        *("Write to customers at amazon.com", "Register at example dot com"),
        *("else if (at) this.items.push(at)", "return arr[at] foo.bar", "if (at) this.app"),
        *('pwd="/home/u1/x.y"', 'pwd = "C:/src/x1,y"', "os.chdir(pwd='/usr/lib64/a-b')"),
        *(r"password = 'C:\src1\x,y'", "export PWD=/home/user1/project22/src3/build"),
        *("un total de 123 456 782 sin 123456782", "sin 123456782 datos", "NAS 123456782 Bytes"),
        *("uid: 234567890124", "30-50001091-2", "CUIT 30-50001091-2"),
        *("Upgraded from: 4.8.0.12 to: 5.1.2.7", "updated from: 64.8.0.12"),
    ],
)
def test_prose_and_code_stay(text: str):
    assert mask(text, PII()) == (text, ())


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        *((f"{name} 93.184.216.34 is down", "IP") for name in ("<BOB>", "<TD>", "<TD><B>")),
        ("<TD>93.184.216.34 <BR>", "IP"),
        ("packets from: 93.184.216.34 to: 94.185.217.35", "IP"),
        ("write to jane at example dot com", "EMAIL"),
        ("Contact: sales at example.com", "EMAIL"),
        ("ann @ example . com", "EMAIL"),
        ("ann@example dot com", "EMAIL"),
        ("SIN: 123 456 782", "NATIONAL_ID"),
        ("Numéro d'assurance sociale (NAS) : 123 456 782", "NATIONAL_ID"),
        ("CUIT 20-05536168-2", "NATIONAL_ID"),
        ("2 95 10 99 126 111 93", "NATIONAL_ID"),
        ("295109912611193", "NATIONAL_ID"),
        ("password = 'x1;y-Z!w9'", "KEY"),
    ],
)
def test_near_forms_are_masked(text: str, kind: str):
    masked, spans = mask(text, PII())
    assert {span.kind for span in spans} == {kind}
    assert mask(masked, PII()) == (masked, ())


def test_few_numbers_of_15_digits_are_masked():
    draw = random.Random(0)
    numbers = [take(draw, 15, string.digits) for _ in range(2_000)]
    found = sum(span.kind == "NATIONAL_ID" for number in numbers for span in mask(number, PII())[1])
    assert found <= 4


@pytest.mark.parametrize("kind", MAKERS)
def test_a_masked_item_has_nothing_left_to_mask(kind: str):
    draw = random.Random(kind)
    for _ in range(50):
        once, _ = mask(f"{MAKERS[kind](draw)}, {MAKERS[kind](draw)}", PII())
        assert mask(once, PII()) == (once, ())


@pytest.mark.parametrize(
    "text",
    [
        *("&#64;", "a&#64;b.", "%40", "a @ ", "a [at] b.", "-at-", "a-at-b-dot-", "://a:b1@"),
        *("12 34 56 a", "123-", "A1b2C3d4E5f6G7h8", "12345678:AA", "<a>1.1.1.1", "ip=", "Q~"),
    ],
)
def test_no_disguise_takes_more_than_linear_time(text: str):
    mask(text * 50_000, PII())  # quadratic patterns would take hours


def test_pseudonyms_are_equal_for_equal_values_of_a_document():
    text = "ann@example.com, bob@x.org, Ann [at] example [dot] com; +49 30 1234567, +49-30-1234567"
    masked, _ = mask(text, PII(pseudonyms=True))
    assert masked == "<EMAIL_1>, <EMAIL_2>, <EMAIL_1>; <PHONE_1>, <PHONE_1>"
    assert mask(masked, PII(pseudonyms=True)) == (masked, ())
