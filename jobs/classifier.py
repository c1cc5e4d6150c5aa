"""Wanted and unwanted texts to a classifier, for the scores of documents.

On a cluster that has trainrig installed (README says how on another):

    ray job submit --working-dir . -- python jobs/classifier.py RUN.toml
"""

from trainrig import job
from trainrig.corpus.models.training import ClassifierTraining, train_classifier

if __name__ == "__main__":
    job.main(ClassifierTraining, train_classifier)
