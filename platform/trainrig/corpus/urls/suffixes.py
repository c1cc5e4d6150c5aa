"""Under which names anybody may register others: the Public Suffix List, as tldextract ships it.

The list changes with the version of tldextract alone: nothing is fetched, nothing is cached.
"""

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tldextract


@functools.lru_cache(maxsize=65_536)
def is_public_suffix(domain: str) -> bool:
    """Whether names under `domain` belong to different owners by the list's first part ("co.uk").

    Its second part, of companies that let others have names ("blogspot.com"), is not asked.
    """
    return bool(domain) and _load_extractor().extract_str(domain).suffix == domain


@functools.cache
def _load_extractor() -> "tldextract.TLDExtract":
    # Loaded when first asked for: it brings a client of HTTP, and most processes have no lists.
    import tldextract

    return tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)
