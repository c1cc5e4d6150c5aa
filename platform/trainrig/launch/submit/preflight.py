"""Checks before a submission; all problems are reported at once, and nothing is uploaded.

Nothing here changes the cluster. In storage, an empty object is created where the run will write,
and removed, as only that proves the right to write.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainrig import config, hardware, manifest, storage
from trainrig.config import ResourceRequest, RunFile
from trainrig.errors import ClusterError, ConfigError, OutputTaken, TrainrigError
from trainrig.hardware import Hardware
from trainrig.launch.ray_jobs import RayJobs, Unreachable, find_address
from trainrig.launch.submit import run_paths, uploads
from trainrig.launch.submit.cluster_view import ClusterView, Verdict, ask_pools, look
from trainrig.launch.submit.uploads import Package
from trainrig.launch.supervise.attempt_ends import Limits
from trainrig.launch.supervise.known_clusters import list_live_runs
from trainrig.launch.supervise.run_record import Home, RunRecord, run_id
from trainrig.manifest import Manifest
from trainrig.verbs import VERBS, suggest_verb


@dataclass(frozen=True)
class SubmissionRequest:
    """The run that the user asks to submit, with its limits."""

    verb: str
    run_file: str
    changes: Sequence[str] = ()
    address: str | None = None  # URL of the dashboard; None: from environment variables
    home: str | None = None  # None: from environment variables
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class Finding:
    """Result of one check: one line of the table."""

    what: str
    verdict: Verdict
    text: str


@dataclass
class Preflight:
    """Results of all checks; None stands for what could not be determined."""

    home: Home
    limits: Limits = field(default_factory=Limits)
    prices: Hardware | None = None  # the hardware table of the limits, if it is valid
    findings: list[Finding] = field(default_factory=list)
    run: RunFile | None = None  # with absolute paths
    jobs: RayJobs | None = None
    cluster: ClusterView | None = None
    package: Package | None = None
    finished: Manifest | None = None  # the manifest of the output, if the run has finished
    unreachable: bool = False  # the cluster did not answer, which may not be the user's mistake

    @property
    def problems(self) -> list[Finding]:
        """Findings that prevent the submission."""
        return [finding for finding in self.findings if finding.verdict == "problem"]

    @property
    def output(self) -> str:
        """The output folder of the run, which must have been read."""
        assert self.run is not None
        return self.run.output

    def record(self) -> RunRecord | None:
        """Return the record of the run, if it was ever submitted and its home can be read."""
        if self.run is None:
            return None
        try:
            return self.home.open(run_id(self.run.verb, self.output))
        except (TrainrigError, OSError):
            return None

    def to_json(self) -> list[dict[str, str]]:
        """Return the findings as JSON objects."""
        return [dataclasses.asdict(finding) for finding in self.findings]

    def show(self, say: Callable[[str], None]) -> None:
        """Print the findings as a table, one line each."""
        width = max((len(finding.what) for finding in self.findings), default=0)
        for finding in self.findings:
            say(f"{finding.verdict:8}{finding.what:{width + 2}}{finding.text}")

    def note(self, what: str, verdict: Verdict, text: str) -> None:
        """Add a finding."""
        self.findings.append(Finding(what, verdict, text))

    def check(self, what: str, ask: Callable[[], str | None]) -> None:
        """Add a finding with the text that `ask` returns, if any, or the error that it raises."""
        try:
            text = ask()
        except TrainrigError as error:
            self.unreachable |= isinstance(error, Unreachable)
            self.note(what, "problem", str(error))
        except OSError as error:
            self.note(what, "problem", f"{error.filename or what}: {error.strerror or error}")
        else:
            if text is not None:
                self.note(what, "ok", text)


def read_run(request: SubmissionRequest) -> RunFile:
    """Read the run file of a request, with absolute paths. Raises ConfigError."""
    if request.verb not in VERBS:
        hint = suggest_verb(request.verb)
        raise ConfigError(f"submit: no verb '{request.verb}' takes a run file{hint}")
    model = VERBS[request.verb].load_model()
    return config.with_absolute_paths(config.load(model, request.run_file, request.changes))


def examine(request: SubmissionRequest) -> Preflight:
    """Run all checks, in the order in which a user would fix their problems."""
    found = Preflight(Home.choose(request.home), request.limits)
    found.check("run file", lambda: _read_run_file(found, request))
    found.check("hardware", lambda: _read_prices(found))
    found.check("cluster", lambda: _reach(found, request))
    found.check("upload", lambda: _pack(found))
    if found.cluster:
        _check_versions(found, found.cluster)
    found.check("home", lambda: _place(found, found.home.path, "--home (or TRAINRIG_HOME)"))
    if found.run:
        _check_outputs(found, found.run)
        _check_inputs(found, found.run)
        if found.cluster:
            _check_capacity(found, found.run, found.cluster)
            found.check("cost", lambda: _estimate_cost(found))
            _check_max_cost(found)
            _check_other_runs(found, found.run, found.cluster)
    return found


def _read_run_file(found: Preflight, request: SubmissionRequest) -> str:
    found.run = read_run(request)
    return f"{request.run_file} is valid for `{request.verb}`"


def _read_prices(found: Preflight) -> str | None:
    path = found.limits.hardware
    found.prices = hardware.load(path)
    return None if path is None else f"{path}: {len(found.prices.instances)} instances with prices"


def _reach(found: Preflight, request: SubmissionRequest) -> str:
    jobs = RayJobs(find_address(request.address))
    found.cluster = look(jobs)
    found.jobs = jobs
    return f"{jobs.address}: {found.cluster.describe()}"


def _pack(found: Preflight) -> str:
    found.package = uploads.pack()
    size = len(found.package.data) / 2**20
    return f"trainrig, {found.package.files} files, {size:.1f} MiB packed"


def _check_versions(found: Preflight, cluster: ClusterView) -> None:
    if problem := cluster.find_version_problem():
        found.note("versions", "problem", problem)
    else:
        found.note("versions", "ok", f"Ray {cluster.ray}, Python {cluster.python} on both sides")


def _check_outputs(found: Preflight, run: RunFile) -> None:
    for place in run_paths.find_paths(run):
        if place.use == "output":
            found.check(place.key, lambda at=place: _place(found, at.path, at.key))  # type: ignore[misc]
    found.check("output", lambda: _check_run_output(found, run))


def _check_run_output(found: Preflight, run: RunFile) -> str | None:
    record = found.record()
    if record and record.read_status().alive:  # a live run may not have claimed its output yet
        there = config.load(type(run), record.run_file)
        if different := manifest.describe_table_difference(
            config.extract_identity(there), config.extract_identity(run)
        ):
            raise OutputTaken(
                f"{found.output}: {record.id} is already running there with another run "
                f"file ({different}); stop it, or choose another `output`"
            )
    found.finished = run_paths.check_output(run, found.output)
    return "already finished" if found.finished else None


def _place(found: Preflight, path: str, key: str) -> str | None:
    """Check that the run can write at `path`. Raises TrainrigError."""
    said = _check_seen_by_cluster(found, path, key)
    run_paths.check_writable(path)
    return said


def _check_seen_by_cluster(found: Preflight, path: str, key: str) -> str | None:
    if storage.is_remote(path):
        return f"{path}: writable"
    if found.cluster is None:
        return None
    if found.cluster.here:
        return f"{path}: on this machine, as the cluster is"
    if kind := run_paths.find_shared_disk(path):
        return f"{path}: on {kind}, which every node must mount at the same path"
    raise ConfigError(
        f"{path}: on a disk of this machine, which the cluster at {found.cluster.address} "
        f"cannot see; set {key} to the URL of a bucket, as in s3://BUCKET/FOLDER"
    )


def _check_inputs(found: Preflight, run: RunFile) -> None:
    inputs = [place for place in run_paths.find_paths(run) if place.use in ("input", "shipped")]
    for place in inputs:
        found.check(place.key, lambda at=place: _check_input(found, at))  # type: ignore[misc]
    if inputs and not any(finding.what in {p.key for p in inputs} for finding in found.problems):
        found.note("inputs", "ok", f"all {len(inputs)} exist")


def _check_input(found: Preflight, place: run_paths.NamedPath) -> None:
    if place.use == "input":
        _check_seen_by_cluster(found, place.path, place.key)
    if not run_paths.is_there(place.path):
        raise ConfigError(f"{place.path}: does not exist; create it first, or name another")


def _check_capacity(found: Preflight, run: RunFile, cluster: ClusterView) -> None:
    asked = _request(run, cluster)
    if (
        found.jobs
        and _pools_matter(found, run, cluster, asked)
        and not cluster.find_version_problem()
    ):
        try:  # this takes a few seconds, which are saved where the live nodes suffice
            cluster = found.cluster = dataclasses.replace(cluster, pools=ask_pools(found.jobs))
        except ClusterError as error:
            found.note("resources", "problem", str(error))
            return
        asked = _request(run, cluster)
    found.note("resources", *cluster.check_capacity(asked))


def _request(run: RunFile, cluster: ClusterView) -> ResourceRequest:
    return run.request_resources(any(node.get("GPU", 0) >= 1 for node in cluster.list_resources()))


def _pools_matter(
    found: Preflight, run: RunFile, cluster: ClusterView, asked: ResourceRequest
) -> bool:
    """Return whether the pools add anything to what the live nodes show.

    They do if the workers do not fit on live nodes, if a pool at zero nodes has GPUs, which
    training prefers to CPUs, or if a cost limit needs their prices.
    """
    if cluster.count_live_places(asked) < asked.least:
        return True
    if not cluster.may_grow:
        return False
    would_take_gpus = run.request_resources(True).gpus and not asked.gpus
    return bool(would_take_gpus) or found.limits.max_cost is not None


def _estimate_cost(found: Preflight) -> str | None:
    """Return hours and price of runs that can be estimated.

    Raises InputError if the settings do not fit each other.
    """
    if found.run is None or not found.run.estimates_cost or found.cluster is None:
        return None
    if found.prices is None:  # reported by the check of the hardware table
        return None
    from trainrig.check import describe
    from trainrig.estimate.cost_estimate import DeviceChoice

    # The estimate needs the cluster's device. This machine's device is used only if the cluster
    # runs on it.
    device = found.cluster.find_device(found.prices)
    if device is None and not found.cluster.here:
        return None
    facts = describe(found.run, DeviceChoice(device, found.limits.hardware))
    return ", ".join(_estimate(facts, found.cluster.compute_spot_share(found.prices))) or None


def _check_max_cost(found: Preflight) -> None:
    """Add a problem if a cost limit is set and a price is missing."""
    if found.limits.max_cost is None or found.cluster is None or found.prices is None:
        return
    if missing := found.cluster.list_unpriced_nodes(found.prices):
        named = ", ".join(missing)
        found.note(
            "max cost",
            "problem",
            f"max_cost cannot be enforced: no price for {named}; give a table with these "
            "prices by --hardware",
        )


def _check_other_runs(found: Preflight, run: RunFile, cluster: ClusterView) -> None:
    """Warn of other live runs on the cluster, as nodes are not divided between runs."""
    try:
        live = list_live_runs(found.home, cluster.name, [] if cluster.name else [cluster.address])
    except (TrainrigError, OSError):  # the finding `home` reports the error
        return
    others = [record.id for record in live if record.id != run_id(run.verb, found.output)]
    if others:
        found.note(
            "others",
            "warning",
            f"other runs are live on this cluster: {', '.join(others)}; each is charged "
            "for all nodes",
        )


def _estimate(facts: dict[str, Any], spot: float | None) -> Iterator[str]:
    if "trials" in facts:
        yield f"{facts['trials']} models, {facts['runs']} runs, {facts['flops']:.3g} FLOP"
    if "hours" in facts:
        yield f"{facts['hours']:,.2f} h on {facts['device']}"
    if "usd" in facts:
        low = f"{facts['usd'] * spot:,.2f} to " if spot is not None else ""
        yield f"{low}{facts['usd']:,.2f} USD ({facts['rented']})"
        yield f"{facts['positions'] / facts['usd']:,.0f} tokens per USD"
