import pytest

from trainrig.ray_runtime.crash_search import find_crashing_record


class Records:
    """Records of which some kill the process that works on them."""

    def __init__(self, count: int, killing: set[int], together: int = 1) -> None:
        self.count = count
        self.killing = killing
        self.together = together  # number of killing records that it takes
        self.probes = 0

    def probe(self, begin: int, end: int) -> int | None:
        self.probes += 1
        tried = range(begin, min(end, self.count))
        if len(self.killing.intersection(tried)) >= self.together:
            return None
        return min(end, self.count)


@pytest.mark.parametrize(
    ("killing", "found"), [({0}, 0), ({99}, 99), ({37}, 37), ({80, 41, 42}, 41), (set(), None)]
)
def test_the_first_record_that_kills_is_found(killing: set[int], found: int | None) -> None:
    records = Records(100, killing)
    assert find_crashing_record(records.probe, tries=3) == found
    assert records.probes <= 1 + 7 + 3


def test_records_that_kill_only_together_are_not_blamed_alone() -> None:
    assert find_crashing_record(Records(100, {3, 60}, together=2).probe, tries=3) is None


def test_no_record_is_blamed_for_a_split_that_cannot_be_read() -> None:
    assert find_crashing_record(lambda begin, end: None, tries=3) is None
    assert find_crashing_record(Records(0, set()).probe, tries=3) is None
