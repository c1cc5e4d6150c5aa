"""Texts to an n-gram language model, for the perplexity of documents.

On a cluster that has trainrig installed (README says how on another):

    ray job submit --working-dir . -- python jobs/ngrams.py RUN.toml
"""

from trainrig import job
from trainrig.corpus.models.training import NgramTraining, train_language_model

if __name__ == "__main__":
    job.main(NgramTraining, train_language_model)
