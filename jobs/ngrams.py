"""Train an n-gram language model on texts, to score documents by perplexity.

Run it on a cluster that has trainrig installed (README.md describes other clusters):

    ray job submit --working-dir . -- python jobs/ngrams.py RUN.toml
"""

from trainrig import job
from trainrig.corpus.models.training import NgramTraining, train_language_model

if __name__ == "__main__":
    job.main(NgramTraining, train_language_model)
