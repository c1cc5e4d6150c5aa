"""URL signals from block lists: blocked domains, and words in three strengths.

The method is that of RefinedWeb (Penedo et al. 2023, arXiv:2306.01116, appendix G.1). No list is
included: the user names the files.
"""

import re
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from trainrig.config import NOT_IDENTITY, Settings
from trainrig.corpus.urls.hash_set import HashSet
from trainrig.corpus.urls.list_files import find_list_files, iterate_entries, read_domains_and_pages
from trainrig.corpus.urls.substrings import Substrings
from trainrig.corpus.urls.suffixes import is_public_suffix
from trainrig.errors import DataError

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

    def measure(self, urls: Sequence[str]) -> dict[str, NDArray[np.int64]]:
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

    def _find_blocked(self, rests: Sequence[str]) -> NDArray[np.int64]:
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

    def _find_blocked_pages(self, rests: Sequence[str], hosts: Sequence[str]) -> NDArray[np.int64]:
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
