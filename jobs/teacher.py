"""Store a teacher's predictions at each position of conversations, for distillation.

Run it on a cluster that has trainrig installed (README.md describes other clusters):

    ray job submit --working-dir . -- python jobs/teacher.py RUN.toml
"""

from trainrig import job
from trainrig.posttrain.row_run_files import TeacherScoring
from trainrig.posttrain.stages.teacher_stage import store_teacher

if __name__ == "__main__":
    job.main(TeacherScoring, store_teacher)
