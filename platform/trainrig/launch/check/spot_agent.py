"""Check that nodes of spot pools run the agent that drains them on a preemption notice."""

from collections.abc import Iterator
from typing import Any

from trainrig.launch.check.document import Found, ensure_list, ensure_table
from trainrig.launch.check.pools import MARKET
from trainrig.launch.check.ray_file import list_node_types

AGENT = "trainrig.launch.spot"


def check_agent(data: dict[str, Any], provider: str) -> Iterator[Found]:
    """Check that every worker starts the agent before Ray, for the right provider."""
    types = list_node_types(data).items()
    spot = [
        name
        for name, node_type in types
        if ensure_table(node_type.get("labels")).get(MARKET) == "spot"
    ]
    if not spot:
        return
    key = "worker_start_ray_commands"
    commands = [str(command) for command in ensure_list(data.get(key))]
    agents = [index for index, command in enumerate(commands) if AGENT in command]
    starts = [index for index, command in enumerate(commands) if "ray start" in command]
    wanted = f"python -m {AGENT} --provider {provider}"
    if not agents:
        what = (
            f"spot machines ({', '.join(spot)}) without the agent: run `{wanted} &` before "
            "`ray start`"
        )
        yield (key,) if key in data else (), what
        return
    if f"--provider {provider}" not in commands[agents[0]].replace("=", " "):
        yield (key, agents[0]), f"this agent watches another cloud's notices; use `{wanted}`"
    if starts and agents[0] > starts[0]:
        yield (
            (key, agents[0]),
            "the agent starts after `ray start`; put it before",
        )
    if not commands[agents[0]].rstrip().endswith("&"):
        yield (key, agents[0]), "the agent never ends; run it in the background with `&`"
