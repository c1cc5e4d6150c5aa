"""Check of the tags with the owner and the expiry of a machine, by which leaks are found."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from trainrig.launch.check.document import Found

# A time in UTC, in lower case where a cloud requires that, or hours from `cluster up` on.
EXPIRY = re.compile(r"^(\d{4}-\d\d-\d\d[Tt]\d\d[:-]\d\d[:-]\d\d[Zz]|[1-9]\d{0,3}h)$")


def check_tags(
    tags: Mapping[str, Any], where: tuple[str | int, ...], cluster: Any, names: tuple[str, str]
) -> Iterator[Found]:
    """Check the tags of a machine; `names` are the cloud's keys of the cluster and expiry tags."""
    whose, until = names
    if whose not in tags:
        yield where, f"no tag `{whose}`; leaked machines are found by it"
    elif cluster is not None and tags[whose] != cluster:
        yield where, f"`{whose}` is '{tags[whose]}', but the cluster is named '{cluster}'"
    if until not in tags:
        yield where, f"no tag `{until}`; write hours after `cluster up` (24h), or a time in UTC"
    elif not EXPIRY.match(str(tags[until])):
        found = tags[until]
        yield where, f"`{until}` is '{found}'; write hours (24h), or a time (2026-11-30T18:00:00Z)"
