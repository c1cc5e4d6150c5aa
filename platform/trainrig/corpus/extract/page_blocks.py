"""A page's content as blocks (lines of text), each with counts that describe it.

The walk over the page (page_walk.py) gives the text of the blocks and where they stand. One pass
over the text counts everything, without making strings. All values are whole numbers, so machines
cannot differ in rounding.

TOPICS are words typical of navigation and other furniture, in the most common languages. "Share
this article" and a sentence about shares differ only by the block's length and position as well;
the trees combine these.
"""

import functools
from typing import Final

import numpy as np

from trainrig.corpus.array_types import Bools, Int32s, Int64s, UInt8s, UInt64s
from trainrig.corpus.compiled import compile_kernel
from trainrig.corpus.page_walk.page_elements import FURNITURE, HIDDEN, LANDMARK
from trainrig.corpus.page_walk.page_text import (
    ROW_CONTAINER,
    ROW_DEPTH,
    ROW_END,
    ROW_FLAGS,
    ROW_GAP,
    ROW_HAS_MARKER,
    ROW_KIND,
    ROW_LINK_CHARACTERS,
    ROW_LINKS,
    ROW_LISTS,
    ROW_MARKER,
    ROW_NEAR,
    ROW_OPENS,
    ROW_START,
)
from trainrig.corpus.page_walk.page_walk import Walk
from trainrig.corpus.page_walk.word_hash import (
    FNV_PRIME,
    FNV_START,
    build_table,
    find_row,
    is_word_byte,
    update_word_hash,
)

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
    "depth",  # open elements
    "marker",  # 1 with a bullet, 2 with a number
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
    DEPTH,
    MARKER,
    ENDS_COLON,
    ENDS_ELLIPSIS,
    SEPARATORS,
    TITLE_WORDS,
) = range(len(COLUMNS))
FIRST_TOPIC: Final = len(COLUMNS)
WIDTH: Final = FIRST_TOPIC + len(TOPICS)

_SLOTS: Final = 2048  # slots of the word table, a power of two; about 400 are used
_TITLE_BITS: Final = 1024


class PageBlocks:
    """The blocks of one page, in page order."""

    def __init__(self, walked: Walk, title: str) -> None:
        """Describe the blocks that a walk over a page has found."""
        text, rows, containers, _ = walked
        self.text = text  # the blocks' text, with a zero byte after each
        self.spans = rows[:, (ROW_START, ROW_END)]  # [blocks, 2] byte offsets in `text`: start, end
        self.flags = rows[:, ROW_FLAGS]  # flags of all elements around the block
        self.near = rows[:, ROW_NEAR]  # flags of the innermost elements
        self.markers = rows[:, ROW_MARKER]  # numbers of list items
        self.container = rows[:, ROW_CONTAINER]
        self.containers = containers
        self.numbers = np.zeros((len(rows), WIDTH), np.int32)
        # hash of the words: equal words have equal digests
        self.digests = np.empty(len(rows), np.uint64)
        title_bits = np.zeros(_TITLE_BITS, np.bool_)
        mark_words(np.frombuffer(title.encode("utf-8", "ignore"), np.uint8), title_bits)
        count_blocks(text, rows, _build_word_table(), title_bits, self.numbers, self.digests)

    @functools.cached_property
    def outside_furniture(self) -> Bools:
        """Mask of the displayed blocks that the page's structure does not call furniture.

        Furniture is inside of nav, header, footer, aside or form, or of elements with such a role.
        A header of an article, or in the main part, holds its title, so it is no furniture. Some
        pages are one form, or are hidden until a script shows them: a form or hidden elements with
        over half of the page's characters are no furniture.
        """
        flags = self.flags
        characters = self.numbers[:, CHARACTERS]
        inside = flags & (LANDMARK["main"] | LANDMARK["article"]) != 0
        furniture = FURNITURE | HIDDEN | LANDMARK["noscript"]
        for flag in (LANDMARK["form"], HIDDEN):
            if 2 * int(characters[flags & flag != 0].sum()) > int(characters.sum()):
                furniture &= ~flag
        return np.asarray(flags & np.where(inside, furniture & ~LANDMARK["banner"], furniture) == 0)


@functools.cache
def _build_word_table() -> Int64s:
    """Build the hash table of the words of TOPICS, with a bit for each topic."""
    words: dict[tuple[str, int], tuple[int]] = {}
    for topic, names in enumerate(TOPICS.values()):
        for word in names.split():
            (bits,) = words.get((word, 0), (0,))
            words[word, 0] = (bits | 1 << topic,)
    return build_table(words, _SLOTS)


