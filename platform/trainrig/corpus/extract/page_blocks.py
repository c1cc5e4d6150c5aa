"""A page's content as blocks (lines of text), each with counts that describe it.

The input is resiliparse's `minimal_html`: one line per paragraph, heading, list item or line break,
with few tags besides <p>, <h1> to <h6>, <ul>, <ol>, <li>, <pre> and <a>. One pass over its bytes
counts everything, without making strings. All values are whole numbers, so machines cannot differ
in rounding.

TOPICS are words typical of navigation and other furniture, in the most common languages. "Share
this article" and a sentence about shares differ only by the block's length and position as well;
the trees combine these.
"""

import functools
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trainrig.corpus.compiled import compile_nogil

# Lower case, letters and digits only: "e-mail" is read as two words.
TOPICS: Final[dict[str, str]] = {
    "share": """
        share shares shared tweet facebook twitter whatsapp pinterest instagram linkedin telegram
        reddit tumblr flipboard email mail print pdf follow like likes gefällt teilen drucken
        weiterleiten partager imprimer suivez compartir compartilhar imprimir síguenos condividi
        stampa delen udostępnij поделиться rss feed youtube xing pocket messenger copy link
    """,
    "comment": """
        comment comments reply replies respond discussion forum login log sign register registrieren
        anmelden kommentar kommentare kommentieren antworten commentaire commentaires répondre
        connexion comentario comentarios responder comentar commenti rispondi reacties komentarze
        комментарии ответить report abuse moderated disqus username password
    """,
    "related": """
        related recommended similar more also popular trending latest next previous prev read see
        mehr auch weitere weiterlesen lesen ähnliche beliebt neueste thema vorheriger nächster
        aussi lire suivant précédent articles similaires más también leer relacionado relacionadas
        anterior siguiente leia mais veja leggi anche altri lees ook czytaj także читайте также
        stories story sponsored promoted
    """,
    "byline": """
        by author authors posted published publish updated update modified written editor staff
        reporter correspondent von autor autorin redaktion veröffentlicht aktualisiert stand uhr par
        publié mis jour auteur rédaction por publicado actualizado redacción autore pubblicato door
        autor opublikowano автор min minutes minuten read ago gmt utc cet est pm am
    """,
    "photo": """
        photo photos photograph picture image images getty reuters afp dpa ap imago shutterstock
        unsplash pixabay flickr courtesy credit credits caption foto fotos bild bilder quelle
        bildquelle copyright symbolbild gallery galerie video crédit légende imagen fuente cortesía
        imagem immagine zdjęcie фото source illustration screenshot play watch
    """,
    "legal": """
        copyright rights reserved privacy policy terms conditions use cookies cookie disclaimer
        imprint impressum datenschutz datenschutzerklärung agb nutzungsbedingungen rechte
        vorbehalten mentions légales droits réservés confidentialité derechos reservados privacidad
        aviso direitos diritti riservati prawa zastrzeżone consent accept akzeptieren javascript
        browser enable license licensed contact kontakt contacto
    """,
    "subscribe": """
        subscribe subscription subscribers newsletter newsletters signup free trial account premium
        abo abonnieren abonnement kostenlos jetzt testen bestellen abonnez inscrivez inscription
        suscríbete suscribirse boletín assine iscriviti rejestracja подпишитесь download app shop
        buy cart order price offer donate donation support advertisement advertising anzeige werbung
        publicité publicidad ad ads sponsor affiliate
    """,
    "navigation": """
        home menu search skip top back page pages archive archives category categories tag tags
        filed under section sections sitemap about navigation startseite suche menü nach oben zurück
        seite kategorie kategorien schlagwörter accueil recherche retour catégorie étiquettes inicio
        buscar volver categoría categorías etiquetas cerca categoria view views all show hide click
        here close loading toggle edit
    """,
}


TEXT, PARAGRAPH, H1, H2, H3, H4, ITEM, CODE, ROW = range(9)  # kinds of block; H4 includes H5 and H6

