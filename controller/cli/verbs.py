"""The verbs, where each one lives, and how it becomes a command of click, which parses command lines. Nothing
else is needed to print `cotenant --help`.

Rule: a verb that does not work is not in this table. A new verb is one line here and one function of the same
name in its module; only the chosen verb's module is ever imported.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import click

PROGRAM: Final = "cotenant"
COMPLETE_VARIABLE: Final = "_COTENANT_COMPLETE"
"""Set by the shell's completion script."""


class Verb(NamedTuple):
    """`module` has a function or an app of the verb's name. It is below `cotenant.controller.cli`, or below
    `cotenant.controller` where it belongs to Slurm or an integration."""

    name: str
    module: str
    help: str
    passes_words: bool = False
    """Everything from the first word on belongs to the user's command."""

    @property
    def full_module(self) -> str:
        """The module's name, as it is imported."""
        folder = "" if self.module.startswith(("slurm.", "integrations.")) else "cli."
        return f"cotenant.controller.{folder}{self.module}"


GROUPS: Final[dict[str, tuple[Verb, ...]]] = {
    "Start here": (
        Verb("demo", "setup.demo", "real jobs share a device here, one is preempted and resumes"),
        Verb("run", "jobs.run", "run a command as a job and wait for it", passes_words=True),
        Verb("shell", "jobs.shell", "a shell on a device, or a command on a terminal", passes_words=True),
        Verb("submit", "jobs.submit", "queue a command, a YAML file or a script", passes_words=True),
        Verb(
            "profile",
            "jobs.profile",
            "measure a command on 1, 2, 4, ... devices; list, forget",
            passes_words=True,
        ),
    ),
    "Jobs": (
        Verb("queue", "jobs.queue", "list jobs"),
        Verb("show", "jobs.show", "everything about one job"),
        Verb("eta", "jobs.eta", "when jobs start and end; score: how often that has held"),
        Verb("explain", "jobs.show", "why a job waits, runs or shares, and how it came about"),
        Verb("logs", "jobs.logs", "a job's output; -f follows it"),
        Verb("attach", "jobs.shell", "connect to a shell again"),
        Verb("wait", "jobs.change", "until jobs have ended"),
        Verb("cancel", "jobs.change", "end jobs"),
        Verb("hold", "jobs.change", "keep waiting jobs back"),
        Verb("release", "jobs.change", "let held jobs go"),
        Verb("preempt", "jobs.change", "save jobs and put them back in the queue"),
        Verb("requeue", "jobs.change", "put jobs back in the queue, also those that have ended"),
        Verb("set", "jobs.settings", "change options of jobs that wait"),
        Verb("history", "jobs.history", "jobs that have ended: attempts, waits, device-hours"),
        Verb("checkpoint", "jobs.change", "save jobs that go on; verify: can a command resume?"),
    ),
    "Hosts and policy": (
        Verb("nodes", "cluster.nodes", "hosts and devices; drain, resume, lost"),
        Verb("alloc", "slurm.alloc.verb", "hosts asked of Slurm as jobs need them; add, pause, remove, log"),
        Verb("reserve", "jobs.reserve", "devices for your jobs at a time; list, cancel"),
        Verb("top", "cluster.top", "a live table of devices and jobs"),
        Verb("timeline", "cluster.timeline", "who held which device when: a picture, or for Perfetto"),
        Verb("web", "setup.web", "a live page of jobs, devices and why, in a browser"),
        Verb("mcp", "integrations.mcp.verb", "jobs and devices for programs that write code (MCP)"),
        Verb("pairs", "cluster.pairs", "which jobs share well: slowdowns both ways, and verdicts"),
        Verb("report", "cluster.accounting", "what sharing and preemption brought and cost here"),
        Verb("usage", "cluster.accounting", "device-hours by user, kind or organisation; shared, lost"),
        Verb("policy", "offline.policy", "list, show, set, train or tune the policy; what it remembers"),
        Verb("steer", "slurm.steer.verb", "order a live Slurm's waiting jobs by one of our policies"),
        Verb(
            "predictor",
            "offline.predictor",
            "export measured pairs; show a model of how jobs slow each other",
        ),
    ),
    "What if": (
        Verb("sim", "offline.sim", "policies over a trace; replay of a journal; traces"),
        Verb(
            "whatif",
            "offline.whatif",
            "what the last days would have been under another policy",
        ),
    ),
    "Set up": (
        Verb("up", "setup.up", "controller and agent on this machine"),
        Verb("down", "setup.down", "end what `up` or `run` started on this machine"),
        Verb("service", "setup.service", "run them as systemd services, there after a reboot"),
        Verb("controller", "offline.controller", "the controller alone; who leads, hand-over, its journal"),
        Verb("agent", "setup.up", "the agent of this host alone"),
        Verb("init", "setup.init", "keys for a cluster, its users and its hosts"),
        Verb("doctor", "doctor.doctor", "what works here, what does not, and what to do"),
        Verb("notify", "setup.notify", "whether you are told of your jobs; test"),
        Verb("config", "setup.config", "every setting and where it comes from"),
        Verb(
            "slurm-aliases",
            "slurm.aliases.programs",
            "put sbatch, squeue, scancel and others into a folder",
        ),
        Verb("completion", "setup.completion", "completion for bash, zsh or fish"),
        Verb("version", "setup.config", "versions of this command and of the controller"),
    ),
}

