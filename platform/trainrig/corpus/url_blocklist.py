"""URL signals from block lists: blocked domains, and words in three strengths.

The method is that of RefinedWeb (Penedo et al. 2023, arXiv:2306.01116, appendix G.1). No list is
included: the user names the files.

A list file has one entry per line, and "#" starts a comment; it is plain or gzip. A folder is read
in the layout of the block lists of Université Toulouse Capitole (UT1): all files named `domains`
and `urls`, in the folder and its subfolders. Lists of millions of entries take 8 bytes per entry.

The public suffixes, under which anyone may register names, are those of the Public Suffix List
included in tldextract. They change only with the version of tldextract: nothing is downloaded.
"""

import functools
import gzip
import hashlib
import re
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import numpy as np

from trainrig import storage
from trainrig.config import NOT_IDENTITY, Settings
from trainrig.corpus.array_types import Bools, Int64s, UInt32s, UInt64s
from trainrig.errors import DataError

if TYPE_CHECKING:
    import tldextract


@functools.lru_cache(maxsize=65_536)
def is_public_suffix(domain: str) -> bool:
    """Return whether names under `domain` belong to different owners, such as under "co.uk".

    The list's second part, of companies that let others use names ("blogspot.com"), is not used.
    """
    return bool(domain) and _load_extractor().extract_str(domain).suffix == domain


@functools.cache
def _load_extractor() -> "tldextract.TLDExtract":
    # Imported on first use: it imports an HTTP client, and most processes use no block lists.
    import tldextract

    return tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)


class HashSet:
    """Approximate set of strings, stored as 64-bit BLAKE2b hashes.

    A string outside the set is reported as a member with probability size / 2^64.
    """

    def __init__(self, strings: Iterable[str]) -> None:
        self._hashes = np.unique(_hash_strings(strings))

    def __len__(self) -> int:
        return len(self._hashes)

    def holds(self, strings: Sequence[str]) -> Bools:
        """Return whether each of `strings` is in the set, as an array."""
        if not len(self):
            return np.zeros(len(strings), bool)
        asked = _hash_strings(strings)
        at = np.searchsorted(self._hashes, asked)
        held: Bools = self._hashes[np.minimum(at, len(self) - 1)] == asked
        return held


def _hash_strings(strings: Iterable[str]) -> UInt64s:
    encoded = (string.encode("utf-8", "surrogatepass") for string in strings)
    digests = (hashlib.blake2b(string, digest_size=8).digest() for string in encoded)
    return np.fromiter((int.from_bytes(digest, "little") for digest in digests), np.uint64)


_PREFIX_BYTES = 4  # most bytes of the prefix by which words are looked up at each position
_SLOT_MULTIPLIER = np.uint32(0x9E3779B1)  # 2**32 / golden ratio, odd
_SLOT_SHIFT = np.uint32(16)  # keeps the upper 16 bits of 32


class Substrings:
    """A set of words to search for, anywhere in a line.

    The cost grows with the lines, and hardly with the number of words.
    """

    def __init__(self, words: Collection[bytes]) -> None:
        self._width = min((*map(len, words), _PREFIX_BYTES))
        self._by_prefix: defaultdict[bytes, list[bytes]] = defaultdict(list)
        for word in words:
            self._by_prefix[word[: self._width]].append(word)
        self._may_begin = np.zeros(2**16, bool)  # marks the slots of all prefixes
        for prefix in self._by_prefix:
            self._may_begin[_find_prefix_slots(prefix, self._width)] = True

    def count_words(self, lines: bytes) -> Int64s:
        """Return the number of different words contained in each line of `lines`.

        A line end at the end of `lines` is followed by one more, empty line. No word may contain a
        line end, as it would count for its first line.
        """
        ends = np.flatnonzero(np.frombuffer(lines, np.uint8) == ord("\n"))
        if not self._by_prefix:
            return np.zeros(len(ends) + 1, np.int64)
        found = np.flatnonzero(self._may_begin[_find_prefix_slots(lines, self._width)])
        owners = np.searchsorted(ends, found)
        pairs = {
            (owner, word)
            for at, owner in zip(found.tolist(), owners.tolist(), strict=True)
            for word in self._by_prefix.get(lines[at : at + self._width], ())
            if lines.startswith(word, at)
        }
        return np.bincount([owner for owner, _ in pairs], minlength=len(ends) + 1)


