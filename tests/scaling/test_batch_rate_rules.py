"""Published rules for batch sizes and learning rates."""

import pytest
from pydantic import TypeAdapter

from trainrig.scaling.batch_rate_rules import (
    DeepSeek,
    Kaplan,
    Porian,
    Rule,
    StepLaw,
    round_to_sequences,
)


@pytest.mark.parametrize(
    ("rule", "batch", "rate"),
    [
        # 0.2920 (6e19)^0.3271 and 0.3118 (6e19)^-0.125, by hand.
        (DeepSeek(), 859_000, 1.049e-3),
        # 155 sequences of 2,048 tokens at 1e8 parameters.
        (Porian(), 318_700, 4.876e-3),
        (StepLaw(), 442_000, 5.139e-3),
        # Loss 2.837 (their equation 1.5), so 2.1e8 / 2.837^4.762.
        (Kaplan(), 1_470_000, 6.693e-4),
    ],
)
def test_rules_give_their_papers_values(rule: Rule, batch: float, rate: float) -> None:
    assert rule.compute_batch(1e8, 2e10 if rule.kind == "StepLaw" else 1e11) == pytest.approx(
        batch, rel=0.01
    )
    assert rule.compute_rate(1e8, 2e10 if rule.kind == "StepLaw" else 1e11) == pytest.approx(
        rate, rel=0.01
    )


@pytest.mark.parametrize("rule", [DeepSeek(), Porian(), StepLaw(), Kaplan()])
def test_rates_stay_where_decoders_train(rule: Rule) -> None:
    for parameters in (5e3, 3e4, 1e6, 1e9, 1e12):
        assert 1e-6 < rule.compute_rate(parameters, 20 * parameters) <= 1e-2


def test_a_rule_is_named_by_its_kind() -> None:
    named = TypeAdapter(Rule).validate_python({"kind": "StepLaw", "highest_rate": 0.02})
    assert named == StepLaw(highest_rate=0.02)


@pytest.mark.parametrize(
    ("batch", "tokens", "sequences"),
    [
        (2_048, 1e6, 8),
        (2_800, 1e6, 8),
        (3_000, 1e6, 16),
        (10, 1e6, 1),
        (1e6, 102_400, 4),
        (1e6, 179_200, 4),
    ],
)
def test_sequences_are_a_power_of_two_that_leaves_steps(
    batch: float, tokens: float, sequences: int
) -> None:
    assert round_to_sequences(batch, 256, tokens, fewest_steps=100) == sequences