# Columns of a block's counts; one more column per topic follows, with the words of that topic.
COLUMNS: Final = (
    "kind",
    "characters",  # a run of white space counts as one
    "words",
    "link_characters",
    "links",
    "ends_sentence",  # with . ! ? … or similar, possibly inside quotation marks
    "stops",  # commas, full stops and semicolons
    "digits",
    "capitals",  # words that begin with a capital
    "dates",  # years from 1900 to 2099, and times of day
    "gap",  # blank lines before the block
    "opens",  # 1 if the block begins an element, 0 if it continues one after a line break
    "list_depth",
    "ends_colon",
    "ends_ellipsis",
    "separators",  # | » › · • /
    "title_words",  # words that the page's title has as well
)
(
    KIND,
    CHARACTERS,
    WORDS,
    LINK_CHARACTERS,
    LINKS,
    ENDS_SENTENCE,
    STOPS,
    DIGITS,
    CAPITALS,
    DATES,
    GAP,
    OPENS,
    LIST_DEPTH,
    ENDS_COLON,
    ENDS_ELLIPSIS,
    SEPARATORS,
    TITLE_WORDS,
) = range(len(COLUMNS))
FIRST_TOPIC: Final = len(COLUMNS)
WIDTH: Final = FIRST_TOPIC + len(TOPICS)

_SLOTS: Final = 2048  # slots of the word table, a power of two; about 400 are used
_TITLE_BITS: Final = 1024
_FNV_START: Final = np.uint64(0xCBF29CE484222325)
_FNV_PRIME: Final = np.uint64(0x100000001B3)


class PageBlocks:
    """The blocks of one page, in page order."""

    def __init__(self, html: bytes, title: str) -> None:
        data = np.frombuffer(html, np.uint8)
        keys, topics = _build_word_table()
        title_bits = np.zeros(_TITLE_BITS, np.bool_)
        mark_words(np.frombuffer(title.encode("utf-8", "ignore"), np.uint8), title_bits)
        room = html.count(b"\n") + 2
        self.spans = np.empty((room, 2), np.int64)  # [blocks, 2] byte offsets in `html`: start, end
        self.numbers = np.zeros((room, WIDTH), np.int32)
        # hash of the words: equal words have equal digests
        self.digests = np.empty(room, np.uint64)
        count = cut_into_blocks(
            data, keys, topics, title_bits, self.spans, self.numbers, self.digests
        )
        self.spans, self.numbers = self.spans[:count], self.numbers[:count]
        self.digests = self.digests[:count]


@compile_nogil
def update_word_hash(hash_: np.uint64, byte: int, before: int) -> np.uint64:
    """Add one byte, in lower case, to an FNV-1a hash; `before` is the byte before it.

    Lower case is applied to ASCII, and to Latin-1 letters encoded as UTF-8.
    """
    if 65 <= byte <= 90 or (before == 0xC3 and 0x80 <= byte <= 0x9E):
        byte |= 32
    return (hash_ ^ np.uint64(byte)) * _FNV_PRIME


@compile_nogil
def is_word_byte(byte: int) -> bool:
    """Return whether `byte` is part of a word: a letter, a digit, or not ASCII."""
    return byte >= 128 or 97 <= byte <= 122 or 65 <= byte <= 90 or 48 <= byte <= 57


@compile_nogil
def mark_words(text: NDArray[np.uint8], bits: NDArray[np.bool_]) -> None:
    """Set the bit of each word of `text` in `bits`."""
    hash_ = _FNV_START
    length = 0
    before = 0
    for i in range(len(text) + 1):
        byte = int(text[i]) if i < len(text) else 32
        if is_word_byte(byte):
            hash_ = update_word_hash(hash_, byte, before)
            length += 1
        elif length:
            bits[(hash_ ^ (hash_ >> np.uint64(32))) & np.uint64(len(bits) - 1)] = True
            hash_ = _FNV_START
            length = 0
        before = byte


@compile_nogil
def hash_text(text: NDArray[np.uint8]) -> np.uint64:
    """Return the hash of `text` as one word."""
    hash_ = _FNV_START
    before = 0
    for i in range(len(text)):
        hash_ = update_word_hash(hash_, int(text[i]), before)
        before = int(text[i])
    return hash_


