"""Check of a cluster file: all problems at once, its pools, its cost, and the quotas it needs.

Nothing here asks a cloud. The search for secrets is part of the check, because cluster files are
often shared and kept in repositories. `show_checked` formats the result as text.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainrig import hardware
from trainrig.config.run_file_text import Location
from trainrig.errors import ConfigError
from trainrig.hardware import Hardware
from trainrig.launch.clusters import cluster_file, cluster_yaml
from trainrig.launch.redaction import NAMES, SHORTEST
from trainrig_contrib.cluster_check import kuberay_file, ray_file
from trainrig_contrib.cluster_check.aws_file import check_aws
from trainrig_contrib.cluster_check.gcp_file import check_gcp
from trainrig_contrib.cluster_check.machine_pools import (
    PoolEstimate,
    PoolPrice,
    PricedPool,
    Quota,
    compute_quotas,
    estimate,
    notice_warnings,
)
from trainrig_contrib.cluster_check.schema_differences import suggest_nearest

# Forms of well-known secrets: the id of an AWS key, a private key, a GitHub, Hugging Face or Google
# key, a JSON web token.
FORMS = re.compile(
    r"\b(AKIA|ASIA)[A-Z0-9]{16}\b|-----BEGIN [A-Z ]*PRIVATE KEY|\bgh[pousr]_[A-Za-z0-9]{36}"
    r"|\bhf_[A-Za-z0-9]{30}|\bAIza[\w-]{35}|\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\."
)
# NAME=value within a command or an option; `$NAME` and `$(…)` are resolved where they run.
ASSIGNED = re.compile(r"(?<!\w)(?=([A-Za-z]\w*)=[\"']?([^\s\"'$][^\s\"']*))")
INSTEAD = "keep it in a file named in file_mounts, in a Secret, or in the machine's IAM profile"


def find_secrets(data: Any, location: Location = ()) -> Iterator[cluster_yaml.Found]:
    """Yield the location of every text in `data` that contains a secret, without the secret."""
    if isinstance(data, dict):
        yield from _find_variable_secret(data, location)
        for key, value in data.items():
            yield from find_secrets(value, (*location, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from find_secrets(value, (*location, index))
    elif isinstance(data, str):
        names = [name for name, value in ASSIGNED.findall(data) if _is_secret(name, value)]
        if names:
            yield location, f"gives the value of {names[0]} in the file; {INSTEAD}"
        elif FORMS.search(data):
            yield location, f"looks like a secret; {INSTEAD}"


def _find_variable_secret(data: dict[str, Any], location: Location) -> Iterator[cluster_yaml.Found]:
    """Find a secret in `{name: TOKEN, value: …}`, an environment variable in Kubernetes."""
    name = data.get("name")
    value = data.get("value")
    if isinstance(name, str) and isinstance(value, str) and _is_secret(name, value):
        yield (*location, "value"), f"gives the value of {name} in the file; {INSTEAD}"


def _is_secret(name: str, value: str) -> bool:
    path = value.startswith(("/", "~", "./"))  # the path of a file with the secret is allowed
    return bool(NAMES.search(name)) and len(value) >= SHORTEST and not path


PROVIDERS = ("aws", "gcp", cluster_file.LAPTOP)

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
    problems: tuple[cluster_yaml.Problem, ...]
    warnings: tuple[str, ...]
    placeholders: tuple[cluster_yaml.Problem, ...]  # example values that the user has not replaced
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


def _to_json(problem: cluster_yaml.Problem) -> dict[str, Any]:
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
    text = cluster_file.read_cluster_text(Path(path))
    documents, problems = cluster_yaml.read_documents(text, str(path))
    provider = cluster_file.find_provider(documents)
    for document in documents:
        problems += map(document.locate_problem, _find_problems(document.data, provider, known))
        problems += map(document.locate_problem, find_secrets(document.data))
    data = cluster_file.find_main_document(documents)
    pools = (
        kuberay_file.list_kuberay_pools(data)
        if provider == cluster_file.KUBERNETES
        else ray_file.list_ray_pools(data)
    )
    warnings = _list_unpriced(pools, known, provider)
    if checkpoint_seconds is not None:
        warnings += notice_warnings(
            provider, pools, checkpoint_seconds, _find_grace(data, provider)
        )
    most = cluster_yaml.at(data, "max_workers")
    free = provider == cluster_file.LAPTOP
    return Checked(
        path=str(path),
        name=cluster_file.find_cluster_name(data),
        provider=provider,
        problems=tuple(sorted(set(problems))),
        warnings=tuple(warnings),
        placeholders=tuple(_find_placeholders(text, str(path))),
        pools=tuple(pools),
        price=estimate(pools, most if isinstance(most, int) else None, known, free),
        quotas=tuple(compute_quotas(provider, pools, known)) if provider in {"aws", "gcp"} else (),
    )


def _find_problems(data: Any, provider: str, known: Hardware) -> Iterator[cluster_yaml.Found]:
    if provider == cluster_file.KUBERNETES:
        yield from kuberay_file.find_kubernetes_differences(data)
        if cluster_yaml.at(data, "kind") in cluster_file.RAY:
            yield from kuberay_file.check_ray_cluster(data)
        if cluster_yaml.at(data, "kind") == "RayJob":
            yield from kuberay_file.check_ray_job(data)
        return
    yield from ray_file.check_ray_file(data)
    of_provider = cluster_yaml.ensure_table(data)
    if provider == "aws":
        yield from check_aws(of_provider, known)
    elif provider == "gcp":
        yield from check_gcp(of_provider, known)
    elif provider == cluster_file.LAPTOP:
        yield from ray_file.check_laptop(of_provider)
    else:
        yield from _check_provider(of_provider)
    if provider in {"aws", "gcp"}:
        yield from ray_file.check_agent(of_provider, provider)
        yield from ray_file.check_docker(of_provider)


def _check_provider(data: dict[str, Any]) -> Iterator[cluster_yaml.Found]:
    found = cluster_yaml.at(data, "provider", "type")
    if found is not None:
        hint = suggest_nearest(str(found), list(PROVIDERS))
        yield ("provider", "type"), f"unknown provider '{found}'{hint}"


def _list_unpriced(pools: list[PricedPool], known: Hardware, provider: str) -> list[str]:
    if provider == cluster_file.LAPTOP:
        return []
    return [
        f"no price for '{pool.instance}' (pool {pool.name}) in the hardware table; give a "
        "table with it: --hardware"
        for pool in pools
        if pool.instance and pool.instance not in known.instances
    ]


def _find_grace(data: Any, provider: str) -> float | None:
    """Return the shortest grace time of spot pods in seconds, if the file sets it."""
    if provider != cluster_file.KUBERNETES:
        return None
    spot = [
        g
        for _, g, _ in cluster_file.iterate_groups(data)
        if cluster_yaml.at(g, "labels", "trainrig.io/market") == "spot"
    ]
    graces = [cluster_yaml.at(g, "template", "spec", "terminationGracePeriodSeconds") for g in spot]
    return min((float(s) for s in graces if isinstance(s, int)), default=None)


def _find_placeholders(text: str, path: str) -> Iterator[cluster_yaml.Problem]:
    for number, line in enumerate(text.splitlines(), 1):
        found = PLACEHOLDERS.search(line.partition(" # ")[0])
        if found and not line.lstrip().startswith("#"):
            what = f"'{found.group()[:24]}' is a placeholder of the example; put in your own value"
            yield cluster_yaml.Problem(path, number, "", what)


def show_checked(checked: Checked) -> Iterator[str]:
    """Yield lines: pools with their hourly cost, quotas, and example values to replace."""
    yield f"{checked.name} ({checked.provider}), from {checked.path}"
    yield from _format_pools(checked)
    if checked.quotas:
        yield "quotas that must be granted:"
        for quota in checked.quotas:
            pools = ", ".join(quota.pools)
            yield f"  {quota.needed:>6,} {quota.unit}  {quota.name}  ({pools})"
    for warning in checked.warnings:
        yield f"warning: {warning}"
    if checked.placeholders:
        yield (
            f"to fill in before `cluster up` ({len(checked.placeholders)} "
            f"{'place' if len(checked.placeholders) == 1 else 'places'}):"
        )
        yield from (f"  {placeholder}" for placeholder in checked.placeholders)


def _format_pools(checked: Checked) -> Iterator[str]:
    yield f"{'pool':<8}{'instance':<18}{'market':<12}{'nodes':<9}{'USD/h each':>11}{'at most':>10}"
    for price in checked.price.prices:
        pool = price.pool
        nodes = "1" if pool.least == pool.most == 1 else f"{pool.least}-{pool.most}"
        yield (
            f"{pool.name:<8}{pool.instance or '?':<18}{pool.market or '?':<12}{nodes:<9}"
            f"{_format_usd(price.usd) + _format_mark(price):>11}{_format_usd(price.usd_most):>10}"
        )
    estimate = checked.price
    idle = _format_usd(estimate.usd_idle)
    most = _format_usd(estimate.usd_most)
    yield f"USD an hour: {idle} when idle, {most} at most"
    if any(price.listed for price in estimate.prices):
        yield "  * list price: spot prices are not in the table (typically 0.3 to 0.5 of it)"


def _format_mark(price: PoolPrice) -> str:
    return "*" if price.listed else ""


def _format_usd(usd: float | None) -> str:
    return "?" if usd is None else f"{usd:,.2f}"
