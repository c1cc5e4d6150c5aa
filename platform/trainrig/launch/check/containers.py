"""Checks of the image that a cluster's nodes run, and of how it is started."""

import re
from collections.abc import Iterator
from typing import Any

from trainrig.launch.check.document import Found, ensure_list, ensure_table

DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")


def check_image(image: Any, where: tuple[str | int, ...]) -> Iterator[Found]:
    """Check that an image is named by its digest, as the image behind a tag can change."""
    if isinstance(image, str) and not DIGEST.search(image):
        short = image if len(image) <= 60 else image[:57] + "..."
        yield where, f"'{short}' may differ between two nodes; pin it by @sha256:…"


def check_docker(data: dict[str, Any]) -> Iterator[Found]:
    """Check the `docker` part of a cluster file in Ray's form."""
    docker = ensure_table(data.get("docker"))
    if not docker:
        yield (), "`docker` is missing; every node needs an image with trainrig, pinned by digest"
        return
    for key in ("image", "head_image", "worker_image"):
        yield from check_image(docker.get(key), ("docker", key))
    options = [str(option) for option in ensure_list(docker.get("run_options"))]
    where = ("docker", "run_options") if options else ("docker",)
    if not any(option.startswith("--shm-size") for option in options):
        yield (
            where,
            "no --shm-size; Docker's 64 MB are too small for Ray's object store: --shm-size=32g",
        )
    if not any(option.replace("=", " ").startswith("--ulimit nofile") for option in options):
        yield where, "no --ulimit=nofile=65536:65536; a large shuffle opens more files than 1,024"
    for index, option in enumerate(options):
        if option.startswith("--privileged"):
            yield (
                (*where, index),
                "a privileged container has full access to the machine; leave it out",
            )
