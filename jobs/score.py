"""Rows of files with what a reward model gives for their answers.

On a cluster that has trainrig installed (README says how on another):

    ray job submit --working-dir . -- python jobs/score.py RUN.toml
"""

from trainrig import job
from trainrig.posttrain.score.run_file import AnswerScoring
from trainrig.posttrain.score.stage import score_rows

if __name__ == "__main__":
    job.main(AnswerScoring, score_rows)
