"""Reader of list files: one entry per line, "#" starts a comment, plain or gzip, or in folders.

A folder is read in the layout of the block lists of Université Toulouse Capitole (UT1): all files
named `domains` and `urls`, in the folder and its subfolders.
"""

import gzip
import re
import zlib
from collections.abc import Iterator

from trainrig import storage
from trainrig.errors import DataError

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
        found = [path] if storage.exists(path) else _list_folder(path)
        if not found:
            raise DataError(
                f"{path}: no such file, and no folder with a file named `domains` or `urls`"
            )
        files += found
    return files


def _list_folder(folder: str) -> list[str]:
    return [path for path in storage.list_files(folder) if path.rpartition("/")[2] in _IN_FOLDERS]


def iterate_entries(path: str) -> Iterator[tuple[int, str]]:
    """Yield the line number (from 1) and content of each entry of the file, in lower case.

    Raises DataError with the file's path if it cannot be read, is not text, or has no entry.
    """
    empty = True
    for number, line in enumerate(_read_text(path).split("\n"), start=1):
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


def _read_text(path: str) -> str:
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
