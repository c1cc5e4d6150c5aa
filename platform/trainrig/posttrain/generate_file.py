"""`trainrig generate --prompts`: what a model says to every row of a JSONL file.

Rows are read together in batches of a fixed size, from the begin of the file: what a row's batch is
does not depend on the number of workers, and so neither does what is said. A call that was stopped
goes on with the batches that are left.
"""

import functools
import json
from collections.abc import Mapping
from typing import Any

from trainrig import storage
from trainrig.errors import DataError
from trainrig.manifest import FileSum
from trainrig.models.generation.sampling import Sampling
from trainrig.posttrain.text_generator import TextGenerator, TextRequest
from trainrig.ray_runtime.ray_session import Progress, connect, map_splits
from trainrig.splits import Phase, Split, Work
from trainrig.tokens.chat.messages import BadRow, Conversation, parse_messages, parse_tools

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
    """Write `out`, the rows of the JSONL file `prompts` with `text` and `stopped` added; counts.

    A row has `prompt`, a text to continue, or `messages`, a conversation to answer, which may have
    `tools`, and may have a `seed` of its own; else it is the sampling's plus the row's number.
    `vllm_memory`: vLLM runs the model, in this process, with that share of the GPU's memory. Raises
    DataError for rows that have neither, before anything is generated.
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
    said = b"".join(storage.read(storage.join(scratch, f"{each.name}.jsonl")) for each in splits)
    storage.write(out, said)
    storage.delete_folder(scratch)
    ended = [json.loads(line)["stopped"] for line in said.splitlines()]
    return {"rows": len(rows), **{kind: ended.count(kind) for kind in sorted(set(ended))}}


def read_prompts(path: str) -> list[dict[str, Any]]:
    """The rows of the JSONL file at `path`, each of which has a prompt. Raises DataError."""
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
            raise DataError(f"{path}:{number}: not JSON: {error}") from None
        except (BadRow, TypeError, KeyError) as error:
            raise DataError(
                f"{path}:{number}: {error}; a row is an object with `prompt`, a text, or "
                "`messages`, a list of objects with `role` and `content`"
            ) from None
        rows.append(row)
    if not rows:
        raise DataError(f"{path}: not one row; write an object with `prompt` on each line")
    return rows


def read_request(row: Any, sampling: Sampling) -> TextRequest:
    """What `row` asks for. Raises BadRow, KeyError or TypeError for what is no request."""
    prompt: str | Conversation
    if "messages" in row:
        prompt = Conversation(parse_messages(row["messages"]), parse_tools(row.get("tools")))
    elif isinstance(row["prompt"], str):
        prompt = row["prompt"]
    else:
        raise TypeError("`prompt` is no text")
    return TextRequest(prompt, sampling)


def _make_work(checkpoint: str, sampling: Sampling, folder: str, vllm_memory: float | None) -> Work:
    """What does one batch."""
    if vllm_memory is None:
        generator = TextGenerator.open(checkpoint)
    else:
        generator = TextGenerator.open_in_vllm(checkpoint, vllm_memory)

    def speak(task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, FileSum]]:
        rows, first = task["rows"], task["first"]
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
            json.dumps({**row, "text": each.text, "stopped": each.stopped}, ensure_ascii=False)
            for row, each in zip(rows, spoken, strict=True)
        ]
        path = storage.join(folder, f"{first:08d}.jsonl")
        storage.write(path, "".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
        return {"rows": len(rows)}, {}

    return speak
