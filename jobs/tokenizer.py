"""Train a tokenizer on curated documents.

Run it on a cluster that has trainrig installed (README.md describes other clusters):

    ray job submit --working-dir . -- python jobs/tokenizer.py RUN.toml
"""

from trainrig import job
from trainrig.tokens.tokenizer import TokenizerTraining, make_tokenizer

if __name__ == "__main__":
    job.main(TokenizerTraining, make_tokenizer)
