"""Claims and manifests of stages: a stage reads folders and writes one folder, its manifest last.

`stage.json` claims the folder for one fingerprint of run file and inputs. `manifest.json` marks the
stage as finished and lists the hashes of its files. Once the manifest is written, the same command
does nothing. A different run is refused, and a killed run resumes under its own claim.
"""

from trainrig.manifest.differences import describe_difference, describe_table_difference
from trainrig.manifest.environment import LIBRARIES, collect_environment
from trainrig.manifest.file_checks import (
    check_sum,
    compute_file_sum,
    read_file,
    read_input,
    verify_files,
)
from trainrig.manifest.records import (
    CLAIM,
    MANIFEST,
    Below,
    Claim,
    FileSum,
    Manifest,
    digest,
    read_claim,
    read_manifest,
)
from trainrig.manifest.stage import SCRATCH, Stage, build_claim, claim

__all__ = [
    "CLAIM",
    "LIBRARIES",
    "MANIFEST",
    "SCRATCH",
    "Below",
    "Claim",
    "FileSum",
    "Manifest",
    "Stage",
    "build_claim",
    "check_sum",
    "claim",
    "collect_environment",
    "compute_file_sum",
    "describe_difference",
    "describe_table_difference",
    "digest",
    "read_claim",
    "read_file",
    "read_input",
    "read_manifest",
    "verify_files",
]
