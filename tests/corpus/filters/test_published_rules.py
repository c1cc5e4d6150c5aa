from pathlib import Path

import numpy as np

from trainrig.corpus.filters.published_rules import Url
from trainrig.corpus.url_blocklist import UrlLists, UrlSignals


def test_each_list_has_its_rule(tmp_path: Path):
    for name, entry in (("domains", "bad.org"), ("strict", "red"), ("hard", "blue")):
        (tmp_path / name).write_text(entry)
    (tmp_path / "soft").write_text("green\nyellow")
    lists = UrlLists(
        domains=(str(tmp_path / "domains"),),
        strict_words=(str(tmp_path / "strict"),),
        hard_words=(str(tmp_path / "hard"),),
        soft_words=(str(tmp_path / "soft"),),
    )
    urls = ["//a.org", "//a.bad.org", "//a.org/bored", "//a.org/blue", "//a.org/green"]
    columns = UrlSignals(lists).measure([*urls, "//a.org/green-yellow"])
    broken = {
        limit.rule: np.flatnonzero(limit.mark_broken(columns)).tolist()
        for limit in Url().iterate_limits()
    }
    assert broken == {"domain": [1], "strict_words": [2], "hard_words": [3], "soft_words": [5]}
