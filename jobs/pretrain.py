"""A fresh model, trained on token shards.

ray job submit --working-dir . -- python jobs/pretrain.py RUN.toml
"""

from trainrig import job
from trainrig.train.pretrain import Pretraining, pretrain

if __name__ == "__main__":
    job.main(Pretraining, pretrain)
