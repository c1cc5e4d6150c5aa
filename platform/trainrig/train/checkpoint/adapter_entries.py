"""The metadata of an adapter's checkpoint: its settings and its base. It needs no torch.

In state.json:

    "adapter": {"lora": {…}, "base": PATH, "manifest_sha256": SUM}
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from trainrig import storage
from trainrig.config import build
from trainrig.errors import ConfigError
from trainrig.manifest import describe_table_difference
from trainrig.models.architecture.lora_settings import LoRA
from trainrig.train.checkpoint.manifest import KEPT, MANIFEST
from trainrig.train.job import Adapter


def compute_manifest_sum(checkpoint: str) -> str:
    """Return the SHA-256 of the manifest of `checkpoint`, which contains all other checksums."""
    return hashlib.sha256(storage.read(storage.join(checkpoint, MANIFEST))).hexdigest()


def check_base(adapter: Adapter) -> None:
    """Raise ConfigError unless the base of `adapter` exists and is unchanged."""
    try:
        found = compute_manifest_sum(adapter.base)
    except FileNotFoundError:
        raise ConfigError(
            f"{adapter.base}: the base checkpoint of the adapter is missing; restore it"
        ) from None
    if found != adapter.base_sum:
        raise ConfigError(
            f"{adapter.base}: this checkpoint is not the adapter's base (manifest "
            f"{found[:12]}…, expected {adapter.base_sum[:12]}…); restore the original"
        )


def read_adapter(checkpoint: str, entries: Mapping[str, Any]) -> Adapter | None:
    """Return the adapter that `checkpoint` holds, from its `entries`; None for a whole model."""
    there = entries.get("adapter")
    if there is None:
        return None
    lora = build(LoRA, there["lora"], f"{checkpoint}: adapter")
    return Adapter(lora, there["base"], there["manifest_sha256"])


def check_adapter(checkpoint: str, entries: Mapping[str, Any], wanted: Adapter | None) -> None:
    """Raise ConfigError unless `checkpoint` holds the `wanted` adapter, with the same base.

    `entries` are those of the checkpoint; `wanted` None stands for a whole model.
    """
    found = read_adapter(checkpoint, entries)
    if found is None or wanted is None:
        if found is not wanted:
            there = "a whole model" if found is None else f"an adapter of {found.base}"
            raise ConfigError(
                f"{checkpoint}: holds {there}, but the run file has "
                f"{'no ' if wanted is None else ''}[lora]; use another `output`"
            )
        return
    if found.base_sum != wanted.base_sum:
        raise ConfigError(
            f"{checkpoint}: the adapter has another base ({found.base}) than the run file's "
            f"({wanted.base}); name that one, or use another `output`"
        )
    if found.lora != wanted.lora:
        change = describe_table_difference(
            found.lora.model_dump(mode="json"), wanted.lora.model_dump(mode="json")
        )
        raise ConfigError(f"{checkpoint}: other [lora] ({change}); use another `output`")


def build_adapter_entries(adapter: Adapter) -> dict[str, Any]:
    """Return the entries of `adapter` in a checkpoint's state.json."""
    return {
        "lora": adapter.lora.model_dump(mode="json"),
        "base": adapter.base,
        "manifest_sha256": adapter.base_sum,
    }


def keep_base(adapter: Adapter, run_folder: str) -> None:
    """Mark the base as needed; the clean-up of the base's run then never deletes it."""
    by = json.dumps({"adapter": run_folder}).encode()
    storage.create(storage.join(adapter.base, KEPT), by)
