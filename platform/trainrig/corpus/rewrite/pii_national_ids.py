"""Finds national identity and tax numbers of persons, by their formats and check digits.

python-stdnum knows the check digits, dates and regions. A number counts alone if its format and
checks leave little to chance, such as a Chinese number with a date, a region and a check digit. A
number that is digits alone, of which one in ten or more is valid, needs a word that announces it.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stdnum.ar import cuit
from stdnum.au import tfn
from stdnum.be import nn
from stdnum.br import cpf
from stdnum.ca import sin
from stdnum.ch import ssn as ahv
from stdnum.cl import rut
from stdnum.cn import ric
from stdnum.de import idnr as german_tax_id
from stdnum.dk import cpr
from stdnum.es import dni, nie
from stdnum.fi import hetu
from stdnum.fr import nir
from stdnum.gb import nhs
from stdnum.id import nik
from stdnum.il import idnr as israeli_id
from stdnum.in_ import aadhaar, pan
from stdnum.it import codicefiscale
from stdnum.jp import in_ as my_number
from stdnum.kr import rrn
from stdnum.mx import curp
from stdnum.nl import bsn
from stdnum.no import fodselsnummer
from stdnum.pk import cnic
from stdnum.pl import pesel
from stdnum.ru import inn
from stdnum.se import personnummer
from stdnum.th import pin
from stdnum.tr import tckimlik
from stdnum.us import itin
from stdnum.za import idnr as south_african_id

from trainrig.corpus.rewrite.pii_views import FindPosition, Views


@dataclass(frozen=True)
class _NationalId:
    """The check of a number, and the words that announce it; None: it counts without a word."""

    is_valid: Callable[[str], bool]
    words: re.Pattern[str] | None = None


def _after(words: str) -> re.Pattern[str]:
    """Return the pattern of a text that ends in one of `words` and a few characters more."""
    return re.compile(rf"(?:{words})[^0-9.\n<>]{{0,24}}>?\Z", re.IGNORECASE)


def _is_snils(number: str) -> bool:
    """Return whether a Russian insurance number of 11 digits has the right check digits."""
    digits = [int(digit) for digit in number if digit.isdigit()]
    total = sum(weight * digit for weight, digit in zip(range(9, 0, -1), digits, strict=False))
    return len(digits) == 11 and total % 101 % 100 == 10 * digits[9] + digits[10]


def _is_french(number: str) -> bool:
    """Return whether a French number has a sex, a month and the right check digits."""
    digits = "".join(filter(str.isdigit, number))
    return digits[0] in "12" and "01" <= digits[3:5] <= "12" and nir.is_valid(digits)


def _is_argentine_person(number: str) -> bool:
    """Return whether an Argentine tax number is a person's. A company's begins with 3."""
    return number[0] == "2" and cuit.is_valid(number)


def _is_nigerian(number: str) -> bool:
    return number[0] in "123456789"  # without a check digit


def _is_insurance_number(number: str) -> bool:
    """Return whether a British number has a prefix that is given out. It has no check digit."""
    prefix = number[:2].upper()
    unused = {"BG", "GB", "KN", "NK", "NT", "TN", "ZZ"}
    return not (set("DFIQUV") & set(prefix)) and prefix[1] != "O" and prefix not in unused


_SNILS_ALONE = _NationalId(_is_snils)
_SNILS = _NationalId(_is_snils, _after("снилс|snils"))
_AADHAAR = _NationalId(aadhaar.is_valid, _after(r"aad?haa?r|uidai|unique identification|आधार"))
_RIC = _NationalId(ric.is_valid)
_ITIN = _NationalId(itin.is_valid, _after(r"\bitin|taxpayer|tax id"))
_NIK = _NationalId(nik.is_valid, _after(r"\bnik\b|\bktp\b|\be-ktp\b|kependudukan"))
_CNIC_ALONE = _NationalId(cnic.is_valid)
_CNIC = _NationalId(cnic.is_valid, _after(r"\bs?n?cnic\b|\bnicop\b|identity card"))
_NIN = _NationalId(_is_nigerian, _after(r"\bNIN\b|national identification n"))
_CPF_ALONE = _NationalId(cpf.is_valid)
_CPF = _NationalId(cpf.is_valid, _after(r"\bcpf\b|cadastro de pessoas?"))
_INN = _NationalId(inn.is_valid, _after(r"\bинн\b|\binn\b|налогоплательщик"))
_CURP = _NationalId(curp.is_valid)
_MY_NUMBER = _NationalId(
    my_number.is_valid, _after("マイナンバー|個人番号|my ?number|individual number")
)
_TFN = _NationalId(tfn.is_valid, _after(r"\btfn\b|tax file"))
# "sin" and "nas" are also words, and a NAS is a disk.
_SIN = _NationalId(
    sin.is_valid,
    _after(
        r"social insurance|assurance sociale|(?-i:\bSIN(?:[:#]| (?=[Nn]o|[Nn]um|[Ii]s\b|[Cc]ard)))"
        r"|(?-i:\bNAS (?=[Nn]o|[Nn]um|[Nn]°))"
    ),
)
_BSN = _NationalId(bsn.is_valid, _after(r"\bbsn\b|burgerservice|sofi-?n"))
_ISRAELI = _NationalId(israeli_id.is_valid, _after(r"teudat zehut|תעודת זהות|ת\.ז|israeli id"))
_NHS = _NationalId(nhs.is_valid, _after(r"\bnhs\b"))
_GERMAN = _NationalId(
    german_tax_id.is_valid,
    _after(r"steuer-?(?:id|ident\w*|nummer)|\bidnr\b|identifikationsn\w+|\btin\b|tax id"),
)
_TCKN = _NationalId(tckimlik.is_valid, _after(r"\bt\.?c\.?\b|\btckn\b|kimlik"))
_PESEL = _NationalId(pesel.is_valid, _after(r"pesel"))
_FODSELSNUMMER = _NationalId(
    fodselsnummer.is_valid, _after(r"f(?:ø|oe|o)dselsn\w+|\bfnr\b|personn\w+|national id")
)
_PIN_ALONE = _NationalId(pin.is_valid)
_PIN = _NationalId(
    pin.is_valid, _after(r"เลขประจำตัวประชาชน|บัตรประชาชน|thai (?:national )?id|citizen id")
)
_SOUTH_AFRICAN = _NationalId(
    south_african_id.is_valid, _after(r"\bid\b(?: n\w+)?|identity|\bsaid\b|\brsa\b")
)
_NIR = _NationalId(_is_french)
_RRN_ALONE = _NationalId(rrn.is_valid)
_RRN = _NationalId(rrn.is_valid, _after(r"주민등록번호|주민번호|\brrn\b|resident registration"))
_CUIT_ALONE = _NationalId(_is_argentine_person)
_CUIT = _NationalId(_is_argentine_person, _after(r"\bcui[tl]\b"))
_DNI = _NationalId(dni.is_valid, _after(r"\bd\.?n\.?i\.?\b|\bnif\b|documento|identidad"))
_NIE = _NationalId(nie.is_valid, _after(r"\bn\.?i\.?[ef]\.?\b|extranjero|documento|identidad"))
_HETU = _NationalId(hetu.is_valid)
_BELGIAN = _NationalId(nn.is_valid)
_AHV = _NationalId(ahv.is_valid)
_RUT = _NationalId(rut.is_valid)
_CPR = _NationalId(cpr.is_valid, _after(r"\bcpr\b|personn\w+"))
_PERSONNUMMER = _NationalId(
    personnummer.is_valid, _after(r"personn\w+|\bpnr\b|personal identity|samordningsn\w+")
)
_PERSONNUMMER_ALONE = _NationalId(personnummer.is_valid)
_PAN = _NationalId(pan.is_valid, _after(r"\bpan\b|permanent account|income.tax"))
_CODICE = _NationalId(codicefiscale.is_valid)
_NINO = _NationalId(
    _is_insurance_number, _after(r"national insurance|\bnino\b|\bni (?:n|#)\w*|\bNI\b")
)

# Kinds of numbers by their shapes, in which digits are "0" and letters are "a".
_BY_SHAPE: dict[bytes, tuple[_NationalId, ...]] = {
    b"0000 0000 0000": (_AADHAAR, _MY_NUMBER),
    b"0000-0000-0000": (_AADHAAR, _MY_NUMBER),
    b"000000000000": (_AADHAAR, _INN, _MY_NUMBER),
    b"000000000000000000": (_RIC,),
    b"00000000000000000a": (_RIC,),
    b"000-00-0000": (_ITIN,),
    b"000 00 0000": (_ITIN,),
    b"0000000000000000": (_NIK,),
    b"00000-0000000-0": (_CNIC_ALONE,),
    b"0000000000000": (_CNIC, _PIN, _SOUTH_AFRICAN, _RRN),
    b"000.000.000-00": (_CPF_ALONE,),
    b"00000000000": (_CPF, _GERMAN, _TCKN, _PESEL, _FODSELSNUMMER, _NIN, _CUIT, _SNILS),
    b"000-000-000 00": (_SNILS_ALONE,),
    b"000 000 000": (_TFN, _SIN, _BSN),
    b"000-000-000": (_TFN, _SIN),
    b"000000000": (_TFN, _SIN, _BSN, _ISRAELI, _ITIN),
    b"000 000 0000": (_NHS,),
    b"0000000000": (_NHS, _CPR, _PERSONNUMMER),
    b"00 000 000 000": (_GERMAN,),
    b"000000 00000": (_FODSELSNUMMER,),
    b"0-0000-00000-00-0": (_PIN_ALONE,),
    b"0 0000 00000 00 0": (_PIN,),
    b"000000 0000 000": (_SOUTH_AFRICAN,),
    b"000000000000000": (_NIR,),
    b"0 00 00 00 000 000 00": (_NIR,),
    b"000000-0000000": (_RRN_ALONE,),
    b"00-00000000-0": (_CUIT_ALONE,),
    b"00000000a": (_DNI,),
    b"00000000-a": (_DNI,),
    b"00.000.000-a": (_DNI, _RUT),
    b"000000-000a": (_HETU,),
    b"00.00.00-000.00": (_BELGIAN,),
    b"000.0000.0000.00": (_AHV,),
    b"00.000.000-0": (_RUT,),
    b"000000-0000": (_PERSONNUMMER, _CPR),
    b"00000000-0000": (_PERSONNUMMER_ALONE,),
}
_WHOLE = re.compile(rb"0(?:[ ./-]?0){7,20}(?:-?a)?")
_NOT_BEFORE = re.compile(r"[\w.+/-]\Z")
_NOT_AFTER = re.compile(r"[\w/-]|[.,][0-9]")
_LONGEST_ANNOUNCEMENT = 48  # characters
_MOST_GROUPS = 8
# Kinds of numbers that contain letters: the shape up to the last digits, the whole shape, the kind.
_WITH_LETTERS: tuple[tuple[re.Pattern[bytes], re.Pattern[bytes], _NationalId], ...] = (
    (re.compile(rb"a000a.?\Z"), re.compile(rb"a{6}00a00a000a"), _CODICE),
    (re.compile(rb"a{4}0{6}aa?\Z"), re.compile(rb"a{4}0{6}a{6}[0a]0"), _CURP),
    (re.compile(rb"a{5}0{4}a.?\Z"), re.compile(rb"a{5}0{4}a"), _PAN),
    (re.compile(rb"a-?0{7}-?a.?\Z"), re.compile(rb"a-?0{7}-?a"), _NIE),
    (re.compile(rb"00 ?00 ?00 ?a.?\Z"), re.compile(rb"aa ?00 ?00 ?00 ?a"), _NINO),
)
# The last two digits before a letter; two fixed characters are found fast.
_BEFORE_LETTER = re.compile(rb"00(?=a|-a|(?<=00 00) a(?!a))")
_LONGEST_WITH_LETTERS = 18  # characters


def find_national_ids(views: Views) -> Iterator[FindPosition]:
    """Yield the spans of national identity and tax numbers of persons."""
    end = 0
    for start in views.number_starts:
        found = _WHOLE.match(views.shape, start) if start >= end else None
        if found and (last := _match_digits(views, start, found.end())):
            end = last
            yield start, end


def find_national_ids_with_letters(views: Views) -> Iterator[FindPosition]:
    """Yield the spans of numbers that contain letters, such as Italian tax codes."""
    end = 0
    for last in _BEFORE_LETTER.finditer(views.shape):
        if last.end() > end and (span := _match_letters(views, last.end())):
            end = span[1]
            yield span


def _match_digits(views: Views, start: int, stop: int) -> int | None:
    """Return the end of the number at `start`; None if there is none.

    A further number may follow after a space, so the number may end at any space before `stop`.
    """
    if start and _NOT_BEFORE.match(views.text, start - 1):
        return None
    for _ in range(_MOST_GROUPS):
        for kind in _BY_SHAPE.get(views.shape[start:stop], ()):
            if _is_national_id(views, start, stop, kind):
                return stop
        stop = views.shape.rfind(b" ", start, stop)
        if stop < 0:
            break
    return None


def _match_letters(views: Views, at: int) -> FindPosition | None:
    """Return the span of the number with letters whose digits end at `at` or contain it."""
    shape = views.shape
    first = max(0, at - _LONGEST_WITH_LETTERS)
    ends = shape[first : at + 2]
    for ending, pattern, kind in _WITH_LETTERS:
        if not ending.search(ends):
            continue
        for found in pattern.finditer(shape, first, at + _LONGEST_WITH_LETTERS):
            start, end = found.span()
            apart = start == 0 or not _NOT_BEFORE.match(views.text, start - 1)
            if start < at < end and apart and _is_national_id(views, start, end, kind):
                return start, end
    return None


def _is_national_id(views: Views, start: int, stop: int, kind: _NationalId) -> bool:
    if _NOT_AFTER.match(views.text, stop):
        return False
    if kind.words:
        before = views.text[max(0, start - _LONGEST_ANNOUNCEMENT) : start]
        if not kind.words.search(before):
            return False
    return kind.is_valid(views.text[start:stop])
