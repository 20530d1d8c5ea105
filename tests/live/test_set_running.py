"""The time limit of a job that runs is changed, and whoever has to know it dies at that moment."""

from __future__ import annotations

import signal
import sys
import textwrap

from cotenant.controller.domain import JobId, Phase, SlurmScript
from cotenant.controller.wire import clients as wire
from tests.live.cluster import PATIENCE_S, Cluster

DAY_S = 86_400.0
WAITS = textwrap.dedent(
    """
    import pathlib, signal, sys
    folder = pathlib.Path(sys.argv[1])

    def warned(number, frame):
        (folder / "warned").touch()
        sys.exit(0)

    signal.signal(signal.SIGUSR1, warned)
    (folder / "begun").touch()
    while True:
        signal.pause()
    """
)


def set_time(cluster: Cluster, job_id: JobId, to_s: float) -> None:
    (line,) = cluster.client.ask(wire.SetJobs(job_ids=(job_id,), changes={"time": to_s})).lines
    assert "time" in line


def test_a_time_limit_holds_after_kill_9_of_agent_and_controller(cluster: Cluster) -> None:
    controller = cluster.add_controller("policy.name=fifo")
    controller.start()
    agent = cluster.add_agent("a", "agent.devices=cpu:2")
    agent.start()
    argv = (sys.executable, "-c", WAITS, str(cluster.results))
    before_s = DAY_S / 2
    slurm = SlurmScript(signal=int(signal.SIGUSR1), signal_before_s=before_s, signal_script=True)
    warned = cluster.send("warned", argv, slurm=slurm, time_limit_s=DAY_S)
    ends = cluster.send("ends", (sys.executable, "-c", "import signal; signal.pause()"), time_limit_s=DAY_S)
    cluster.until(lambda jobs: (cluster.results / "begun").exists())

    agent.kill()
    set_time(cluster, warned, before_s)  # Its warning is due at once.
    controller.kill()
    controller.start()
    agent.start()
    cluster.until(lambda jobs: jobs[warned].phase is Phase.DONE)
    assert (cluster.results / "warned").exists()

    cluster.until(lambda jobs: jobs[ends].phase is Phase.RUNNING)
    shown = cluster.look()[ends]
    set_time(cluster, ends, shown.load_s + shown.run_s + 3.0)
    controller.kill()
    controller.start()
    cluster.client.ask(wire.WaitJobs(job_ids=(ends,), timeout_s=PATIENCE_S), timeout_s=PATIENCE_S)
    assert "reached its time limit" in cluster.look()[ends].reason
