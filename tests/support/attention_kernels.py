"""Which kernel computes attention, by torch's dispatcher and by docs/attention.md."""

from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from trainrig.models.architecture.decoder_config import DecoderConfig
from trainrig.models.architecture.encoder_configs import EncoderConfig, EncoderDecoderConfig
from trainrig.models.attention import KeyValueCache
from trainrig.models.decoder import initialise
from trainrig.models.encoder import build_model
from trainrig.models.kernels import flex_rows

PAGE = Path(__file__).parents[2] / "docs" / "attention.md"
TITLE = "## Which kernel computes attention"
# Positions of a row: more and fewer than those from which a mask is faster on a CPU.
LONG = 300
SHORT = 100

# The page's names of the dispatcher's operators.
KERNELS = {
    "_scaled_dot_product_flash_attention_for_cpu": "FlashAttention for CPUs",
    "_scaled_dot_product_flash_attention": "FlashAttention-2",
    "_scaled_dot_product_cudnn_attention": "cuDNN",
    "_scaled_dot_product_efficient_attention": "memory-efficient",
    "document_attention": "by document",
    "blocked_attention": "in blocks",
    "varlen_attention": "varlen FlashAttention-2",
    "reach_attention": "our kernel",
    "_safe_softmax": "plain products",
    "_softmax": "plain products",
}
SIZES: dict[str, Any] = {"layers": 2, "channels": 64, "heads": 4, "vocabulary": 32}


class Kernels(TorchDispatchMode):
    """The names of the attention kernels that are called in the block."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if name := KERNELS.get(function._schema.name.partition("::")[2]):
            self.found.add(name)
        return function(*args, **(kwargs or {}))

    def __enter__(self) -> Self:
        """Also record calls of flex_attention, which is compiled, so the dispatcher misses it."""
        run = flex_rows._run

        def note(*parts: Any, **settings: Any) -> Any:
            self.found.add("flex_attention")
            with _disable_current_modes():
                return run(*parts, **settings)

        self._patch = patch.object(flex_rows, "_run", note)
        self._patch.start()
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._patch.stop()
        return super().__exit__(*raised)


def called(case: str, device: str, dtype: torch.dtype, kv_heads: int) -> set[str]:
    """Return the kernels of a forward pass of the rows that the page calls `case`."""
    model, arguments = CASES[case](kv_heads)
    initialise(model, 0)
    model = model.to(device, dtype)
    arguments = {name: argument.to(device) for name, argument in arguments.items()}
    if "documents_BS" in arguments:  # also with keys from caches
        arguments["caches"] = [KeyValueCache() for _ in model.layers]
        with torch.no_grad():
            model(_ids(SHORT)["ids_BT"].to(device), arguments["caches"])
    with Kernels() as kernels:
        model(**arguments)
    return kernels.found


def documented() -> dict[str, dict[str, list[set[str]]]]:
    """Return the documented kernels, keyed by the first cell of each row and the column's title.

    A cell is a list of alternative sets, empty where the kernels are not known.
    """
    part = PAGE.read_text().partition(TITLE)[2]
    first = next(block for block in part.split("\n\n") if block.startswith("| rows"))
    lines = [line.strip("| ").split(" | ") for line in first.splitlines()]
    head, _, *rows = lines
    return {
        row[0]: {
            column: [
                set(names.split(" and ")) for names in cell.split(" or ") if names != "not known"
            ]
            for column, cell in zip(head[1:], row[1:], strict=True)
        }
        for row in rows
    }


def decoder(kv_heads: int, **changes: Any) -> Any:
    return build_model(DecoderConfig(**SIZES, kv_heads=kv_heads, positions=LONG, **changes))


def _encoder(kv_heads: int, **changes: Any) -> Any:
    return build_model(EncoderConfig(**SIZES, kv_heads=kv_heads, positions=LONG, **changes))


def _ids(places: int) -> dict[str, torch.Tensor]:
    return {"ids_BT": torch.arange(2 * places).view(2, places).remainder(32)}


def packed(places: int) -> dict[str, torch.Tensor]:
    return _ids(places) | {"positions_BT": torch.arange(places).remainder(70).expand(2, -1)}


def _marked(places: int) -> dict[str, torch.Tensor]:
    return packed(places) | {"prefixes_BT": torch.arange(places).expand(2, -1) < 9}


def _padded(kv_heads: int) -> tuple[Any, dict[str, torch.Tensor]]:
    documents = torch.ones(2, SHORT + 3, dtype=torch.long)
    documents[1, :5] = 0
    return decoder(kv_heads), {
        "ids_BT": torch.ones(2, 3, dtype=torch.long),
        "positions_BT": torch.arange(SHORT, SHORT + 3).expand(2, -1),
        "documents_BS": documents,
    }


def _pairs(_: int) -> tuple[Any, dict[str, torch.Tensor]]:
    config = EncoderDecoderConfig(**SIZES, positions=LONG)
    ids = _ids(SHORT)["ids_BT"]
    return build_model(config), {"ids_BS": ids, "decoder_ids_BT": ids}


CASES = {
    "one document a row": lambda heads: (decoder(heads), _ids(LONG)),
    "one document a row, seen from both sides": lambda heads: (_encoder(heads), _ids(LONG)),
    "several documents a row": lambda heads: (decoder(heads), packed(LONG)),
    "several documents a row, seen from both sides": lambda heads: (
        _encoder(heads),
        packed(LONG),
    ),
    "several documents in rows of at most 512 bytes a channel": lambda heads: (
        decoder(heads),
        packed(SHORT),
    ),
    "prefixes, or branches of pairs": lambda heads: (decoder(heads), _marked(LONG)),
    "more than one new token behind a cache, or padding there": _padded,
    "windows that hide any": lambda heads: (
        decoder(heads, attention={"window": {"size": 20}}),
        packed(LONG),
    ),
    "soft caps, sinks, ALiBi": lambda heads: (
        decoder(heads, attention={"logit_cap": 5.0, "sinks": True}),
        packed(LONG),
    ),
    "T5's biases, and what its decoder sees of texts": _pairs,
}
