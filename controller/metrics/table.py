"""Every metric there is, with its labels and meaning. docs/metrics.md is made from it.

Rule: Prometheus's conventions: base units (seconds, bytes, shares of 1), the unit last, `_total` for what
only rises. A value that is missing has no series; it is never 0.

    python -m cotenant.controller.metrics.table        prints the tables of docs/metrics.md
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

Kind = Literal["gauge", "counter", "histogram"]


class Metric(msgspec.Struct, frozen=True):
    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


SHARES: Final = ("GRACT", "SMACT", "SMOCC", "TENSO", "DRAMA", "FP32A", "FP16A", "FP64A", "INTA")
RATES: Final = ("PCITX", "PCIRX", "NVLTX", "NVLRX", "NETTX", "NETRX")

CONTROLLER: Final = (
    Metric(
        "cotenant_controller_info", "gauge", ("version", "policy"), "1; the version and the policy in force"
    ),
    Metric("cotenant_controller_uptime_seconds", "gauge", (), "Since this controller started"),
    Metric("cotenant_hosts", "gauge", ("state",), "Known hosts by state: ok, silent, drained, suspect, lost"),
    Metric(
        "cotenant_devices",
        "gauge",
        ("use",),
        "Devices by use: free, alone (one job), shared (more), out (it or its host takes no work)",
    ),
    Metric(
        "cotenant_jobs", "gauge", ("phase",), "Jobs by phase, the ended ones that are still listed included"
    ),
    Metric("cotenant_jobs_submitted_total", "counter", (), "Jobs accepted since this controller started"),
    Metric("cotenant_jobs_ended_total", "counter", ("phase",), "Jobs ended: done, failed, cancelled"),
    Metric("cotenant_preemptions_total", "counter", (), "Attempts that were preempted"),
    Metric("cotenant_futile_preemptions_total", "counter", (), "Of those, before their first step"),
    Metric("cotenant_queue_wait_seconds", "histogram", (), "From submission to first start"),
    Metric(
        "cotenant_queue_oldest_seconds",
        "gauge",
        (),
        "The longest time that a queued job has been in the queue",
    ),
    Metric(
        "cotenant_decision_seconds", "histogram", (), "Time to handle one event, the policy's part included"
    ),
    Metric("cotenant_events_total", "counter", (), "Events handled and journalled"),
    Metric("cotenant_commands_total", "counter", (), "Commands that followed"),
    Metric("cotenant_commands_undelivered", "gauge", (), "Commands that no agent has confirmed yet"),
    Metric(
        "cotenant_incidents_total",
        "counter",
        ("kind",),
        "What should be rare, such as bad_messages, refused_requests, resent, quarantined, failed_commits",
    ),
    Metric("cotenant_journal_entries_total", "counter", (), "Entries in the journal, over all starts"),
    Metric("cotenant_journal_commits_total", "counter", (), "Commits since this controller started"),
    Metric("cotenant_journal_waiting_rows", "gauge", (), "Rows on their way to the disk"),
    Metric("cotenant_journal_size_bytes", "gauge", (), "Size of its file"),
    Metric("cotenant_journal_stuck", "gauge", (), "1 while it cannot be written: nothing new is accepted"),
    Metric(
        "cotenant_pair_interference_ratio",
        "gauge",
        ("job", "beside"),
        "Measured iteration time beside the other job / alone, of jobs that share a device now",
    ),
    Metric(
        "cotenant_pair_sharing_benefit_ratio",
        "gauge",
        ("job", "beside"),
        "What that pair yields beyond taking turns: 1/xi + 1/xi' - 1, where both were measured",
    ),
    Metric(
        "cotenant_device_planned_memory_bytes", "gauge", ("device",), "Sum of its tenants' planned memory"
    ),
)

AGENT: Final = (
    Metric("cotenant_agent_info", "gauge", ("host", "version"), "1; the host's name in the cluster"),
    Metric("cotenant_agent_connected", "gauge", (), "1 while the controller answers"),
    Metric("cotenant_agent_attempts", "gauge", (), "Attempts that hold devices of this host"),
    Metric(
        "cotenant_agent_reports_waiting", "gauge", (), "Reports that the controller has not confirmed yet"
    ),
    Metric(
        "cotenant_device_info",
        "gauge",
        ("device", "kind", "type", "sharing", "state"),
        "1; what the device is (kind: cuda or cpu) and how its tenants share it",
    ),
    Metric("cotenant_device_healthy", "gauge", ("device",), "1 if it takes new work"),
    Metric("cotenant_device_tenants", "gauge", ("device",), "Jobs on it"),
    Metric("cotenant_device_memory_bytes", "gauge", ("device",), "Its memory"),
    Metric(
        "cotenant_device_memory_used_bytes",
        "gauge",
        ("device",),
        "In use, by anybody; of a CPU slot the peaks of its present tenants",
    ),
    Metric(
        "cotenant_device_active_ratio",
        "gauge",
        ("device", "indicator", "source"),
        f"Share of the time, the units or the bandwidth: {', '.join(SHARES)}",
    ),
    Metric(
        "cotenant_device_traffic_bytes_per_second",
        "gauge",
        ("device", "indicator", "source"),
        f"What crosses its links: {', '.join(RATES[:4])}",
    ),
    Metric("cotenant_device_cpu_cores", "gauge", ("device", "source"), "Cores of a CPU slot that are in use"),
    Metric("cotenant_device_reading_age_seconds", "gauge", ("device",), "Since its newest reading"),
)


def markdown(metrics: Sequence[Metric]) -> str:
    lines = ["| metric | kind | labels | meaning |", "| --- | --- | --- | --- |"]
    for each in metrics:
        labels = ", ".join(f"`{label}`" for label in each.labels)
        lines.append(f"| `{each.name}` | {each.kind} | {labels} | {each.help} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(f"{markdown(CONTROLLER)}\n\n{markdown(AGENT)}")
