"""The kinds of projects, and the rows that each needs or may use."""

from collections.abc import Mapping
from typing import Literal, get_args

Kind = Literal["pretrain", "tune", "align", "rl", "crawl", "sweep", "encoder"]
KINDS: tuple[Kind, ...] = get_args(Kind)

Role = Literal["documents", "chats", "pairs", "problems", "pages"]

# Roles that the data of a kind may have. A file that could have several gets the first of them.
ROLES: Mapping[Kind, tuple[Role, ...]] = {
    "pretrain": ("documents", "pages"),
    "tune": ("chats", "documents", "pages"),
    "align": ("pairs", "chats", "documents"),
    "rl": ("problems", "chats", "documents"),
    "crawl": ("pages", "documents"),
    "sweep": ("documents", "pages"),
    "encoder": ("documents", "pages"),
}
# Rows that a kind cannot do without. Pages also serve as documents, and documents as pages.
NEEDED: Mapping[Kind, Role] = {
    "pretrain": "documents",
    "tune": "chats",
    "align": "pairs",
    "rl": "problems",
    "crawl": "pages",
    "sweep": "documents",
    "encoder": "documents",
}
# Roles that are of use together with a given model; a kind that is missing starts from data alone.
WITH_MODEL: Mapping[Kind, tuple[Role, ...]] = {
    "pretrain": ("documents", "pages"),
    "tune": ("chats", "documents", "pages"),
    "align": ("pairs",),
    "rl": ("problems",),
    "encoder": ("documents", "pages"),
}
# The kind to suggest for rows that another kind has no use for.
KIND_FOR: Mapping[Role, Kind] = {
    "documents": "pretrain",
    "chats": "tune",
    "pairs": "align",
    "problems": "rl",
    "pages": "crawl",
}
