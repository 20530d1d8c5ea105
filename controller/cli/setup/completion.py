"""`cotenant completion`: the script for bash, zsh or fish; and the answers to its questions: the one place
that builds the tree of all verbs.

Rule: the script calls `cotenant` again with _COTENANT_COMPLETE=complete_SHELL; where nothing is known, it
completes files. The script for zsh is click's. Ours for bash also works before 4.4, and ours for fish keeps
words with a comma (`--policies fifo,srtf`) whole.
"""

from __future__ import annotations

import os
from typing import Annotated, Final

import click
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ShellComplete, ZshComplete

from cotenant.controller.cli.frame.command import argument
from cotenant.controller.cli.verbs import BY_NAME, COMPLETE_VARIABLE, PROGRAM, verb_command
from cotenant.controller.present.problem import FAILED, OK, Problem
from cotenant.controller.present.screen import say

BASH: Final = """\
%(complete_func)s() {
    local IFS=$'\\n'
    COMPREPLY=( $( env COMP_WORDS="${COMP_WORDS[*]}" \\
                   COMP_CWORD=$COMP_CWORD \\
                   %(complete_var)s=complete_bash $1 ) )
    return 0
}

complete -o default -F %(complete_func)s %(prog_name)s
"""

FISH: Final = """\
function %(complete_func)s
    for line in (env %(complete_var)s=complete_fish COMP_WORDS=(commandline -cp) \\
            COMP_CWORD=(commandline -t) %(prog_name)s)
        set -l found (string split --max 1 "," $line)
        if test $found[1] = file
            __fish_complete_path $found[2]
        else
            echo $found[2]
        end
    end
end

complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""


class Bash(BashComplete):
    source_template = BASH

    def source(self) -> str:
        return self.source_template % self.source_vars()

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        return [each for each in super().get_completions(args, incomplete) if each.type == "plain"]

    def format_completion(self, item: CompletionItem) -> str:
        return str(item.value)


class Zsh(ZshComplete):
    source_template = ZshComplete.source_template.replace("=zsh_complete", "=complete_zsh")


class Fish(FishComplete):
    source_template = FISH


KINDS: Final[dict[str, type[ShellComplete]]] = {"bash": Bash, "zsh": Zsh, "fish": Fish}


def completion(
    shell: Annotated[str, argument(metavar="bash|zsh|fish", help="Your shell (default: from $SHELL).")] = "",
) -> None:
    """Print the script that completes verbs, flags, jobs, hosts and policies in your shell.

    For example:

      cotenant completion bash > ~/.local/share/bash-completion/completions/cotenant
      cotenant completion zsh > ~/.zfunc/_cotenant
      cotenant completion fish > ~/.config/fish/completions/cotenant.fish
    """
    name = shell or os.path.basename(os.environ.get("SHELL", ""))
    if name not in KINDS:
        raise Problem("usage", f"no completion for shell {name!r}", f"there is one for {', '.join(KINDS)}")
    say(script(name).strip())


class Verbs(click.Group):
    """The group of all verbs by name; a verb's module is imported when it is completed, not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(BY_NAME)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        verb = BY_NAME.get(cmd_name)
        return None if verb is None else verb_command(verb)


def script(shell: str) -> str:
    return _shell_completion(shell).source()


def answer() -> int:
    """Answers the question in the environment."""
    what, _, shell = os.environ[COMPLETE_VARIABLE].partition("_")
    if what != "complete" or shell not in KINDS or "COMP_WORDS" not in os.environ:
        return FAILED
    say(_shell_completion(shell).complete())
    return OK


def _shell_completion(shell: str) -> ShellComplete:
    return KINDS[shell](Verbs(PROGRAM), {}, PROGRAM, COMPLETE_VARIABLE)