IMPORTED_ALONE: Final = (Verb("sim trace list", "offline.trace_list", ""),)
"""Parts that need little of what their verb imports; the verb has them as well."""

BY_NAME: Final[dict[str, Verb]] = {verb.name: verb for verbs in GROUPS.values() for verb in verbs}

SYNONYMS: Final = {
    name: verb
    for verb, names in {
        "queue": "ps status ls list jobs squeue qstat bjobs",
        "cancel": "kill rm delete stop scancel qdel bkill",
        "run": "srun exec launch",
        "submit": "sbatch qsub bsub",
        "show": "seff describe inspect info",
        "logs": "log tail",
        "explain": "why sprio",
        "set": "update",
        "history": "sacct bhist",
        "nodes": "sinfo hosts gpus bhosts",
        "top": "nvidia-smi nvtop nvitop",
        "usage": "sreport sshare",
        "web": "dashboard ui",
    }.items()
    for name in names.split()
}
"""Names that Slurm, PBS, LSF, Docker and others have for a verb."""

NOT_HERE: Final = {
    "forecast": "`python -m experiments.gfs.forecaster evaluate|train FILE`, in the source folder",
    "pcs": "`cotenant policy tune pcs TRACE` searches, `cotenant policy set pcs config=FILE#NAME` chooses",
    "salloc": "`cotenant shell` waits for devices and opens a shell on them",
    "policy forecast": "`cotenant policy state` shows it",
    "predictor train": "`python -m experiments.castor.predictor train`, in the source folder",
    "predictor evaluate": "`python -m experiments.castor.predictor evaluate`, in the source folder",
    "scontrol": "use `cotenant set`, `hold`, `release` or `requeue`; a job is shown by `cotenant show`",
}
"""What to use in place of a verb, or a part of one, that others have or that was here, and is none now."""

ABOUT: Final = "Two training jobs, one GPU, nobody goes hungry."


def help_text() -> str:
    """What `cotenant --help` prints."""
    width = max(map(len, BY_NAME))
    lines = [f"{ABOUT}", "", "Usage: cotenant VERB [OPTIONS]", ""]
    for group, verbs in GROUPS.items():
        lines += [f"{group}:", *(f"  {verb.name:<{width}}  {verb.help}" for verb in verbs), ""]
    lines += [
        "For example:",
        "  cotenant run -- python train.py              run it here and watch it",
        "  cotenant submit -g 2 -t 4h -- python train.py",
        "  cotenant queue                               what runs, what waits and why",
        "",
        "`cotenant VERB --help` says more about a verb.",
    ]
    return "\n".join(lines)


def verb_command(verb: Verb) -> click.Command:
    """The verb's function (or, for a verb with parts, its group) as a command."""
    import click

    from cotenant.controller.cli.frame.command import command

    module = importlib.import_module(verb.full_module)
    found = getattr(module, verb.name.replace("-", "_").replace(" ", "_"))
    if isinstance(found, click.Command):
        return found
    return command(found, verb.name, passes_words=verb.passes_words)
