"""What a teacher expects at each place of conversations, for a student to learn.

On a cluster that has trainrig installed (README says how on another):

    ray job submit --working-dir . -- python jobs/teacher.py RUN.toml
"""

from trainrig import job
from trainrig.posttrain.distillation.run_file import TeacherScoring
from trainrig.posttrain.distillation.stage import store_teacher

if __name__ == "__main__":
    job.main(TeacherScoring, store_teacher)
