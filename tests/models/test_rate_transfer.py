"""The best learning rate of a narrow decoder, used for wider ones with and without muP."""

import itertools

import pytest

from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.initialisation import MuP
from trainrig.optim import AdamW

WIDTHS = (64, 128, 256)
POWERS = tuple(range(-10, -3))  # exponents of the rates, which are powers of 2
STEPS = 200


def make_decoder_config(channels, mup):
    return DecoderConfig(
        layers=2,
        channels=channels,
        heads=channels // 32,
        feedforward_channels=3 * channels,
        positions=32,
        tie_embeddings=False,
        initial_std=0.08,
        mup=MuP(base_channels=64) if mup else None,
    )


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_best_rate_of_a_narrow_decoder_transfers_to_wider_ones(
    train_on_characters, write_result
):
    """Keep validation losses by parametrisation, width and rate in results/rate_transfer.json."""
    losses = {}
    for name, mup in (("muP", True), ("plain", False)):
        losses[name] = {
            str(width): {
                f"2^{power}": round(
                    train_on_characters(
                        make_decoder_config(width, mup), AdamW(lr=2.0**power), STEPS
                    ),
                    4,
                )
                for power in POWERS
            }
            for width in WIDTHS
        }
        print(name, losses[name], flush=True)
    best = {
        name: {width: min(found, key=found.get) for width, found in by_width.items()}
        for name, by_width in losses.items()
    }
    # The loss that a wide decoder pays for the narrow one's best rate.
    regret = {
        name: {
            width: round(found[best[name][str(WIDTHS[0])]] - min(found.values()), 4)
            for width, found in by_width.items()
        }
        for name, by_width in losses.items()
    }
    write_result(
        "rate_transfer.json",
        {"steps": STEPS, "optimizer": "AdamW", "losses": losses, "best": best, "regret": regret},
    )
    powers = [int(rate.removeprefix("2^")) for rate in best["muP"].values()]
    assert max(powers) - min(powers) <= 1, best
    assert max(regret["muP"].values()) <= 0.02 < max(regret["plain"].values()), regret
    wider = [min(losses["muP"][str(width)].values()) for width in WIDTHS]
    assert all(wide < narrow for narrow, wide in itertools.pairwise(wider)), wider
