"""What lists say of URLs: blocked domains, and words in three strengths (RefinedWeb, Penedo et al.
2023, arXiv:2306.01116, appendix G.1). No list is shipped: the user names files.
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
# Words end where ASCII has neither letter nor digit. What is no ASCII is escaped in most URLs.
_SIGNS = bytes(code for code in range(0x80) if not chr(code).isalnum() and code != ord("\n"))
_SIGNS_TO_SPACES = bytes(ord(" ") if code in _SIGNS else code for code in range(256))
_AUTHORITY = re.compile(r"(?:[^/?#]*@)?([^/?#@:\[\]]*|\[[^/?#\]]*\])(?::[0-9]*)?(?=[/?#]|\Z)")
_DEEPEST = 8  # segments of a path that a list can name


class UrlLists(Settings):
    """Files of domains and words, one entry a line, gzip or not. See `list_files` for folders."""

    # Files of domains to block with their subdomains; "example.com/a" blocks what is below that
    # path.
    domains: _Paths = ()
    # Files of words to find anywhere in the URL's letters and digits, whatever is between them.
    strict_words: _Paths = ()
    hard_words: _Paths = ()  # files of words to find as whole words of the URL
    # Files of words that count as whole words of the URL, and are bad only in company.
    soft_words: _Paths = ()

    def list_files(self) -> list[str]:
        """All files, in their order: their contents decide. Raises DataError where one is not."""
        return find_list_files(
            (*self.domains, *self.strict_words, *self.hard_words, *self.soft_words)
        )


class UrlSignals:
    """The lists, read. Takes 8 bytes of memory a domain.

    Raises DataError, naming the file, for one that is missing, empty, or no list.
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
        """One entry for each of `urls` and each of URL_COLUMNS: 0 or 1 for the domain, else how
        many different words of the list there are. The scheme counts for nothing, nor does case.
        """
        rests = [_cut_scheme(url) for url in urls]
        joined = "\n".join(rests).encode("utf-8", "surrogatepass")
        spaced = joined.translate(_SIGNS_TO_SPACES).replace(b"\n", b" \n ")
        words = b" %b " % spaced
        counts = (
            self._look_up_hosts(rests),
            self._strict_words.count_words(joined.translate(None, _SIGNS)),
            self._hard_words.count_words(words),
            self._soft_words.count_words(words),
        )
        return {column: each[: len(urls)] for column, each in zip(URL_COLUMNS, counts, strict=True)}

    def _look_up_hosts(self, rests: Sequence[str]) -> NDArray[np.int64]:
        hosts = [_parse_host(rest) for rest in rests]
        blocked = dict.fromkeys(hosts, False)
        parents = [(host, parent) for host in blocked for parent in _list_parents(host)]
        for at in np.flatnonzero(self._domains.holds([parent for _, parent in parents])).tolist():
            host, parent = parents[at]
            blocked[host] |= parent == host or not is_public_suffix(parent)
        found = np.fromiter((blocked[host] for host in hosts), np.int64, len(hosts))
        if len(self._pages):
            found |= self._on_pages(rests, hosts)
        return found

    def _on_pages(self, rests: Sequence[str], hosts: Sequence[str]) -> NDArray[np.int64]:
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
    """The host of what stands after "//"; "" where there is none."""
    authority = _AUTHORITY.match(rest)
    return authority.group(1).rstrip(".") if authority else ""


def _list_parents(host: str) -> list[str]:
    """`host` and all domains that it lies in; no domain without a dot but `host` itself."""
    parents, at = [host], host.find(".")
    if host[-1:] != "]" and not host[-1:].isdigit():  # an address lies in none
        while (end := host.find(".", at + 1)) > 0:
            parents.append(host[at + 1 :])
            at = end
    return parents


def _list_paths(rest: str) -> list[str]:
    """The path of what stands after "//", and all paths above it but the root."""
    path = re.split(r"[?#]", rest, maxsplit=1)[0].partition("/")[2]
    segments = path.rstrip("/").split("/")[:_DEEPEST]
    return ["/" + "/".join(segments[: at + 1]) for at in range(len(segments))]
