"""Lists of hosts and of counts as Slurm writes them, and the address of a host. Pure, but for looking up a
name.
"""

from __future__ import annotations

import re

_RANGES = re.compile(r"^(.*?)\[([\d,-]+)\](.*)$")


def hostnames(text: str) -> list[str]:
    """`gpu[01-03,7],login` one by one."""
    found: list[str] = []
    for part in re.split(r",(?![^\[]*\])", text):
        match = _RANGES.match(part)
        if match is None:
            found += [part] if part else []
            continue
        for each in match[2].split(","):
            first, _, last = each.partition("-")
            for number in range(int(first), int(last or first) + 1):
                found.append(f"{match[1]}{number:0{len(first)}d}{match[3]}")
    return found


def counts(text: str) -> list[int]:
    """`2(x3),1` one by one."""
    found: list[int] = []
    for part in text.split(","):
        number, _, times = part.partition("(x")
        found += [int(number)] * int(times.rstrip(")") or 1)
    return found


def address(host: str, env: dict[str, str]) -> str:
    """Where a host of the job is reached: its name, if names are resolved here; the first one's address is
    known in any case."""
    import socket

    try:
        socket.getaddrinfo(host, None)
    except OSError:
        is_first = host == env.get("SLURM_JOB_NODELIST", "").split(",")[0]
        return env.get("SLURM_LAUNCH_NODE_IPADDR", host) if is_first else host
    return host