def _find_prefix_slots(joined: bytes, width: int) -> UInt32s:
    """Return the hash slot, of 2^16, of the `width` bytes from each position of `joined` on."""
    values = np.frombuffer(joined, np.uint8)
    codes = np.zeros(max(0, len(values) - width + 1), np.uint32)
    for offset in range(width):
        codes = (codes << np.uint32(8)) | values[offset : len(values) - width + 1 + offset]
    return (codes * _SLOT_MULTIPLIER) >> _SLOT_SHIFT


_IN_FOLDERS = ("domains", "urls", "domains.gz", "urls.gz")
_GZIP = b"\x1f\x8b"
# lists in the format of /etc/hosts begin lines with an address
_ADDRESS = re.compile(r"[0-9.]+|[0-9a-f]*:[0-9a-f:]+")
_ENTRY = re.compile(r"(?:https?://)?(?:\*?\.)?([^\s/:]+)(?::[0-9]+)?(/\S*)?")


def find_list_files(paths: tuple[str, ...]) -> list[str]:
    """Return the list files that `paths` name; a folder stands for the list files in it.

    Stages fingerprint the contents of these files, not their paths. Raises DataError if a path has
    no list file.
    """
    files = []
    for path in paths:
        found = [path] if storage.exists(path) else _list_folder_files(path)
        if not found:
            raise DataError(
                f"{path}: no such file, and no folder with a file named `domains` or `urls`"
            )
        files += found
    return files


def _list_folder_files(folder: str) -> list[str]:
    return [path for path in storage.list_files(folder) if path.rpartition("/")[2] in _IN_FOLDERS]


def iterate_entries(path: str) -> Iterator[tuple[int, str]]:
    """Yield the line number (from 1) and content of each entry of the file, in lower case.

    Raises DataError with the file's path if it cannot be read, is not text, or has no entry.
    """
    empty = True
    for number, line in enumerate(_read_list_text(path).split("\n"), start=1):
        if content := line.partition("#")[0].strip().lower():
            empty = False
            yield number, content
    if empty:
        raise DataError(f"{path}: the list has no entry; write one per line")


def read_domains_and_pages(path: str) -> tuple[list[str], list[str]]:
    """Read the hosts ("example.com") and pages ("example.com/a") listed in the file at `path`."""
    domains = []
    pages = []
    for number, content in iterate_entries(path):
        words = content.split(maxsplit=1)
        if len(words) == 2 and _ADDRESS.fullmatch(words[0]):
            content = words[1]
        entry = _ENTRY.fullmatch(content)
        if entry is None:
            raise DataError(
                f"{path}: line {number}: {content[:80]!r} is neither a domain (example.com) nor "
                "a page (example.com/a)"
            )
        host = entry.group(1).rstrip(".").removeprefix("www.")
        page = entry.group(2) or ""
        if page := page.rstrip("/"):
            pages.append(host + page)
        else:
            domains.append(host)
    return domains, pages


