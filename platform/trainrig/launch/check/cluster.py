"""Check of a cluster file: all problems at once, its pools, its cost, and the quotas it needs."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainrig import hardware, storage
from trainrig.errors import ConfigError
from trainrig.hardware import Hardware
from trainrig.launch.check.clouds.aws import check_aws
from trainrig.launch.check.clouds.gcp import check_gcp
from trainrig.launch.check.clouds.laptop import check_laptop
from trainrig.launch.check.containers import check_docker
from trainrig.launch.check.document import (
    Found,
    Problem,
    YamlDocument,
    at,
    ensure_table,
    read_documents,
    suggest_nearest,
)
from trainrig.launch.check.kubernetes.kuberay import (
    check_ray_cluster,
    iterate_groups,
    list_kuberay_pools,
)
from trainrig.launch.check.kubernetes.kubernetes_shape import RAY, find_kubernetes_differences
from trainrig.launch.check.kubernetes.rayjob import check_ray_job
from trainrig.launch.check.notice import notice_warnings
from trainrig.launch.check.pools import PoolEstimate, PricedPool, estimate
from trainrig.launch.check.quotas import Quota, compute_quotas
from trainrig.launch.check.ray_file import check_ray_file, list_ray_pools
from trainrig.launch.check.secrets import find_secrets
from trainrig.launch.check.spot_agent import check_agent

KUBERNETES = "kubernetes"
LAPTOP = "fake_multinode"
PROVIDERS = ("aws", "gcp", LAPTOP)
LARGEST = 2**20  # bytes of a cluster file at most; the shipped files have 10,000

# Placeholders in the shipped files for values that only the user knows: accounts, networks, images.
PLACEHOLDERS = re.compile(
    r"111122223333|my-project|\b(ami|subnet|sg)-0{17}|@sha256:0{64}|registry\.example\.com|AAAA-YOURS"
    r"|\b10\.0\.0\.2:/"
)


@dataclass(frozen=True)
class Checked:
    """Result of checking a cluster file, without asking a cloud."""

    path: str
    name: str  # name of the cluster
    provider: str  # aws, gcp, kubernetes or fake_multinode
    problems: tuple[Problem, ...]
    warnings: tuple[str, ...]
    placeholders: tuple[Problem, ...]  # example values that the user has not replaced
    pools: tuple[PricedPool, ...]
    price: PoolEstimate
    quotas: tuple[Quota, ...]

    def refuse(self, placeholders: bool = True) -> None:
        """Raise ConfigError with the first problem, if there is any.

        By default, example values that are left count as problems, as nothing can be rented with
        them.
        """
        found = [*self.problems, *(self.placeholders if placeholders else ())]
        if found:
            more = (
                f" (and {len(found) - 1} more; see `trainrig cluster check`)" if found[1:] else ""
            )
            raise ConfigError(f"{found[0]}{more}")

    def to_json(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        return {
            "file": self.path,
            "name": self.name,
            "provider": self.provider,
            "problems": [_to_json(problem) for problem in self.problems],
            "to_put_in": [_to_json(problem) for problem in self.placeholders],
            "warnings": list(self.warnings),
            "price": self.price.to_json(),
            "quotas": [quota.to_json() for quota in self.quotas],
        }


def _to_json(problem: Problem) -> dict[str, Any]:
    return {"line": problem.line, "where": problem.where, "what": problem.what}


def check_cluster(
    path: str | Path, table_of_hardware: str | None = None, checkpoint_seconds: float | None = None
) -> Checked:
    """Check the cluster file at `path` without asking a cloud.

    `table_of_hardware` names a table with other prices and sizes. `checkpoint_seconds` is the time
    that a checkpoint takes; a warning says where the notice is too short for that. Raises
    ConfigError only if the file cannot be read.
    """
    known = hardware.load(table_of_hardware)
    text = _read(Path(path))
    documents, problems = read_documents(text, str(path))
    provider = _find_provider(documents)
    for document in documents:
        problems += map(document.locate_problem, _find_problems(document.data, provider, known))
        problems += map(document.locate_problem, find_secrets(document.data))
    data = _find_main_document(documents)
    pools = list_kuberay_pools(data) if provider == KUBERNETES else list_ray_pools(data)
    warnings = _list_unpriced(pools, known, provider)
    if checkpoint_seconds is not None:
        warnings += notice_warnings(
            provider, pools, checkpoint_seconds, _find_grace(data, provider)
        )
    most = at(data, "max_workers")
    free = provider == LAPTOP
    return Checked(
        path=str(path),
        name=str(at(data, "cluster_name") or at(data, "metadata", "name") or ""),
        provider=provider,
        problems=tuple(sorted(set(problems))),
        warnings=tuple(warnings),
        placeholders=tuple(_find_placeholders(text, str(path))),
        pools=tuple(pools),
        price=estimate(pools, most if isinstance(most, int) else None, known, free),
        quotas=tuple(compute_quotas(provider, pools, known)) if provider in {"aws", "gcp"} else (),
    )


def _read(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > LARGEST:
        raise ConfigError(
            f"{path}: {len(data):,} bytes; a cluster file may have at most {LARGEST:,}"
        )
    try:
        return storage.decode_utf8(data)
    except storage.NotUtf8 as error:
        raise ConfigError(f"{path}: {error}; write YAML") from None


def _find_main_document(documents: list[YamlDocument]) -> Any:
    """Return the document that describes the cluster, if the file has several."""
    of_ray = [document.data for document in documents if at(document.data, "kind") in RAY]
    return (of_ray or [document.data for document in documents] or [{}])[0]


def _find_provider(documents: list[YamlDocument]) -> str:
    if any(
        "apiVersion" in ensure_table(d.data) or "kind" in ensure_table(d.data) for d in documents
    ):
        return KUBERNETES
    return str(at(documents[0].data, "provider", "type") or "") if documents else ""


def _find_problems(data: Any, provider: str, known: Hardware) -> Iterator[Found]:
    if provider == KUBERNETES:
        yield from find_kubernetes_differences(data)
        if at(data, "kind") in RAY:
            yield from check_ray_cluster(data)
        if at(data, "kind") == "RayJob":
            yield from check_ray_job(data)
        return
    yield from check_ray_file(data)
    of_provider = ensure_table(data)
    if provider == "aws":
        yield from check_aws(of_provider, known)
    elif provider == "gcp":
        yield from check_gcp(of_provider, known)
    elif provider == LAPTOP:
        yield from check_laptop(of_provider)
    else:
        yield from _check_provider(of_provider)
    if provider in {"aws", "gcp"}:
        yield from check_agent(of_provider, provider)
        yield from check_docker(of_provider)


def _check_provider(data: dict[str, Any]) -> Iterator[Found]:
    found = at(data, "provider", "type")
    if found is not None:
        hint = suggest_nearest(str(found), list(PROVIDERS))
        yield ("provider", "type"), f"unknown provider '{found}'{hint}"


def _list_unpriced(pools: list[PricedPool], known: Hardware, provider: str) -> list[str]:
    if provider == LAPTOP:
        return []
    return [
        f"no price for '{pool.instance}' (pool {pool.name}) in the hardware table; give a "
        "table with it: --hardware"
        for pool in pools
        if pool.instance and pool.instance not in known.instances
    ]


def _find_grace(data: Any, provider: str) -> float | None:
    """Return the shortest grace time of spot pods in seconds, if the file sets it."""
    if provider != KUBERNETES:
        return None
    spot = [
        g for _, g, _ in iterate_groups(data) if at(g, "labels", "trainrig.io/market") == "spot"
    ]
    graces = [at(g, "template", "spec", "terminationGracePeriodSeconds") for g in spot]
    return min((float(s) for s in graces if isinstance(s, int)), default=None)


def _find_placeholders(text: str, path: str) -> Iterator[Problem]:
    for number, line in enumerate(text.splitlines(), 1):
        found = PLACEHOLDERS.search(line.partition(" # ")[0])
        if found and not line.lstrip().startswith("#"):
            what = f"'{found.group()[:24]}' is a placeholder of the example; put in your own value"
            yield Problem(path, number, "", what)
