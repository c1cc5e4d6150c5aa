"""Tokenize documents into token shards.

The file is not named after its verb, as `tokenize.py` would hide the standard library's module.

Run it on a cluster that has trainrig installed (README.md describes other clusters):

    ray job submit --working-dir . -- python jobs/tokens.py RUN.toml
"""

from trainrig import job
from trainrig.tokens.prepare import Tokenization, tokenize

if __name__ == "__main__":
    job.main(Tokenization, tokenize)
