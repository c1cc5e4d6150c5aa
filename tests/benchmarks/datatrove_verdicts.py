"""Verdicts and CPU cost of datatrove 0.10's filters, for an interpreter that has datatrove.

    python datatrove_verdicts.py TEXTS.jsonl VERDICTS.json

TEXTS.jsonl has one JSON string a line. VERDICTS.json: {"verdicts": {rule set: [kept?, ...]},
"cpu_seconds": of the chain of FineWeb, where every filter judges every text}.
"""

import json
import sys
import time
from pathlib import Path

from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)

texts = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
repetition = GopherRepetitionFilter()
quality = GopherQualityFilter()
c4 = C4QualityFilter()
c4_any_end = C4QualityFilter(filter_no_terminal_punct=False)
fineweb = FineWebQualityFilter()


def keeps(rules, document):
    try:
        verdict = rules.filter(document)
    except (ZeroDivisionError, ValueError):  # a text without words
        return False
    return verdict if isinstance(verdict, bool) else verdict[0]


verdicts = {name: [] for name in ("repetition", "quality", "c4_any_end", "fineweb_after_c4")}
keeps(repetition, Document(text="Read the model once.", id=""))
began = time.process_time()
for text in texts:
    document = Document(text=text, id="")
    verdicts["repetition"].append(keeps(repetition, document))
    verdicts["quality"].append(keeps(quality, document))
    verdicts["c4_any_end"].append(keeps(c4_any_end, document))  # changes the text if it keeps it
    verdicts["fineweb_after_c4"].append(
        keeps(fineweb, document) if verdicts["c4_any_end"][-1] else None
    )
seconds = time.process_time() - began
verdicts["c4"] = [keeps(c4, Document(text=text, id="")) for text in texts]
verdicts["fineweb"] = [keeps(fineweb, Document(text=text, id="")) for text in texts]
Path(sys.argv[2]).write_text(json.dumps({"verdicts": verdicts, "cpu_seconds": seconds}))
