"""Train a classifier on wanted and unwanted texts, to score documents.

Run it on a cluster that has trainrig installed (README.md describes other clusters):

    ray job submit --working-dir . -- python jobs/classifier.py RUN.toml
"""

from trainrig import job
from trainrig.corpus.models.training import ClassifierTraining, train_classifier

if __name__ == "__main__":
    job.main(ClassifierTraining, train_classifier)
