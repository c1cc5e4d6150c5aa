"""Lookup of public suffixes: domains under which anyone may register names.

The data is the Public Suffix List included in tldextract. It changes only with the version of
tldextract: nothing is downloaded or cached.
"""

import functools
from typing import TYPE_CHECKING

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
