"""Command-line verbs for clusters that are described by files: `trainrig cluster …`."""

import json
from typing import Annotated

import typer

from trainrig import command_line
from trainrig.command_line import (
    CLUSTERS,
    CONTEXT,
    HardwareTable,
    HelpGroup,
    Json,
    RecordsHome,
    argument,
    command,
    flag,
    option,
)
from trainrig.extras import load_extra
from trainrig.job import if_stopped

cluster_app = typer.Typer(
    cls=HelpGroup,
    context_settings=CONTEXT,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Check cluster files, bring clusters up and take them down.",
)


def _complete_names(incomplete: str) -> list[str]:
    from trainrig.launch.clusters.shipped_clusters import list_shipped_clusters

    known = [name for name in list_shipped_clusters() if name.startswith(incomplete)]
    return known or command_line.complete_files(incomplete, (".yaml", ".yml"))


ClusterName = Annotated[
    str,
    argument(
        "NAME|FILE",
        help="Cluster: aws, gcp, local, kuberay/raycluster, kuberay/rayjob, or a YAML file.",
        autocompletion=_complete_names,
    ),
]


@command(cluster_app, CLUSTERS, "trainrig cluster check aws")
def check(
    name: ClusterName,
    hardware: HardwareTable = None,
    checkpoint_seconds: Annotated[
        float | None,
        option(
            "SECONDS",
            help="Time that a checkpoint takes: warn if it does not fit into the cloud's notice "
            "before it takes a machine back.  [default: not checked]",
            min=0,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a cluster file: its mistakes by line, the cost and the quotas it needs."""
    from trainrig.launch.clusters.shipped_clusters import find_cluster

    extra = load_extra("cluster_check.cluster_check", "trainrig cluster check")
    checked = extra.check_cluster(find_cluster(name), hardware, checkpoint_seconds)
    if as_json:
        print(json.dumps(checked.to_json()))
    elif not checked.problems:
        print("\n".join(extra.show_checked(checked)))
    if checked.problems:
        for problem in checked.problems:
            typer.echo(f"trainrig: {problem}", err=True)
        raise SystemExit(2)


@command(cluster_app, CLUSTERS, "trainrig cluster up aws --minutes 20")
def up(
    name: ClusterName,
    minutes: Annotated[
        float, option("MINUTES", help="Give up if the cluster is not up after this long.", min=0.1)
    ] = 15.0,
    as_json: Json = False,
) -> None:
    """Bring a cluster up, after checking its file.

    If it does not come up in time, machines that were started are ended again.
    """
    from trainrig.launch.clusters.cluster_kinds import open_cluster
    from trainrig.launch.clusters.cluster_up import bring_up_cluster

    how = bring_up_cluster(open_cluster(name), _say, minutes * 60)
    print(json.dumps(how) if as_json else "\n".join(f"{key}: {how[key]}" for key in how))


@command(cluster_app, CLUSTERS, "trainrig cluster status aws")
def status(
    name: ClusterName,
    home: RecordsHome = None,
    hardware: HardwareTable = None,
    as_json: Json = False,
) -> None:
    """Show the nodes of a cluster, their hourly cost, its live runs and when it expires."""
    from trainrig.launch.clusters.cluster_kinds import open_cluster
    from trainrig.launch.clusters.cluster_status import read_cluster_status
    from trainrig.launch.supervise.run_record import Home

    found = read_cluster_status(open_cluster(name), Home.choose(home), hardware)
    print(json.dumps(found.to_json()) if as_json else "\n".join(found.format_lines()))


@command(cluster_app, CLUSTERS, "trainrig cluster down aws")
def down(
    name: ClusterName,
    home: RecordsHome = None,
    ignore_home: Annotated[
        list[str] | None,
        option("URL", help="Folder of run records in which not to look for live runs; repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Take a cluster down and wait until none of its machines is left.

    Refused while a run is live on the cluster.
    """
    from trainrig.launch.clusters.cluster_down import take_down_cluster
    from trainrig.launch.clusters.cluster_kinds import open_cluster
    from trainrig.launch.supervise.run_record import Home

    cluster = open_cluster(name)
    with if_stopped("machines may be left; run the same command to end them"):
        ended = take_down_cluster(cluster, Home.choose(home), _say, ignored=ignore_home or ())
    said = f"{cluster.name}: {ended} ended, none left"
    print(json.dumps({"name": cluster.name, "ended": ended}) if as_json else said)


@command(cluster_app, CLUSTERS, "trainrig cluster leaks aws --region us-east-1")
def leaks(
    name: ClusterName,
    everything: Annotated[
        bool, flag("--all", help="List the machines of all trainrig clusters.")
    ] = False,
    region: Annotated[
        list[str] | None,
        option("REGION", help="AWS: search only this region; repeatable.  [default: all]"),
    ] = None,
    as_json: Json = False,
) -> None:
    """List machines that carry a cluster's tag, in every region, expired ones first.

    No machine is ended.
    """
    from trainrig.launch.clusters.cluster_kinds import open_cluster
    from trainrig.launch.clusters.cluster_status import find_leaks

    found = find_leaks(open_cluster(name), region, everything)
    if as_json:
        print(json.dumps([machine.to_json() for machine in found]))
    else:
        print("\n".join(map(str, found)) or "no machines found")


def _say(text: str) -> None:
    typer.echo(f"trainrig: {text}", err=True)
