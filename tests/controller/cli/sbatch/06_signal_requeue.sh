#!/bin/bash
#SBATCH --job-name=long-run
#SBATCH --gres=gpu:1
#SBATCH --time=00:30:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append

checkpoint_and_requeue() {
    touch STOP
    scontrol requeue "$SLURM_JOB_ID"
}
trap checkpoint_and_requeue USR1

srun python train.py --resume auto &
wait
