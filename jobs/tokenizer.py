"""A tokenizer, trained on curated documents.

On a cluster that has trainrig installed (README says how on another):

    ray job submit --working-dir . -- python jobs/tokenizer.py RUN.toml
"""

from trainrig import job
from trainrig.tokens.tokenizer import TokenizerTraining, make_tokenizer

if __name__ == "__main__":
    job.main(TokenizerTraining, make_tokenizer)
