"""Answers to prompts, scored by rewards; the best as rows to train on.

On a cluster that has trainrig installed (README says how on another):

    ray job submit --working-dir . -- python jobs/sample.py RUN.toml
"""

from trainrig import job
from trainrig.posttrain.sampling.run_file import AnswerSampling
from trainrig.posttrain.sampling.stage import sample_answers

if __name__ == "__main__":
    job.main(AnswerSampling, sample_answers)
