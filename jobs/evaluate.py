"""Held-out loss and bits per byte of a checkpoint.

On a cluster that has trainrig installed (README says how on another):

    ray job submit --working-dir . -- python jobs/evaluate.py RUN.toml
"""

from trainrig import job
from trainrig.evaluate.run_file import Evaluation
from trainrig.evaluate.scorecard import evaluate

if __name__ == "__main__":
    job.main(Evaluation, evaluate)
