"""Evaluate a checkpoint: benchmarks, held-out loss and bits per byte.

Run it on a cluster that has trainrig installed (README.md describes other clusters):

    ray job submit --working-dir . -- python jobs/evaluate.py RUN.toml
"""

from trainrig import job
from trainrig.evaluate.evaluation import evaluate
from trainrig.evaluate.evaluation_run_file import Evaluation

if __name__ == "__main__":
    job.main(Evaluation, evaluate)
