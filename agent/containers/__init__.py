"""Containers of jobs with `--image`: the program that starts them, its command lines, and their processes.

Rule: the program runs as the job's user, never as root, so no job gets an access to a container daemon, an
image or a folder that its user would not have anyway.
"""

__all__ = [
    "command_lines",
    "processes",
    "runtimes",
]
