"""The implementation of `trainrig generate --prompts`, which answers each row of a JSONL file.

Rows are read in batches of a fixed size from the start of the file. A row's batch, and so its
answer, does not depend on the number of workers. A call that was stopped resumes with the remaining
batches.
"""

import functools
import json
from collections.abc import Mapping
from typing import Any

from trainrig import storage
from trainrig.errors import DataError
from trainrig.manifest import FileSum
from trainrig.models.token_sampling import Sampling
from trainrig.posttrain.text_generator import TextGenerator, TextRequest
from trainrig.ray_runtime.ray_session import Progress, connect, map_splits
from trainrig.splits import Phase, Split, Work
from trainrig.tokens.chat.chat_messages import (
    BadRow,
    Conversation,
    parse_messages,
    parse_tools,
)

Row = Mapping[str, Any]


def generate_file(
    checkpoint: str,
    prompts: str,
    out: str,
    sampling: Sampling,
    *,
    batch: int = 16,
    workers: int = 0,
    vllm_memory: float | None = None,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Write to `out` the rows of `prompts` with `text` and `stopped` added; return counts.

    A row has `prompt`, a text to continue, or `messages`, a conversation to answer, which may have
    `tools`. A row may have its own `seed`; the default is the sampling's seed plus the row number.
    If `vllm_memory` is given, vLLM runs the model in this process with that share of the GPU's
    memory. Raises DataError for rows with neither `prompt` nor `messages`, before anything is
    generated.
    """
    rows = read_prompts(prompts)
    splits = [
        Split(f"{begin:08d}", {"rows": rows[begin : begin + batch], "first": begin})
        for begin in range(0, len(rows), batch)
    ]
    scratch = f"{out}.parts"
    make = functools.partial(_make_work, checkpoint, sampling, scratch, vllm_memory)
    if workers:
        connect(workers, "workers")
    map_splits(Phase(storage.join(scratch, "done"), make), splits, workers, progress)
    lines = b"".join(storage.read(storage.join(scratch, f"{split.name}.jsonl")) for split in splits)
    storage.write(out, lines)
    storage.delete_folder(scratch)
    ended = [json.loads(line)["stopped"] for line in lines.splitlines()]
    return {"rows": len(rows), **{kind: ended.count(kind) for kind in sorted(set(ended))}}


def read_prompts(path: str) -> list[dict[str, Any]]:
    """Read the rows of the JSONL file at `path`.

    Raises DataError if the file is missing or empty, or if a row is not a valid request.
    """
    if not storage.exists(path):
        raise DataError(f"{path}: no such file; name a JSONL file of prompts")
    rows = []
    for number, line in enumerate(storage.read(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            read_request(row, Sampling())
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{path}:{number}: not JSON: {error}; write one object on each line"
            ) from None
        except (BadRow, TypeError, KeyError) as error:
            raise DataError(
                f"{path}:{number}: {error}; a row is an object with `prompt`, a text, or with "
                "`messages`, a list of objects with `role` and `content`"
            ) from None
        rows.append(row)
    if not rows:
        raise DataError(f"{path}: the file has no rows; write an object with `prompt` on each line")
    return rows


def read_request(row: Any, sampling: Sampling) -> TextRequest:
    """Return the request that `row` describes.

    Raises BadRow, KeyError or TypeError if the row is not a valid request.
    """
    prompt: str | Conversation
    if "messages" in row:
        prompt = Conversation(parse_messages(row["messages"]), parse_tools(row.get("tools")))
    elif isinstance(row["prompt"], str):
        prompt = row["prompt"]
    else:
        raise TypeError("`prompt` is not text")
    return TextRequest(prompt, sampling)


def _make_work(checkpoint: str, sampling: Sampling, folder: str, vllm_memory: float | None) -> Work:
    """Return the function that answers one batch of rows."""
    if vllm_memory is None:
        generator = TextGenerator.open(checkpoint)
    else:
        generator = TextGenerator.open_in_vllm(checkpoint, vllm_memory)

    def speak(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
        rows = task["rows"]
        first = task["first"]
        requests = [
            read_request(
                row,
                sampling.model_copy(
                    update={"seed": row.get("seed", sampling.seed + first + number)}
                ),
            )
            for number, row in enumerate(rows)
        ]
        spoken = generator.speak_all(requests)
        lines = [
            json.dumps({**row, "text": answer.text, "stopped": answer.stopped}, ensure_ascii=False)
            for row, answer in zip(rows, spoken, strict=True)
        ]
        path = storage.join(folder, f"{first:08d}.jsonl")
        storage.write(path, "".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
        return {"rows": len(rows)}, {}

    return speak