@functools.cache
def _build_word_table() -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """Build a hash table (open addressing, 0 is free) of the words of TOPICS with topic bits."""
    keys = np.zeros(_SLOTS, np.uint64)
    topics = np.zeros(_SLOTS, np.int32)
    for topic, words in enumerate(TOPICS.values()):
        for word in words.split():
            key = hash_text(np.frombuffer(word.encode(), np.uint8))
            slot = int(key) % _SLOTS
            while keys[slot] not in (0, key):
                slot = (slot + 1) % _SLOTS
            keys[slot] = key
            topics[slot] |= 1 << topic
    return keys, topics


@compile_nogil
def skip_tag(html: NDArray[np.uint8], i: int) -> int:
    """Return the index after the tag around `i`; a ">" within quotation marks does not end it."""
    quote = 0
    while i < len(html) and (quote or html[i] != 62):
        if quote == 0 and (html[i] == 34 or html[i] == 39):
            quote = int(html[i])
        elif html[i] == quote:
            quote = 0
        i += 1
    return min(i + 1, len(html))


@compile_nogil
def skip_entity(html: NDArray[np.uint8], i: int) -> int:
    """Return the index after the entity whose "&" is just before `i`, or `i` if it is no entity."""
    for at in range(i, min(i + 10, len(html))):
        if html[at] == 59:
            return at + 1
    return i


@compile_nogil
def is_capital(byte: int, after: int) -> bool:
    """Return whether these first two bytes of a word are a Latin, Greek or Cyrillic capital."""
    return (
        65 <= byte <= 90
        or (byte == 0xC3 and 0x80 <= after <= 0x9E)
        or (byte == 0xD0 and 0x90 <= after <= 0xAF)
        or (byte == 0xCE and 0x91 <= after <= 0xA9)
    )


@compile_nogil
def count_word(
    row: NDArray[np.int32],
    hash_: np.uint64,
    keys: NDArray[np.uint64],
    topics: NDArray[np.int32],
    title_bits: NDArray[np.bool_],
) -> None:
    """Add a word, given by its hash, to its block's counts."""
    row[WORDS] += 1
    row[TITLE_WORDS] += title_bits[(hash_ ^ (hash_ >> np.uint64(32))) & np.uint64(_TITLE_BITS - 1)]
    slot = np.int64(hash_ & np.uint64(_SLOTS - 1))
    while keys[slot] != 0:
        if keys[slot] == hash_:
            for topic in range(WIDTH - FIRST_TOPIC):
                row[FIRST_TOPIC + topic] += (topics[slot] >> topic) & 1
            return
        slot = (slot + 1) & (_SLOTS - 1)


@compile_nogil
def set_end_columns(row: NDArray[np.int32], last: int, last_but_one: int) -> None:
    """Set the columns that depend on a block's last two characters (code points)."""
    quoted = last == 34 or last == 41 or last == 0x201C or last == 0x201D or last == 0xBB
    sign = last_but_one if quoted else last
    row[ENDS_SENTENCE] = (
        sign == 46
        or sign == 33
        or sign == 63
        or sign == 0x2026
        or sign == 0x3002
        or sign == 0xFF01
        or sign == 0xFF1F
    )
    row[ENDS_COLON] = last == 58
    row[ENDS_ELLIPSIS] = last == 0x2026 or (last == 46 and last_but_one == 46)


@compile_nogil
def choose_kind(code: bool, heading: int, list_depth: int, paragraph: bool) -> int:
    """Return the kind of a block that begins inside the given elements."""
    if code:
        return CODE
    if heading:
        return min(H1 + heading - 1, H4)
    if list_depth:
        return ITEM
    return PARAGRAPH if paragraph else TEXT


