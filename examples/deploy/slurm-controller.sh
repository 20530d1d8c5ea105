#!/bin/bash
# The controller as a Slurm job that submits its successor: sbatch slurm-controller.sh. See docs/slurm-alloc.md.
#SBATCH --job-name=cotenant-controller --ntasks=1 --time=7-0
sbatch --dependency=singleton "$0"
kept=~/cotenant-controller here=$(mktemp -u)
trap : TERM  # Slurm tells the controller as well, and this script waits for its end.
if [ -e $kept ]; then cp -a $kept/ $here; fi
cotenant controller --endpoint tcp://0.0.0.0:7070 --state-dir $here &
while kill -0 $! 2>/dev/null; do wait $!; done
cp -a $here $kept-$SLURM_JOB_ID && ln -sfn $kept-$SLURM_JOB_ID $kept
