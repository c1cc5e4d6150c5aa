"""Sample answers to prompts, score them by rewards, and write the best as training rows.

Run it on a cluster that has trainrig installed (README.md describes other clusters):

    ray job submit --working-dir . -- python jobs/sample.py RUN.toml
"""

from trainrig import job
from trainrig.posttrain.stages.prompted_run_files import AnswerSampling
from trainrig.posttrain.stages.sample_stage import sample_answers

if __name__ == "__main__":
    job.main(AnswerSampling, sample_answers)
