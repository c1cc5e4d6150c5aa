"""Generation of an answer by an encoder-decoder, one token at a time.

Shapes: S positions of the text that is read, C channels, V vocabulary entries.
"""

from collections.abc import Callable, Collection, Sequence

import torch

from trainrig.errors import DataError
from trainrig.models.attention import KeyValueCache
from trainrig.models.encoder_decoder.model import CrossCache, EncoderDecoder
from trainrig.models.generation.generate import Generation, Stopped
from trainrig.models.generation.sampling import NextToken, Sampling, derive_stream, draw


@torch.inference_mode()
def write_answer(
    model: EncoderDecoder,
    read: Sequence[int],
    begin: Sequence[int],
    sampling: Sampling,
    stop: Collection[int],
    entries: int | None = None,
    listen: Callable[[int], bool] = lambda _: False,
) -> Generation:
    """Return what `model` writes after `begin` in answer to the text `read`.

    Generation stops at an id of `stop`, at `sampling.maximum_tokens`, or at the model's number of
    positions. `entries` is described at `generate_batch`, `listen` at `Request`. Keys and values of
    the text are computed only at the start. Raises DataError for a text that does not fit.
    """
    positions = model.config.positions
    device = model.embedding.weight.device
    if not 1 <= len(read) <= positions or not 1 <= len(begin) < positions:
        raise DataError(
            f"the text has {len(read)} tokens, but this model reads from 1 to {positions}; "
            "shorten it"
        )
    ids_1S = torch.tensor([list(read)], device=device)
    segments_1S = torch.ones_like(ids_1S)
    memory_1SC = model.read(ids_1S, segments_1S)
    caches = [CrossCache(KeyValueCache()) for _ in range(model.config.layers)]
    new = list(begin)
    written = list[int]()
    stream = derive_stream(sampling)
    stopped: Stopped = "length"
    while True:
        ids_1T = torch.tensor([new], device=device)
        ones_1T = torch.ones_like(ids_1T)
        output = model.write(memory_1SC, segments_1S, ids_1T, ones_1T, caches)
        logits_V = output.head(output.hidden[0, -1])[:entries]
        token = NextToken(sampling, stream, len(written), (*read, *written))
        drawn = draw(logits_V[None], [token])[0]
        if drawn in stop:
            return Generation(tuple(written), "end", drawn)
        written.append(drawn)
        new = [drawn]
        if listen(drawn):
            stopped = "stop"
        elif len(written) == sampling.maximum_tokens:
            stopped = "length"
        elif len(begin) + len(written) == positions:
            stopped = "positions"
        else:
            continue
        return Generation(tuple(written), stopped)
