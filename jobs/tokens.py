"""Documents to token shards.

Not named after its verb: a `tokenize.py` in a script's folder hides the standard library's.

On a cluster that has trainrig installed (README says how on another):

    ray job submit --working-dir . -- python jobs/tokens.py RUN.toml
"""

from trainrig import job
from trainrig.tokens.prepare import Tokenization, tokenize

if __name__ == "__main__":
    job.main(Tokenization, tokenize)