@compile_kernel
def mark_words(text: UInt8s, bits: Bools) -> None:
    """Set the bit of each word of `text` in `bits`."""
    hash_ = FNV_START
    length = 0
    before = 0
    for i in range(len(text) + 1):
        byte = int(text[i]) if i < len(text) else 32
        if is_word_byte(byte):
            hash_ = update_word_hash(hash_, byte, before)
            length += 1
        elif length:
            bits[(hash_ ^ (hash_ >> np.uint64(32))) & np.uint64(len(bits) - 1)] = True
            hash_ = FNV_START
            length = 0
        before = byte


@compile_kernel
def is_capital(byte: int, after: int) -> bool:
    """Return whether these first two bytes of a word are a Latin, Greek or Cyrillic capital."""
    return (
        65 <= byte <= 90
        or (byte == 0xC3 and 0x80 <= after <= 0x9E)
        or (byte == 0xD0 and 0x90 <= after <= 0xAF)
        or (byte == 0xCE and 0x91 <= after <= 0xA9)
    )


@compile_kernel
def count_word(row: Int32s, hash_: np.uint64, topics: Int64s, title_bits: Bools) -> None:
    """Add a word, given by its hash, to its block's counts."""
    row[WORDS] += 1
    row[TITLE_WORDS] += title_bits[(hash_ ^ (hash_ >> np.uint64(32))) & np.uint64(_TITLE_BITS - 1)]
    found = topics[find_row(hash_, topics), 1]
    if found:
        for topic in range(WIDTH - FIRST_TOPIC):
            row[FIRST_TOPIC + topic] += (found >> topic) & 1


@compile_kernel
def set_end_columns(row: Int32s, last: int, last_but_one: int) -> None:
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


@compile_kernel
def count_blocks(
    text: UInt8s, rows: Int64s, topics: Int64s, title_bits: Bools, numbers: Int32s, digests: UInt64s
) -> None:
    """Fill `numbers` and `digests` for each block."""
    for block in range(len(rows)):
        about = rows[block]
        row = numbers[block]
        row[KIND] = about[ROW_KIND]
        row[LINK_CHARACTERS] = about[ROW_LINK_CHARACTERS]
        row[LINKS] = about[ROW_LINKS]
        row[GAP] = about[ROW_GAP]
        row[OPENS] = about[ROW_OPENS]
        row[LIST_DEPTH] = about[ROW_LISTS]
        row[DEPTH] = about[ROW_DEPTH]
        row[MARKER] = about[ROW_HAS_MARKER]
        digests[block] = count_block(
            text[about[ROW_START] : about[ROW_END]], row, topics, title_bits
        )


@compile_kernel
def count_block(text: UInt8s, row: Int32s, topics: Int64s, title_bits: Bools) -> np.uint64:
    """Count the characters, words and so on of one block; return the hash of its words."""
    # `before` is the last byte; `last` and `last_but_one` are code points
    space = True
    before = 0
    last = 0
    last_but_one = 0
    # hash of the current word, and hash of the block's words before it
    hash_ = FNV_START
    length = 0
    digest = FNV_START
    # state of the current number
    capital = False
    digits = 0
    century = 0
    after_colon = False
    end = len(text)
    for i in range(end + 1):
        byte = int(text[i]) if i < end else 32
        if is_word_byte(byte):
            if length == 0:
                capital = is_capital(byte, int(text[i + 1]) if i + 1 < end else 0)
            hash_ = update_word_hash(hash_, byte, before)
            length += 1
        elif length:
            count_word(row, hash_, topics, title_bits)
            row[CAPITALS] += capital
            digest = (digest ^ hash_) * FNV_PRIME
            hash_ = FNV_START
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
        if byte <= 32:
            row[CHARACTERS] += not space and i < end
            space = True
        elif 128 <= byte < 192:  # a continuation byte of UTF-8
            last = (last << 6) | (byte & 63)
            row[SEPARATORS] += last == 0xBB or last == 0xB7 or last == 0x203A or last == 0x2022
        else:
            space = False
            row[CHARACTERS] += 1
            last_but_one = last
            last = byte if byte < 128 else byte & 31 if byte < 224 else byte & 15
            row[STOPS] += byte == 44 or byte == 46 or byte == 59
            row[SEPARATORS] += byte == 124 or byte == 47
    set_end_columns(row, last, last_but_one)
    return digest
