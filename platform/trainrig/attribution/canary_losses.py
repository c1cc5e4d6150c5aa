"""Losses of whole texts under a checkpoint, by which canaries are ranked."""

from collections.abc import Sequence

from trainrig.evaluate.engine.batched_reading import score_continuations
from trainrig.evaluate.engine.request_encoding import RequestEncoder
from trainrig.posttrain.text_generator import check_speaks
from trainrig.tokens.tokenizers.encode import Encoder
from trainrig.train import checkpoint

BATCH_TOKENS = 4_096  # tokens in a forward pass, padding included


class TextLosses:
    """A checkpoint that scores texts by their loss."""

    def __init__(self, path: str) -> None:
        """Open the newest checkpoint at `path`; raise DataError if it is no language model."""
        opened = checkpoint.open_model(path)
        check_speaks(opened.path, opened.config)
        self._model = opened.build()
        encoder = Encoder(opened.tokenizer, opened.path, opened.beside)
        self._requests = RequestEncoder(encoder, opened.config.positions, document_start=True)

    def __call__(self, texts: Sequence[str]) -> list[float]:
        """Return the loss of each text in nats, summed over its tokens, after an end-of-text."""
        requests = [self._requests.request_windows(text) for text in texts]
        flat = [request for own in requests for request in own]
        scores = iter(score_continuations(self._model, flat, BATCH_TOKENS))
        return [-sum(next(scores).log_likelihood for _ in own) for own in requests]
