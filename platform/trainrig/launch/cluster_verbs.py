"""`trainrig cluster …`: clusters by their files."""

import json
from typing import Annotated

import typer

cluster_app = typer.Typer(no_args_is_help=True, help="Clusters, by the files that describe them.")

ClusterName = Annotated[
    str, typer.Argument(metavar="NAME|FILE", help="aws, gcp, local, kuberay/rayjob, or a file.")
]
HomeOption = Annotated[str | None, typer.Option("--home", help="Where the records of runs are.")]
Table = Annotated[str | None, typer.Option(help="A table of machines of your own.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]


@cluster_app.command()
def check(
    name: ClusterName,
    hardware: Table = None,
    checkpoint_seconds: Annotated[
        float | None, typer.Option(min=0, help="What one takes: does it fit the notice?")
    ] = None,
    as_json: Json = False,
) -> None:
    """Everything that is wrong with a cluster file, what it costs, and which quotas it needs."""
    from trainrig.launch.check.cluster import check_cluster
    from trainrig.launch.check.shipped import find_cluster
    from trainrig.launch.check.show import shown

    checked = check_cluster(find_cluster(name), hardware, checkpoint_seconds)
    if as_json:
        print(json.dumps(checked.as_json()))
    elif not checked.problems:
        print("\n".join(shown(checked)))
    if checked.problems:
        for problem in checked.problems:
            typer.echo(f"trainrig: {problem}", err=True)
        raise SystemExit(2)


@cluster_app.command()
def up(
    name: ClusterName,
    minutes: Annotated[float, typer.Option(min=0.1, help="Until it is given up.")] = 15.0,
    as_json: Json = False,
) -> None:
    """Check a cluster file and bring the cluster up; what comes up by halves is ended again."""
    from trainrig.launch.clusters.kinds import open_cluster
    from trainrig.launch.clusters.up import up as bring_up

    how = bring_up(open_cluster(name), _say, minutes * 60)
    print(json.dumps(how) if as_json else "\n".join(f"{key}: {how[key]}" for key in how))


@cluster_app.command()
def status(
    name: ClusterName, home: HomeOption = None, hardware: Table = None, as_json: Json = False
) -> None:
    """Its nodes by pool, what they cost by the hour, the runs on it, when it expires."""
    from trainrig.launch.clusters.kinds import open_cluster
    from trainrig.launch.clusters.status import status as look_at
    from trainrig.launch.record import Home

    found = look_at(open_cluster(name), Home.named(home), hardware)
    print(json.dumps(found.as_json()) if as_json else "\n".join(found.lines()))


@cluster_app.command()
def down(
    name: ClusterName,
    home: HomeOption = None,
    ignore_home: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Do without the runs of this home; repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """End all machines of a cluster that no run is live on; done only when none is left."""
    from trainrig.launch.clusters.down import down as take_down
    from trainrig.launch.clusters.kinds import open_cluster
    from trainrig.launch.record import Home

    cluster = open_cluster(name)
    ended = take_down(cluster, Home.named(home), _say, ignored=ignore_home or ())
    said = f"{cluster.name}: {ended} ended, none left"
    print(json.dumps({"name": cluster.name, "ended": ended}) if as_json else said)


@cluster_app.command()
def leaks(
    name: ClusterName,
    everything: Annotated[bool, typer.Option("--all", help="Of any cluster of ours.")] = False,
    region: Annotated[list[str] | None, typer.Option(help="On AWS: of these alone.")] = None,
    as_json: Json = False,
) -> None:
    """List what is there by its tag, in every region, the expired first; nothing is ended."""
    from trainrig.launch.clusters.kinds import open_cluster
    from trainrig.launch.clusters.leaks import leaks as list_leaks

    found = list_leaks(open_cluster(name), region, everything)
    if as_json:
        print(json.dumps([machine.as_json() for machine in found]))
    else:
        print("\n".join(map(str, found)) or "nothing is there")


def _say(text: str) -> None:
    typer.echo(f"trainrig: {text}", err=True)
