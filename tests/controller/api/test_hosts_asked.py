"""What `nodes` says of the cores and the main memory that jobs have asked for."""

from __future__ import annotations

from cotenant.controller.api.views import node_view
from tests.controller.building import Desk, report


def test_nodes_say_what_was_asked_of_them() -> None:
    at = Desk("fifo", report("a", 4), report("b", 1))
    at.submit(1, gpus=4, cpus=3, host_memory_mib=4_000)
    at.submit(2)
    seen = {host_id: node_view(at.engine, host, 0.0) for host_id, host in at.engine.hosts.items()}
    asked = {host_id: (node.cpus_asked, node.memory_asked_mib) for host_id, node in seen.items()}
    assert asked == {"a": (3, 4_000), "b": (0, 0)}