@compile_nogil
def cut_into_blocks(
    html: NDArray[np.uint8],
    keys: NDArray[np.uint64],
    topics: NDArray[np.int32],
    title_bits: NDArray[np.bool_],
    spans: NDArray[np.int64],
    numbers: NDArray[np.int32],
    digests: NDArray[np.uint64],
) -> int:
    """Fill `spans`, `numbers` and `digests` for each block; return the number of blocks."""
    # `count` blocks are done; the others describe the current block
    count = 0
    start = 0
    gap = 0
    opens = 0
    # enclosing elements
    paragraph = False
    heading = 0
    code = False
    link = False
    list_depth = 0
    # `before` is the last byte; `last` and `last_but_one` are code points
    space = True
    before = 0
    last = 0
    last_but_one = 0
    # hash of the current word, and hash of the block's words before it
    hash_ = _FNV_START
    length = 0
    digest = _FNV_START
    # state of the current number
    capital = False
    digits = 0
    century = 0
    after_colon = False
    row = numbers[0]
    i = 0
    end = len(html)
    while i <= end:
        byte = int(html[i]) if i < end else 10
        i += 1
        if byte == 60:  # <
            closing = i < end and html[i] == 47
            at = i + 1 if closing else i
            first = int(html[at]) if at < end else 0
            second = int(html[at + 1]) if at + 1 < end else 0
            third = int(html[at + 2]) if at + 2 < end else 0
            i = skip_tag(html, i)
            alone = not (97 <= second <= 122)  # a name of one letter
            if first == 97 and alone:  # a
                link = not closing
                row[LINKS] += link
            elif first == 112 and (alone or (second == 114 and third == 101)):  # p, pre
                paragraph = alone and not closing
                code = not alone and not closing
                opens = opens if closing else 1
            elif first == 104 and 49 <= second <= 54:  # h1 to h6
                heading = 0 if closing else second - 48
                opens = opens if closing else 1
            elif (first == 117 or first == 111) and second == 108:  # ul, ol
                list_depth = max(0, list_depth + (-1 if closing else 1))
            elif first == 108 and second == 105 and not closing:  # li
                opens = 1
            if first == 97:
                continue  # a link may begin or end inside a word
            byte = 32
        elif byte == 38:  # &: an entity counts as one character, a quotation mark or another sign
            at = i
            i = skip_entity(html, i)
            if i > at:
                byte = 34 if html[at] == 113 else 38
        if is_word_byte(byte):
            if length == 0:
                capital = is_capital(byte, int(html[i]) if i < end else 0)
            hash_ = update_word_hash(hash_, byte, before)
            length += 1
        elif length:
            count_word(row, hash_, keys, topics, title_bits)
            row[CAPITALS] += capital
            digest = (digest ^ hash_) * _FNV_PRIME
            hash_ = _FNV_START
            length = 0
        if 48 <= byte <= 57:
            row[DIGITS] += 1
            century = century * 10 + byte - 48 if digits < 2 else century
            digits += 1
            row[DATES] += after_colon and digits == 2
        else:
            row[DATES] += digits == 4 and (century == 19 or century == 20)
            after_colon = byte == 58 and 0 < digits < 3
            digits = 0
            century = 0
        before = byte
        if byte == 10 and (not code or i > end):
            if row[CHARACTERS] == 0:
                gap += 1
                row[:] = 0
            else:
                spans[count, 0] = start
                spans[count, 1] = min(i - 1, end)
                digests[count] = digest
                row[GAP] = gap
                row[OPENS] = opens
                set_end_columns(row, last, last_but_one)
                count += 1
                row = numbers[count]
                gap = 0
                opens = 0
                space = True
                last = 0
                last_but_one = 0
            start = i
            digest = _FNV_START
        elif byte == 32 or byte == 9 or byte == 10 or byte == 13:
            if byte == 9 and row[CHARACTERS] and row[KIND] == TEXT:
                row[KIND] = ROW
            row[CHARACTERS] += not space
            space = True
        elif 128 <= byte < 192:  # a continuation byte of UTF-8
            space = False
            last = (last << 6) | (byte & 63)
            row[SEPARATORS] += last == 0xBB or last == 0xB7 or last == 0x203A or last == 0x2022
        else:
            space = False
            if row[CHARACTERS] == 0:
                row[LIST_DEPTH] = list_depth
                row[KIND] = choose_kind(code, heading, list_depth, paragraph)
            row[CHARACTERS] += 1
            row[LINK_CHARACTERS] += link
            last_but_one = last
            last = byte if byte < 128 else byte & 31 if byte < 224 else byte & 15
            row[STOPS] += byte == 44 or byte == 46 or byte == 59
            row[SEPARATORS] += byte == 124 or byte == 47
    return count
