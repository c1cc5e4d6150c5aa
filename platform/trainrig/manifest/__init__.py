"""Claims and manifests of stages: a stage reads folders and writes one folder, its manifest last.

`stage.json` claims the folder for one fingerprint of run file and inputs. `manifest.json` marks the
stage as finished and lists the hashes of its files. Once the manifest is written, the same command
does nothing. A different run is refused, and a killed run resumes under its own claim.
"""

from trainrig.manifest.stage_folder import LIBRARIES as LIBRARIES
from trainrig.manifest.stage_folder import SCRATCH as SCRATCH
from trainrig.manifest.stage_folder import Stage as Stage
from trainrig.manifest.stage_folder import build_claim as build_claim
from trainrig.manifest.stage_folder import claim as claim
from trainrig.manifest.stage_folder import collect_environment as collect_environment
from trainrig.manifest.stage_records import CLAIM as CLAIM
from trainrig.manifest.stage_records import MANIFEST as MANIFEST
from trainrig.manifest.stage_records import Below as Below
from trainrig.manifest.stage_records import Claim as Claim
from trainrig.manifest.stage_records import FileSum as FileSum
from trainrig.manifest.stage_records import Manifest as Manifest
from trainrig.manifest.stage_records import check_sum as check_sum
from trainrig.manifest.stage_records import compute_file_sum as compute_file_sum
from trainrig.manifest.stage_records import describe_difference as describe_difference
from trainrig.manifest.stage_records import describe_table_difference as describe_table_difference
from trainrig.manifest.stage_records import digest as digest
from trainrig.manifest.stage_records import find_manifest as find_manifest
from trainrig.manifest.stage_records import read_claim as read_claim
from trainrig.manifest.stage_records import read_file as read_file
from trainrig.manifest.stage_records import read_input as read_input
from trainrig.manifest.stage_records import read_manifest as read_manifest
from trainrig.manifest.stage_records import verify_files as verify_files