def _read_list_text(path: str) -> str:
    try:
        content = storage.read(path)
        if content.startswith(_GZIP):
            content = gzip.decompress(content)
    except FileNotFoundError:
        raise DataError(
            f"{path}: no such file; name a list of domains or of words in URLs"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None
    if b"\0" in content:
        raise DataError(
            f"{path}: the file is not text (byte {content.index(0)} is NUL); use plain text or gzip"
        )
    # Web block lists contain bytes in any encoding; an entry that is not UTF-8 matches no URL.
    return content.decode("utf-8-sig", "replace")


URL_COLUMNS = ("url_blocked_domain", "url_strict_words", "url_hard_words", "url_soft_words")

_Paths = Annotated[tuple[str, ...], NOT_IDENTITY]
# Words end at any ASCII character but a letter or digit. Most URLs escape other characters.
_SIGNS = bytes(code for code in range(0x80) if not chr(code).isalnum() and code != ord("\n"))
_SIGNS_TO_SPACES = bytes(ord(" ") if code in _SIGNS else code for code in range(256))
_AUTHORITY = re.compile(r"(?:[^/?#]*@)?([^/?#@:\[\]]*|\[[^/?#\]]*\])(?::[0-9]*)?(?=[/?#]|\Z)")
_DEEPEST = 8  # most segments of a path that a list entry is compared with


class UrlLists(Settings):
    """Files of blocked domains and words, one entry per line, plain or gzip.

    A path may also be a folder of lists; see `list_files`.
    """

    # Files or folders of domains to block with their subdomains; "example.com/a" blocks all pages
    # below that path.
    domains: _Paths = ()
    # Files of words to find anywhere in the URL's letters and digits, across any separators.
    strict_words: _Paths = ()
    hard_words: _Paths = ()  # files of words to find as whole words of the URL
    # Files of words to count as whole words of the URL; one alone does not make the URL bad.
    soft_words: _Paths = ()

    def list_files(self) -> list[str]:
        """Return the paths of all list files, in order; their contents are fingerprinted.

        Raises DataError if a path has no list file.
        """
        return find_list_files(
            (*self.domains, *self.strict_words, *self.hard_words, *self.soft_words)
        )


class UrlSignals:
    """Block lists in memory, ready to measure URLs, at 8 bytes per domain.

    Raises DataError with the file's path if a list is missing, empty or malformed.
    """

    def __init__(self, lists: UrlLists) -> None:
        listed = [read_domains_and_pages(path) for path in find_list_files(lists.domains)]
        pages = [page for _, of_file in listed for page in of_file]
        self._domains = HashSet(domain for of_file, _ in listed for domain in of_file)
        self._pages = HashSet(pages)
        self._strict_words = Substrings(_read_words(lists.strict_words))
        self._hard_words = Substrings({b" %b " % word for word in _read_words(lists.hard_words)})
        self._soft_words = Substrings({b" %b " % word for word in _read_words(lists.soft_words)})

    def measure(self, urls: Sequence[str]) -> dict[str, Int64s]:
        """Compute the URL_COLUMNS for each of `urls`.

        The domain column is 0 or 1; the others count different words of their list. The scheme and
        upper or lower case make no difference.
        """
        rests = [_cut_scheme(url) for url in urls]
        joined = "\n".join(rests).encode("utf-8", "surrogatepass")
        spaced = joined.translate(_SIGNS_TO_SPACES).replace(b"\n", b" \n ")
        words = b" %b " % spaced
        counts = (
            self._find_blocked(rests),
            self._strict_words.count_words(joined.translate(None, _SIGNS)),
            self._hard_words.count_words(words),
            self._soft_words.count_words(words),
        )
        return {
            column: values[: len(urls)] for column, values in zip(URL_COLUMNS, counts, strict=True)
        }

    def _find_blocked(self, rests: Sequence[str]) -> Int64s:
        hosts = [_parse_host(rest) for rest in rests]
        blocked = dict.fromkeys(hosts, False)
        parents = [(host, parent) for host in blocked for parent in _list_parents(host)]
        for at in np.flatnonzero(self._domains.holds([parent for _, parent in parents])).tolist():
            host, parent = parents[at]
            blocked[host] |= parent == host or not is_public_suffix(parent)
        found = np.fromiter((blocked[host] for host in hosts), np.int64, len(hosts))
        if len(self._pages):
            found |= self._find_blocked_pages(rests, hosts)
        return found

    def _find_blocked_pages(self, rests: Sequence[str], hosts: Sequence[str]) -> Int64s:
        asked = [
            (at, f"{parent}{path}")
            for at, (rest, host) in enumerate(zip(rests, hosts, strict=True))
            for parent in _list_parents(host)
            for path in _list_paths(rest)
        ]
        found = np.zeros(len(rests), np.int64)
        held = self._pages.holds([page for _, page in asked])
        found[[asked[at][0] for at in np.flatnonzero(held).tolist()]] = 1
        return found


def _read_words(paths: tuple[str, ...]) -> frozenset[bytes]:
    words = set()
    for path in find_list_files(paths):
        for number, content in iterate_entries(path):
            word = content.encode().translate(None, _SIGNS)
            if not word:
                raise DataError(f"{path}: line {number}: {content[:80]!r} has no letter or digit")
            words.add(word)
    return frozenset(words)


def _cut_scheme(url: str) -> str:
    url = url.lower()
    if "\n" in url:
        url = url.replace("\n", " ")
    return url.partition("//")[2] or url


def _parse_host(rest: str) -> str:
    """Return the host of a URL without its scheme, or "" if there is none."""
    authority = _AUTHORITY.match(rest)
    return authority.group(1).rstrip(".") if authority else ""


def _list_parents(host: str) -> list[str]:
    """Return `host` and all its parent domains that contain a dot."""
    parents = [host]
    at = host.find(".")
    if host[-1:] != "]" and not host[-1:].isdigit():  # an IP address has no parent domain
        while (end := host.find(".", at + 1)) > 0:
            parents.append(host[at + 1 :])
            at = end
    return parents


def _list_paths(rest: str) -> list[str]:
    """Return the path of a URL without its scheme, and all parent paths except the root."""
    path = re.split(r"[?#]", rest, maxsplit=1)[0].partition("/")[2]
    segments = path.rstrip("/").split("/")[:_DEEPEST]
    return ["/" + "/".join(segments[: at + 1]) for at in range(len(segments))]
