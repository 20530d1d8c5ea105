"""Every metric there is, with its labels and meaning. examples/deploy/prometheus/README.md shows it.

Rule: Prometheus's conventions: base units (seconds, bytes, shares of 1), the unit last, `_total` for what
only rises. A value that is missing has no series; it is never 0. What happens seldom is there with 0 from the
start: Prometheus cannot see a counter rise that begins with 1. A label is never called `job` or `instance`:
Prometheus sets these itself, and renames ours.

    python -m cotenant.controller.system.metrics.table        prints these tables
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

MetricKind = Literal["gauge", "counter", "histogram"]


class Metric(msgspec.Struct, frozen=True):
    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    help: str


SHARES: Final = ("GRACT", "SMACT", "SMOCC", "TENSO", "DRAMA", "FP32A", "FP16A", "FP64A", "INTA")
RATES: Final = ("PCITX", "PCIRX", "NVLTX", "NVLRX", "NETTX", "NETRX")

INCIDENTS: Final = (
    "bad_messages",
    "bad_secrets",
    "bad_users_file",
    "failed_commits",
    "internal_errors",
    "not_followed",
    "overflows",
    "quarantined",
    "refused_agents",
    "refused_requests",
    "report_gaps",
    "reports_of_lost_history",
    "resent",
    "restored",
    "strangers",
    "stuck",
    "superseded",
    "unauthenticated",
    "unsent",
)
"""What a controller counts and should rarely have to; a test looks for them in its code."""

CONTROLLER: Final = (
    Metric(
        "cotenant_controller_info", "gauge", ("version", "policy"), "1; the version and the policy in force"
    ),
    Metric("cotenant_controller_uptime_seconds", "gauge", (), "Since this controller started"),
    Metric("cotenant_hosts", "gauge", ("state",), "Known hosts by state: ok, silent, drained, suspect, lost"),
    Metric(
        "cotenant_host_state",
        "gauge",
        ("host", "state"),
        "1 for the state of the host, 0 for the others",
    ),
    Metric(
        "cotenant_devices",
        "gauge",
        ("use",),
        "Devices by use: free, alone (one job), shared (more), out (takes no work)",
    ),
    Metric("cotenant_jobs", "gauge", ("phase",), "Jobs by phase, ended ones that are still listed included"),
    Metric("cotenant_jobs_submitted_total", "counter", (), "Jobs accepted since this controller started"),
    Metric("cotenant_jobs_ended_total", "counter", ("phase",), "Jobs ended: done, failed, cancelled"),
    Metric(
        "cotenant_attempts_ended_total",
        "counter",
        ("host", "outcome"),
        "Attempts that left a host: finished, user-failed, infra-failed, stopped, never-started; a gang's "
        "on each of its hosts",
    ),
    Metric("cotenant_preemptions_total", "counter", (), "Attempts that were preempted"),
    Metric("cotenant_futile_preemptions_total", "counter", (), "Of those, before their first step"),
    Metric(
        "cotenant_early_preemptions", "gauge", (), "Runs of listed jobs preempted within the promised hours"
    ),
    Metric(
        "cotenant_class_devices",
        "gauge",
        ("type", "use"),
        "Under a policy with classes: devices that hp has (hp), waits for (hp-waiting) and is expected to "
        "ask for this hour (hp-expected); that spot may still take (spot-may-take), waits for (spot-waiting) "
        "and may not have (kept-back)",
    ),
    Metric("cotenant_spot_eta", "gauge", (), "GFS's safety coefficient eta; absent without one"),
    Metric("cotenant_queue_wait_seconds", "histogram", (), "From submission to first start"),
    Metric(
        "cotenant_queue_oldest_seconds",
        "gauge",
        (),
        "How long the oldest job has been in the queue this time",
    ),
    Metric(
        "cotenant_queue_longest_wait_seconds",
        "gauge",
        (),
        "The longest that a waiting job could have run and did not, over all of its attempts",
    ),
    Metric(
        "cotenant_eta_hit_ratio",
        "gauge",
        ("policy",),
        "The share that held of the last 100 intervals told at submission: 0.8 is right",
    ),
    Metric("cotenant_promises_open", "gauge", (), "Promised ends that have not come"),
    Metric(
        "cotenant_promises_total",
        "counter",
        ("state",),
        "Promised ends: kept, broken, or void (the owner held or ended the job)",
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
        f"What should be rare: {', '.join(INCIDENTS)}",
    ),
    Metric(
        "cotenant_notices_total",
        "counter",
        ("state",),
        "Messages to people by each way: sent, or failed (given up)",
    ),
    Metric("cotenant_notices_waiting", "gauge", (), "Messages to people that wait for a way to take them"),
    Metric("cotenant_journal_entries_total", "counter", (), "Entries in the journal, over all starts"),
    Metric("cotenant_journal_commits_total", "counter", (), "Commits since this controller started"),
    Metric("cotenant_journal_waiting_rows", "gauge", (), "Rows on their way to the disk"),
    Metric("cotenant_journal_size_bytes", "gauge", (), "Size of its file and its write-ahead log"),
    Metric("cotenant_journal_stuck", "gauge", (), "1 while it cannot be written: nothing new is accepted"),
    Metric("cotenant_journal_damages", "gauge", (), "Damaged places that the last scrub of it found"),
    Metric("cotenant_journal_checked_seconds", "gauge", (), "Since the last scrub of the journal ended"),
    Metric(
        "cotenant_leader_term",
        "gauge",
        (),
        "How many controllers have led, this one included; only with a shared journal, as what follows",
    ),
    Metric("cotenant_leader_seconds", "gauge", (), "Since this controller took over"),
    Metric("cotenant_standbys", "gauge", (), "Standbys that have followed within the last minute"),
    Metric(
        "cotenant_standby_behind_entries",
        "gauge",
        ("standby",),
        "Entries of the journal that the standby had not taken in",
    ),
    Metric(
        "cotenant_standby_behind_seconds",
        "gauge",
        ("standby",),
        "Since the standby last said that it had taken in everything",
    ),
    Metric(
        "cotenant_pair_interference_ratio",
        "gauge",
        ("job_id", "beside"),
        "Measured iteration time beside the other job / alone, of jobs that share now",
    ),
    Metric(
        "cotenant_pair_sharing_benefit_ratio",
        "gauge",
        ("job_id", "beside"),
        "What that pair gains over taking turns: 1/xi + 1/xi' - 1, where both were measured",
    ),
    Metric(
        "cotenant_device_planned_memory_bytes",
        "gauge",
        ("host", "device"),
        "Sum of its tenants' planned memory",
    ),
    Metric(
        "cotenant_controller_series_left_out",
        "gauge",
        (),
        "Series beyond the 20000 of this page",
    ),
)

AGENT: Final = (
    Metric("cotenant_agent_info", "gauge", ("host", "version"), "1; the host's name in the cluster"),
    Metric("cotenant_agent_connected", "gauge", ("host",), "1 while the controller answers"),
    Metric("cotenant_agent_attempts", "gauge", ("host",), "Attempts that hold devices of this host"),
    Metric(
        "cotenant_agent_reports_waiting",
        "gauge",
        ("host",),
        "Reports that the controller has not confirmed yet",
    ),
    Metric(
        "cotenant_agent_notes_waiting",
        "gauge",
        ("host",),
        "Notes that its disk has refused; with any it starts nothing",
    ),
    Metric(
        "cotenant_device_info",
        "gauge",
        ("host", "device", "kind", "type", "sharing"),
        "1; kind (cuda or cpu), type, and how tenants share it",
    ),
    Metric(
        "cotenant_device_state",
        "gauge",
        ("host", "device", "state"),
        "1 for its state (ok, suspect, draining, lost), 0 for the others",
    ),
    Metric("cotenant_device_healthy", "gauge", ("host", "device"), "1 if it takes new work"),
    Metric(
        "cotenant_device_faults_total",
        "counter",
        ("host", "device"),
        "Errors of a GPU or of its MPS server that concerned jobs; one that is seen twice counts twice",
    ),
    Metric(
        "cotenant_device_memory_held",
        "gauge",
        ("host", "device"),
        "1 while its memory stays in use after a job or has no visible owner; it takes no work then",
    ),
    Metric(
        "cotenant_device_mps_up",
        "gauge",
        ("host", "device"),
        "1 while its MPS daemon works; only of devices that have one",
    ),
    Metric("cotenant_device_tenants", "gauge", ("host", "device"), "Jobs on it"),
    Metric("cotenant_device_memory_bytes", "gauge", ("host", "device"), "Its memory"),
    Metric(
        "cotenant_device_memory_used_bytes",
        "gauge",
        ("host", "device"),
        "In use, by anybody; of a CPU slot the peaks of its present tenants",
    ),
    Metric(
        "cotenant_device_active_ratio",
        "gauge",
        ("host", "device", "indicator", "source"),
        f"Share of the time, the units or the bandwidth: {', '.join(SHARES)}",
    ),
    Metric(
        "cotenant_device_traffic_bytes_per_second",
        "gauge",
        ("host", "device", "indicator", "source"),
        f"What crosses its links: {', '.join(RATES[:4])}",
    ),
    Metric(
        "cotenant_device_cpu_cores",
        "gauge",
        ("host", "device", "source"),
        "Cores of a CPU slot that are in use",
    ),
    Metric("cotenant_device_reading_age_seconds", "gauge", ("host", "device"), "Since its newest reading"),
    Metric(
        "cotenant_agent_series_left_out",
        "gauge",
        ("host",),
        "Series beyond the 20000 of this page",
    ),
)


def markdown(metrics: Sequence[Metric]) -> str:
    lines = ["| metric | labels | meaning |", "| --- | --- | --- |"]
    for each in metrics:
        labels = ", ".join(f"`{label}`" for label in each.labels)
        lines.append(f"| `{each.name}` | {labels} | {each.help} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(f"{markdown(CONTROLLER)}\n\n{markdown(AGENT)}")
