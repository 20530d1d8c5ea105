#!/bin/bash
# The controller as a Slurm job that submits its successor: sbatch slurm-controller.sh. See docs/slurm.md.
#SBATCH --job-name=cotenant-controller --ntasks=1 --time=7-0
set -u
kept=~/cotenant-controller here=$(mktemp -d)/state
# Without the journal it would begin anew: rather end here, with no successor.
if [ -e $kept ]; then cp -a $kept/ $here || exit; fi
sbatch --dependency=singleton "$0" || exit
trap : TERM  # Slurm tells the controller as well, and this script waits for its end.
cotenant controller --endpoint tcp://0.0.0.0:7070 --state-dir $here &
while kill -0 $! 2>/dev/null; do wait $!; code=$?; done
if [ -e $here ]; then cp -a $here $kept-$SLURM_JOB_ID && ln -sfn $kept-$SLURM_JOB_ID $kept; fi
# One that cannot start would be followed by others for ever.
[ $code = 0 ] || [ $SECONDS -gt 60 ] || scancel --user="$SLURM_JOB_USER" --state=PENDING --name=cotenant-controller
