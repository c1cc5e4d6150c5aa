"""Score the answers in files with a reward model.

Run it on a cluster that has trainrig installed (README.md describes other clusters):

    ray job submit --working-dir . -- python jobs/score.py RUN.toml
"""

from trainrig import job
from trainrig.posttrain.row_run_files import AnswerScoring
from trainrig.posttrain.stages.score_stage import score_rows

if __name__ == "__main__":
    job.main(AnswerScoring, score_rows)
