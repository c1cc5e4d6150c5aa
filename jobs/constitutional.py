"""Let a model criticise, revise and judge its answers by principles.

Run it on a cluster that has trainrig installed (README.md describes other clusters):

    ray job submit --working-dir . -- python jobs/constitutional.py RUN.toml
"""

from trainrig import job
from trainrig.posttrain.stages.constitutional_stage import revise_answers
from trainrig.posttrain.stages.prompted_run_files import ConstitutionalChain

if __name__ == "__main__":
    job.main(ConstitutionalChain, revise_answers)
