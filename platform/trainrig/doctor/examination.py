"""All checks of `trainrig doctor`, in the order in which a user would fix their problems."""

from collections.abc import Iterator, Sequence

from trainrig.doctor import gpu_checks, machine_checks, software_checks
from trainrig.doctor.diagnosis import Diagnosis, run_check


def examine(buckets: Sequence[str] = (), folder: str = ".") -> list[Diagnosis]:
    """Run all checks.

    Args:
        buckets: locations at which to create, read, list and delete an object.
        folder: the folder in which runs will write.
    """
    return list(_examine(buckets, folder))


def _examine(buckets: Sequence[str], folder: str) -> Iterator[Diagnosis]:
    yield run_check("python", software_checks.check_python)
    yield run_check("packages", software_checks.check_packages)
    survey = gpu_checks.survey_gpus()
    yield run_check("gpu", lambda: gpu_checks.check_gpus(survey))
    try:
        build = gpu_checks.read_cuda_build()
    except ImportError as error:
        yield Diagnosis("torch", "problem", str(error), software_checks.INSTALL)
    else:
        trial = gpu_checks.try_torch() if survey.gpus and build else None
        yield run_check("torch", lambda: gpu_checks.check_torch(survey, build, trial))
        yield run_check("nccl", lambda: gpu_checks.check_nccl(survey, trial))
    yield run_check("ray", software_checks.check_ray)
    yield run_check("disk", lambda: machine_checks.check_disk(folder))
    for subject, check in machine_checks.MACHINE_CHECKS.items():
        yield run_check(subject, check)
    for location in buckets:
        yield run_check("bucket", lambda at=location: machine_checks.check_bucket(at))  # type: ignore[misc]
