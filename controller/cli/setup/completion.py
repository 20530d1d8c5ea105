"""`cotenant completion`: completion for bash, zsh and fish; also of job ids, hosts and policies.

Rule: completing never shows an error and never takes long: a controller that does not answer at once
completes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated, Any

from cotenant.controller.cli.frame.parameters import argument
from cotenant.controller.cli.frame.problem import Problem

SHELLS = ("bash", "zsh", "fish")
WHERE = {
    "bash": "~/.local/share/bash-completion/completions/cotenant",
    "zsh": "~/.zfunc/_cotenant",
    "fish": "~/.config/fish/completions/cotenant.fish",
}
ANSWER_WITHIN_S = 1.0


def completion(
    shell: Annotated[str, argument(metavar="bash|zsh|fish", help="Your shell (default: from $SHELL).")] = "",
) -> None:
    """Print the script that completes verbs, flags, jobs, hosts and policies in your shell.

    For example:

      cotenant completion bash > ~/.local/share/bash-completion/completions/cotenant
      cotenant completion zsh > ~/.zfunc/_cotenant
      cotenant completion fish > ~/.config/fish/completions/cotenant.fish
    """
    from cotenant.controller.cli.frame.screen import say
    from cotenant.controller.cli.setup.shells import script

    name = shell or os.path.basename(os.environ.get("SHELL", ""))
    if name not in SHELLS:
        raise Problem("usage", f"no completion for shell {name!r}", f"there is one for {', '.join(SHELLS)}")
    say(script(name).strip())


# --- What can be completed from a running controller ------------------------------------------------


def complete_job(incomplete: str) -> list[tuple[str, str]]:
    from cotenant.controller.wire.clients import ListJobs

    jobs = _quietly(lambda client: client.ask(ListJobs(include_ended=True, limit=200)).jobs)
    return [(j.job_id, f"{j.name} {j.phase.value}") for j in jobs if j.job_id.startswith(incomplete)]


def complete_host(incomplete: str) -> list[str]:
    from cotenant.controller.wire.clients import ListNodes

    nodes = _quietly(lambda client: client.ask(ListNodes()).nodes)
    return [n.host for n in nodes if n.host.startswith(incomplete)]


def complete_policy(incomplete: str) -> list[tuple[str, str]]:
    from cotenant.controller.wire.clients import GetPolicy

    policies = _quietly(lambda client: client.ask(GetPolicy()).offers)
    return [(p.policy, p.about) for p in policies if p.available and p.policy.startswith(incomplete)]


def _quietly(question: Callable[[Any], Any]) -> Any:
    from cotenant.controller.cli.frame.asking import asking
    from cotenant.controller.domain.texts import for_people

    try:
        with asking(timeout_s=ANSWER_WITHIN_S) as client:
            return for_people(question(client))
    except Problem:
        return ()
