"""Where a run may write, and which disks machines can share."""

import os
from pathlib import Path

import pytest

from trainrig.errors import ConfigError, DataError
from trainrig.launch.submit import run_paths
from trainrig.launch.submit.run_paths import check_writable, find_shared_disk
from trainrig.storage import s3_objects

MOUNTS = """/dev/vda1 / ext4 rw 0 0
fs-1.example:/ /mnt/efs nfs4 rw,vers=4.1 0 0
/dev/vdb /mnt/efs/local ext4 rw 0 0
10.0.0.1@tcp:/fsx /mnt/with\\040space lustre rw 0 0
bucket /mnt/bucket fuse.s3fs rw 0 0
"""


def test_a_shared_disk_is_recognised_by_its_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mounts").write_text(MOUNTS)
    monkeypatch.setattr(run_paths, "MOUNTS", str(tmp_path / "mounts"))
    assert find_shared_disk("/mnt/efs/runs") == "nfs4 (fs-1.example:/)"
    assert find_shared_disk("/mnt/with space/runs") == "lustre (10.0.0.1@tcp:/fsx)"
    assert find_shared_disk("/mnt/bucket") == "fuse.s3fs (bucket)"
    assert find_shared_disk("/mnt/efs/local/runs") is None
    assert find_shared_disk("/mnt/efsother") is None
    monkeypatch.setattr(run_paths, "MOUNTS", str(tmp_path / "none"))
    assert find_shared_disk("/mnt/efs/runs") is None


def test_a_folder_that_does_not_exist_yet_may_be_written(tmp_path: Path) -> None:
    check_writable(str(tmp_path / "new" / "deeper"))
    assert not list(tmp_path.iterdir())


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file is a file"):
        check_writable(str(tmp_path / "file" / "below"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_rights(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(ConfigError, match="cannot be written: Permission denied"):
        check_writable(str(tmp_path / "closed" / "below"))


def test_a_bucket_keeps_nothing_of_the_check(s3: str) -> None:
    check_writable(f"{s3}/home")
    assert s3_objects.get_client().list_objects_v2(Bucket=s3.removeprefix("s3://"))["KeyCount"] == 0
    with pytest.raises(DataError, match="bucket does not exist"):
        check_writable("s3://not-there-at-all/home")
