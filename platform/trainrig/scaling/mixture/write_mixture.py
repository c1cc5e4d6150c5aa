"""Output of `trainrig mixture`: the record, the run file and the page."""

import json

from trainrig import storage
from trainrig.errors import ConfigError
from trainrig.scaling.mixture.fitting import (
    PAGE,
    RECORD,
    RUN,
    SECTION,
    MixtureFit,
    apply_weights,
    fit_mixture,
    format_section,
    read_run,
)
from trainrig.scaling.mixture.mixture_page import build_mixture_page
from trainrig.scaling.mixture.record import MixtureRecord
from trainrig.storage.writable import check_folder
from trainrig.tokens.shards.token_shards import TRAIN, TokenShards
from trainrig.train.run_file.run_files import Pretraining


def write_mixture(settings: MixtureFit, out: str) -> MixtureRecord:
    """Fit the mixture, write its files into the folder `out`, and return the record."""
    check_folder(out)
    run = read_run(settings)
    result = fit_mixture(settings)
    record = result.record
    if run is not None:
        _check_sources(run, settings, record)
    data = json.dumps(record.model_dump(mode="json"), indent=2, ensure_ascii=False)
    storage.write(storage.join(out, RECORD), f"{data}\n".encode())
    storage.write(storage.join(out, SECTION), format_section(record).encode())
    if run is not None:
        storage.write(storage.join(out, RUN), apply_weights(run, record).encode())
    storage.write(storage.join(out, PAGE), build_mixture_page(settings, result, out).encode())
    return record


def _check_sources(run: Pretraining, settings: MixtureFit, record: MixtureRecord) -> None:
    """Raise ConfigError if the tokens of `run` have other sources than the record.

    Tokens that do not exist yet are not checked.
    """
    folder = storage.join(run.tokens, TRAIN)
    if not storage.list_files(folder):
        return
    wanted = sorted(share.source for share in record.weights)
    there = sorted(TokenShards.open(folder).sources)
    if wanted != there:
        raise ConfigError(
            f"{settings.run}: {run.tokens} has the sources {', '.join(there)}, but "
            f"{settings.mixtures} has shares of {', '.join(wanted)}; name the run file of tokens "
            "with the same"
        )
