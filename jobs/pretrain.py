"""A fresh model, trained on token shards.

On a cluster that has trainrig installed (README says how on another):

    ray job submit --working-dir . -- python jobs/pretrain.py RUN.toml
"""

from trainrig import job
from trainrig.train.pretrain import Pretraining, pretrain

if __name__ == "__main__":
    job.main(Pretraining, pretrain)
