"""Checks before a submission. All problems are reported at once; nothing is uploaded or paid
for. Every problem is told at once.

Nothing here changes the cluster. In storage, an empty object is created where the run will write,
and removed: rights are known by using them.
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
from trainrig.launch.record.live_runs import list_live_runs
from trainrig.launch.record.run_record import Home, RunRecord, run_id
from trainrig.launch.submit import package_upload
from trainrig.launch.submit.cluster_view import ClusterView, Verdict, ask_pools, look
from trainrig.launch.submit.output_check import check_output
from trainrig.launch.submit.package_upload import Package
from trainrig.launch.submit.run_paths import NamedPath, find_paths, is_there, with_absolute_paths
from trainrig.launch.submit.write_access import check_writable, find_shared_disk
from trainrig.launch.supervise.limits import Limits
from trainrig.manifest import Manifest
from trainrig.verbs import VERBS


@dataclass(frozen=True)
class SubmissionRequest:
    """What the user asks for."""

    verb: str
    run_file: str
    changes: Sequence[str] = ()
    address: str | None = None  # of the cluster's jobs; None: by the environment
    home: str | None = None  # None: by the environment
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class Finding:
    """One line of the table."""

    what: str
    verdict: Verdict
    text: str


@dataclass
class Preflight:
    """What was found; what is None could not be had."""

    home: Home
    limits: Limits = field(default_factory=Limits)
    prices: Hardware | None = None  # the table of them that the limits name, if it is one
    findings: list[Finding] = field(default_factory=list)
    run: RunFile | None = None  # its paths absolute
    jobs: RayJobs | None = None
    cluster: ClusterView | None = None
    package: Package | None = None
    finished: Manifest | None = None  # of the output: nothing is left to do
    unreachable: bool = False  # the cluster: the user may have done nothing wrong

    @property
    def problems(self) -> list[Finding]:
        """What keeps the run from being submitted."""
        return [each for each in self.findings if each.verdict == "problem"]

    @property
    def output(self) -> str:
        """Of the run, which must have been read."""
        assert self.run is not None
        return self.run.output

    def record(self) -> RunRecord | None:
        """The record of the run, if it was ever submitted and its home can be read."""
        if self.run is None:
            return None
        try:
            return self.home.open(run_id(self.run.verb, self.output))
        except (TrainrigError, OSError):
            return None

    def as_json(self) -> list[dict[str, str]]:
        """The table."""
        return [dataclasses.asdict(each) for each in self.findings]

    def show(self, say: Callable[[str], None]) -> None:
        """The table for people, a line each."""
        width = max((len(each.what) for each in self.findings), default=0)
        for each in self.findings:
            say(f"{each.verdict:8}{each.what:{width + 2}}{each.text}")

    def note(self, what: str, verdict: Verdict, text: str) -> None:
        """Add a line."""
        self.findings.append(Finding(what, verdict, text))

    def check(self, what: str, ask: Callable[[], str | None]) -> None:
        """Add a line of what `ask` says, or of what it raises; none for None."""
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
    """The run that is asked for, with absolute paths. Raises ConfigError."""
    if request.verb not in VERBS:
        hint = config.suggest_choice(request.verb, VERBS)
        raise ConfigError(f"submit: no verb '{request.verb}' takes a run file{hint}")
    model = VERBS[request.verb].load_model()
    return with_absolute_paths(config.load(model, request.run_file, request.changes))


def examine(request: SubmissionRequest) -> Preflight:
    """Everything that can be known before the upload, in the order in which people mend it."""
    found = Preflight(Home.choose(request.home), request.limits)
    found.check("run file", lambda: _read_run_file(found, request))
    found.check("hardware", lambda: _read_prices(found))
    found.check("cluster", lambda: _reach(found, request))
    found.check("upload", lambda: _pack(found))
    if found.cluster:
        _check_versions(found, found.cluster)
    _check_home(found)
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
    return f"{request.run_file} is one for `{request.verb}`"


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
    found.package = package_upload.pack()
    size = len(found.package.data) / 2**20
    return f"trainrig, {found.package.files} files, {size:.1f} MiB packed"


def _check_versions(found: Preflight, cluster: ClusterView) -> None:
    if problem := cluster.find_version_problem():
        found.note("versions", "problem", problem)
    else:
        found.note("versions", "ok", f"Ray {cluster.ray}, Python {cluster.python} on both sides")


def _check_home(found: Preflight) -> None:
    found.check("home", lambda: _place(found, found.home.path, "--home (or TRAINRIG_HOME)"))


def _check_outputs(found: Preflight, run: RunFile) -> None:
    for place in find_paths(run):
        if place.use == "output":
            found.check(place.key, lambda at=place: _place(found, at.path, at.key))  # type: ignore[misc]
    found.check("output", lambda: _look_into_output(found, run))


def _look_into_output(found: Preflight, run: RunFile) -> str | None:
    record = found.record()
    if record and record.read_status().alive:  # it may not have claimed its output yet
        there = config.load(type(run), record.run_file)
        if different := manifest.describe_table_difference(
            config.extract_identity(there), config.extract_identity(run)
        ):
            raise OutputTaken(
                f"{found.output}: {record.id} is under way there with another run file "
                f"({different}); stop it, or choose another `output`"
            )
    found.finished = check_output(run, found.output)
    return "finished before" if found.finished else None


def _place(found: Preflight, path: str, key: str) -> str | None:
    """Whether the run can write at `path`. Raises TrainrigError."""
    said = _check_seen_by_cluster(found, path, key)
    check_writable(path)
    return said


def _check_seen_by_cluster(found: Preflight, path: str, key: str) -> str | None:
    if path.startswith(storage.S3):
        return f"{path}: may be written"
    if found.cluster is None:
        return None
    if found.cluster.here:
        return f"{path}: on this machine, as the cluster is"
    if kind := find_shared_disk(path):
        return f"{path}: on {kind}, which every node must have at the same place"
    raise ConfigError(
        f"{path}: a disk of this machine, which the cluster at {found.cluster.address} cannot see; "
        f"let {key} be an s3:// location"
    )


def _check_inputs(found: Preflight, run: RunFile) -> None:
    inputs = [place for place in find_paths(run) if place.use in ("input", "shipped")]
    for place in inputs:
        found.check(place.key, lambda at=place: _check_input(found, at))  # type: ignore[misc]
    if inputs and not any(each.what in {p.key for p in inputs} for each in found.problems):
        found.note("inputs", "ok", f"all {len(inputs)} are there")


def _check_input(found: Preflight, place: NamedPath) -> None:
    if place.use == "input":
        _check_seen_by_cluster(found, place.path, place.key)
    if not is_there(place.path):
        raise ConfigError(f"{place.path}: nothing is there; make it first, or name another")


def _check_capacity(found: Preflight, run: RunFile, cluster: ClusterView) -> None:
    asked = _request(run, cluster)
    if (
        found.jobs
        and _pools_matter(found, run, cluster, asked)
        and not cluster.find_version_problem()
    ):
        try:  # a few seconds, which a cluster with enough nodes does not cost
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
    """Whether what may come says more than what is up: of the room, of the devices that training
    takes, which go before cores also while their pool is at zero, or of the prices."""
    if cluster.count_live_places(asked) < asked.least:
        return True
    if not cluster.may_grow:
        return False
    would_take_gpus = run.request_resources(True).gpus and not asked.gpus
    return bool(would_take_gpus) or found.limits.max_cost is not None


def _estimate_cost(found: Preflight) -> str | None:
    """Hours and price, for runs that can be reckoned. Raises InputError if parts do not fit."""
    if found.run is None or not found.run.estimates_cost or found.cluster is None:
        return None
    if found.prices is None:  # said already
        return None
    from trainrig.check import describe
    from trainrig.estimate.device_choice import DeviceChoice

    # What the reckoning is for must be known; it is not for this machine, unless the cluster is.
    device = found.cluster.find_device(found.prices)
    if device is None and not found.cluster.here:
        return None
    facts = describe(found.run, DeviceChoice(device, found.limits.hardware))
    return ", ".join(_estimate(facts, found.cluster.compute_spot_share(found.prices))) or None


def _check_max_cost(found: Preflight) -> None:
    """Add a problem if a limit is set that nobody could hold."""
    if found.limits.max_cost is None or found.cluster is None or found.prices is None:
        return
    if missing := found.cluster.list_unpriced_nodes(found.prices):
        named = ", ".join(missing)
        found.note(
            "max cost",
            "problem",
            f"max_cost cannot be held: no price for {named}; give --hardware, a table with it",
        )


def _check_other_runs(found: Preflight, run: RunFile, cluster: ClusterView) -> None:
    """Warn of runs that are live there: nodes are not divided between them."""
    try:
        live = list_live_runs(found.home, cluster.name, [] if cluster.name else [cluster.address])
    except (TrainrigError, OSError):  # `home` says what is wrong with it
        return
    others = [record.id for record in live if record.id != run_id(run.verb, found.output)]
    if others:
        found.note(
            "others",
            "warning",
            f"live on this cluster: {', '.join(others)}; each is charged for all its nodes",
        )


def _estimate(facts: dict[str, Any], spot: float | None) -> Iterator[str]:
    if "trials" in facts:
        yield f"{facts['trials']} models, {facts['runs']} runs, {facts['flops']:.3g} FLOP"
    if "hours" in facts:
        yield f"{facts['hours']:,.2f} h on {facts['device']}"
    if "usd" in facts:
        low = f"{facts['usd'] * spot:,.2f} to " if spot is not None else ""
        yield f"{low}{facts['usd']:,.2f} USD ({facts['rented']})"
        yield f"{facts['positions'] / facts['usd']:,.0f} tokens a USD"
