"""Containers of jobs with `--image`: the program that starts them, its command lines, and their processes.

Rule: the program runs as the job's user, never as root, so no job gets an access to a container daemon, an
image or a folder that its user would not have anyway.
"""

# fmt: off
from cotenant.agent.containers.command_lines import (
    BadContainer, ContainerCommands, Wrapped, binds_of, client_of, container_name, mount_text, remove_command,
)
from cotenant.agent.containers.processes import (
    client_environment, find_mains, remove_containers, users_rights,
)
from cotenant.agent.containers.runtimes import (
    find_runtimes, offered_features, runtime_for, why_unsafe,
)

__all__ = [
    "BadContainer", "ContainerCommands", "Wrapped", "binds_of", "client_environment",
    "client_of", "container_name", "find_mains", "find_runtimes", "mount_text", "offered_features",
    "remove_command", "remove_containers", "runtime_for", "users_rights", "why_unsafe",
]
# fmt: on
