"""The command of a login shell that keeps the environment it was asked for in.

Rule: what a login shell reads at its start (/etc/profile, ~/.profile, ~/.bashrc, ...) may set a PATH of its
own, and conda's part of it activates its base. The shell reads all of that, for its prompt, functions and
aliases; then its PATH and the variables that belong to it are what they were before.
"""

from __future__ import annotations

import os
import pwd
from typing import Final

SCRIPT: Final = r"""
shell=${1:-bash}
command -v "$shell" > /dev/null || shell=${1:-sh}
kept=$(export -p | while IFS= read -r line; do
    line=${line#export } line=${line#declare -x }
    case $line in
    PATH=* | VIRTUAL_ENV=* | CONDA_PREFIX=* | CONDA_DEFAULT_ENV=*) printf 'export %s\n' "$line" ;;
    esac
done)
export COTENANT_KEPT="$kept" CONDA_AUTO_ACTIVATE_BASE=false CONDA_AUTO_ACTIVATE=false
restore='eval "$COTENANT_KEPT"; unset COTENANT_KEPT CONDA_AUTO_ACTIVATE_BASE CONDA_AUTO_ACTIVATE'
case ${shell##*/} in
bash)
    exec "$shell" --rcfile /dev/fd/9 -i 9<<END
exec 9<&-
[ ! -r /etc/profile ] || . /etc/profile
for cotenant_file in ~/.bash_profile ~/.bash_login ~/.profile ~/.bashrc; do
    [ ! -r "\$cotenant_file" ] || { . "\$cotenant_file"; break; }
done
unset cotenant_file
$restore
END
    ;;
zsh)
    COTENANT_HOLD=$(mktemp -d) COTENANT_ZDOTDIR=${ZDOTDIR-}
    export COTENANT_HOLD COTENANT_ZDOTDIR ZDOTDIR="$COTENANT_HOLD"
    for file in .zshenv .zprofile .zshrc .zlogin; do
        cat > "$ZDOTDIR/$file" <<END
ZDOTDIR=\$COTENANT_ZDOTDIR
[[ -n \$ZDOTDIR ]] || unset ZDOTDIR
[[ ! -r \${ZDOTDIR:-\$HOME}/$file ]] || . "\${ZDOTDIR:-\$HOME}/$file"
COTENANT_ZDOTDIR=\${ZDOTDIR-} ZDOTDIR=\$COTENANT_HOLD
END
    done
    cat >> "$ZDOTDIR/.zlogin" <<END
ZDOTDIR=\$COTENANT_ZDOTDIR
[[ -n \$ZDOTDIR ]] || unset ZDOTDIR
rm -rf "\$COTENANT_HOLD"
unset COTENANT_HOLD COTENANT_ZDOTDIR
$restore
END
    exec "$shell" -l -i
    ;;
fish)
    exec "$shell" -l -i -C 'eval $COTENANT_KEPT; set -e COTENANT_KEPT
        set -e CONDA_AUTO_ACTIVATE_BASE; set -e CONDA_AUTO_ACTIVATE'
    ;;
sh | dash | ash | ksh | mksh)
    export ENV=/dev/fd/9
    exec "$shell" -i 9<<END
unset ENV
[ ! -r /etc/profile ] || . /etc/profile
[ ! -r ~/.profile ] || . ~/.profile
$restore
exec 9<&-
END
    ;;
esac
unset COTENANT_KEPT CONDA_AUTO_ACTIVATE_BASE CONDA_AUTO_ACTIVATE
exec "$shell" -i
"""
"""For a POSIX shell; its argument is the shell to become, else the best that there is. A shell that it does
not know starts without what a login reads."""


def login_shell() -> tuple[str, list[str]]:
    """The name of this user's login shell, and the command for it."""
    try:
        own = pwd.getpwuid(os.getuid()).pw_shell
    except KeyError:
        own = ""
    shell = os.environ.get("SHELL") or own or "/bin/sh"
    name = os.path.basename(shell)
    # A plain sh drops the functions by which bash finds our `srun`.
    return name, [shell if name == "bash" else "/bin/sh", "-c", SCRIPT, "sh", shell]


def shell_of_image() -> tuple[str, list[str]]:
    """The name of the shell that an image has, and the command for it."""
    return "shell", ["/bin/sh", "-c", SCRIPT, "sh"]
