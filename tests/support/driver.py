"""A driver that can be killed: `python -m support.driver JOB.pickle WORKERS` trains the job."""

import pickle
import sys
from pathlib import Path

from trainrig.job import exit_codes
from trainrig.train.elastic import trainer

if __name__ == "__main__":
    job = pickle.loads(Path(sys.argv[1]).read_bytes())
    with exit_codes():
        trainer.run(job, int(sys.argv[2]))
