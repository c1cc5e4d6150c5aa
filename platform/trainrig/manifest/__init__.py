"""Claims and manifests of stages: a stage reads folders and writes one folder, its manifest last.

`stage.json` claims the folder for one fingerprint of run file and inputs. `manifest.json` marks the
stage as finished and lists the hashes of its files. Once the manifest is written, the same command
does nothing. A different run is refused, and a killed run resumes under its own claim.
"""

from trainrig.manifest.stage_folder import (
    LIBRARIES,
    SCRATCH,
    Stage,
    build_claim,
    claim,
    collect_environment,
)
from trainrig.manifest.stage_records import (
    CLAIM,
    MANIFEST,
    Below,
    Claim,
    FileSum,
    Manifest,
    check_sum,
    compute_file_sum,
    describe_difference,
    describe_table_difference,
    digest,
    find_manifest,
    read_claim,
    read_file,
    read_input,
    read_manifest,
    verify_files,
)

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
    "find_manifest",
    "read_claim",
    "read_file",
    "read_input",
    "read_manifest",
    "verify_files",
]
