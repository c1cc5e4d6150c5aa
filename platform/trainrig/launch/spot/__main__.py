"""An agent for each machine that a cloud may take back: `python -m trainrig.launch.spot`.

It waits for the cloud's notice and has Ray drain the machine: training saves and moves, and Ray
places nothing new there. Started on the machine beside `ray start`; in Kubernetes as the `preStop`
hook of the container with Ray, with --now.
"""

import argparse
import logging
import os
import sys

from trainrig.errors import ConfigError
from trainrig.launch.spot.agent import Agent
from trainrig.launch.spot.drain import RayNode
from trainrig.launch.spot.preemption_notices import POD_GRACE, PROVIDERS, detect, make_source


def main() -> None:
    """Run the agent until the machine is gone."""
    parser = argparse.ArgumentParser(prog="python -m trainrig.launch.spot", description=__doc__)
    parser.add_argument("--provider", choices=(*PROVIDERS, "auto"), default="auto")
    parser.add_argument("--address", help="HOST:PORT of Ray's head  [default: $RAY_ADDRESS]")
    parser.add_argument(
        "--node", default="", help="Ray's id of this machine's node  [default: found by address]"
    )
    parser.add_argument("--endpoint", default="", help="URL of another metadata service")
    parser.add_argument(
        "--grace",
        type=float,
        default=POD_GRACE,
        help="grace time of the pod, in seconds  [default: 30]",
    )
    parser.add_argument("--now", action="store_true", help="the pod is ending: for a preStop hook")
    given = parser.parse_args()
    logging.basicConfig(format="%(asctime)s trainrig spot: %(message)s", level=logging.INFO)
    try:
        if given.now and given.provider != "kubernetes":
            raise ConfigError("--now is for a preStop hook and needs --provider kubernetes")
        address = given.address or os.environ.get("RAY_ADDRESS")
        if not address:
            raise ConfigError("give --address HOST:PORT of Ray's head, or set RAY_ADDRESS")
        node = RayNode(address, given.node)
        provider = detect(os.environ) if given.provider == "auto" else given.provider
        notices = make_source(provider, os.environ, given.endpoint, given.grace, given.now)
    except ConfigError as error:
        print(f"trainrig spot: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    Agent(notices, node.drain).run()


if __name__ == "__main__":
    main()
