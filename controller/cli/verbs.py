"""The verbs, and where each one lives. Nothing else is needed to print `cotenant --help`.

Rule: a verb that does not work is not in this table. A new verb is one line here and one function of
the same name in its module; only the chosen verb's module is ever imported.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Verb(NamedTuple):
    """`module` is below `cotenant.controller.cli`; it has a function or an app of the verb's name."""

    name: str
    module: str
    help: str
    passes_words: bool = False
    """Everything from the first word on belongs to the user's command."""


GROUPS: Final[dict[str, tuple[Verb, ...]]] = {
    "Start here": (
        Verb("demo", "demo", "real jobs share a device here, one is preempted and resumes"),
        Verb("run", "run", "run a command as a job and wait for it", passes_words=True),
        Verb("submit", "submit", "queue a command, a YAML file or a script", passes_words=True),
        Verb(
            "profile", "profile", "measure a command on 1, 2, 4, ... devices; list, forget", passes_words=True
        ),
    ),
    "Jobs": (
        Verb("queue", "queue", "list jobs"),
        Verb("show", "show", "everything about one job"),
        Verb("explain", "explain", "why a job waits, runs or shares, and how it came about"),
        Verb("logs", "logs", "a job's output; -f follows it"),
        Verb("wait", "wait", "until jobs have ended"),
        Verb("cancel", "change", "end jobs"),
        Verb("hold", "change", "keep waiting jobs back"),
        Verb("release", "change", "let held jobs go"),
        Verb("preempt", "change", "save jobs and put them back in the queue"),
        Verb("checkpoint", "change", "save jobs that go on running; verify: can a command resume?"),
    ),
    "Hosts and policy": (
        Verb("nodes", "nodes", "hosts and devices; drain, resume, lost"),
        Verb("top", "top", "a live table of devices and jobs"),
        Verb("pairs", "pairs", "which jobs share well: slowdowns measured both ways, and verdicts"),
        Verb("policy", "policy", "list, show or set the policy"),
        Verb("predictor", "predictor", "train and judge a model of how much jobs slow each other down"),
    ),
    "What if": (
        Verb("sim", "sim", "policies over a trace; replay of a journal; traces"),
        Verb("whatif", "whatif", "what this cluster's last days would have been under another policy"),
    ),
    "Set up": (
        Verb("up", "up", "controller and agent on this machine"),
        Verb("controller", "daemons", "the controller alone"),
        Verb("agent", "daemons", "the agent of this host alone"),
        Verb("init", "init", "keys for a cluster, its users and its hosts"),
        Verb("doctor", "doctor", "what works here, what does not, and what to do"),
        Verb("config", "config", "every setting and where it comes from"),
        Verb("completion", "completion", "completion for bash, zsh or fish"),
        Verb("version", "version", "versions of this command and of the controller"),
    ),
}

BY_NAME: Final[dict[str, Verb]] = {verb.name: verb for verbs in GROUPS.values() for verb in verbs}

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
