"""Answers of a model, criticised and revised by principles, and judged.

On a cluster that has trainrig installed (README says how on another):

    ray job submit --working-dir . -- python jobs/constitutional.py RUN.toml
"""

from trainrig import job
from trainrig.posttrain.constitutional.run_file import ConstitutionalChain
from trainrig.posttrain.constitutional.stage import revise_answers

if __name__ == "__main__":
    job.main(ConstitutionalChain, revise_answers)
