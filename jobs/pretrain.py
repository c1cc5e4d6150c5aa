"""Train a new model on token shards.

Run it on a cluster that has trainrig installed (README.md describes other clusters):

    ray job submit --working-dir . -- python jobs/pretrain.py RUN.toml
"""

from trainrig import job
from trainrig.train.pretrain import Pretraining, pretrain

if __name__ == "__main__":
    job.main(Pretraining, pretrain)
