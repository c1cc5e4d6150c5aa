import ipaddress
import re
from collections import Counter

from trainrig.quickstart.site.personal_data import make_personal_items

ITEMS = make_personal_items(1_000, seed=0)
TEST_CARDS = ("424242", "411111", "555555", "378282")


def list_items(what, hard=False):
    return [item for item in ITEMS if item.what == what and item.hard == hard]


def test_kinds_take_turns_and_about_a_tenth_is_hard():
    assert Counter(item.what for item in ITEMS) == dict.fromkeys(
        ("EMAIL", "IP", "PHONE", "CARD", "IBAN"), 200
    )
    assert 0.07 < sum(item.hard for item in ITEMS) / len(ITEMS) < 0.13


def test_each_sentence_holds_its_value_once_and_no_value_comes_twice():
    assert all(item.sentence.count(item.value) == 1 for item in ITEMS)
    assert len({item.value for item in ITEMS}) == len(ITEMS)


def test_the_first_items_do_not_depend_on_how_many_follow():
    assert make_personal_items(50, seed=0) == ITEMS[:50]
    assert make_personal_items(50, seed=1) != ITEMS[:50]


def test_emails_are_at_domains_kept_for_examples():
    for item in list_items("EMAIL"):
        assert re.fullmatch(r"[a-z._-]+\d+@example\.(com|org|net)", item.value)
    for item in list_items("EMAIL", hard=True):
        assert "@" not in item.value
        assert re.search(r" at example dot (com|org|net)$", item.value)


def test_addresses_are_routable_and_no_multicast():
    addresses = [ipaddress.ip_address(item.value) for item in list_items("IP")]
    assert all(address.is_global and not address.is_multicast for address in addresses)
    assert len({address.packed[0] for address in addresses}) > 50


def test_phones_are_the_numbers_kept_for_fiction():
    for item in list_items("PHONE"):
        assert re.fullmatch(r"1?\d{3}55501\d\d", re.sub(r"\D", "", item.value))
    for item in list_items("PHONE", hard=True):
        assert re.search(r"five five five zero one \w+ \w+$", item.value)


def test_cards_are_of_test_ranges_and_pass_luhn():
    for item in list_items("CARD"):
        digits = [int(digit) for digit in item.value if digit.isdigit()]
        assert "".join(map(str, digits)).startswith(TEST_CARDS)
        doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
        assert (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def test_ibans_have_their_country_s_length_and_leave_one_modulo_97():
    lengths = {"DE": 22, "GB": 22, "NL": 18}
    for item in list_items("IBAN"):
        iban = item.value.replace(" ", "")
        assert len(iban) == lengths[iban[:2]]
        turned = iban[4:] + iban[:4]
        assert int("".join(str(int(letter, 36)) for letter in turned)) % 97 == 1
        assert iban[2:4] not in ("00", "01", "99")  # ISO 13616 gives 02 to 98
