#!/bin/bash
#SBATCH --hold
#SBATCH --export=NONE
#SBATCH --gres=gpu:1(S:0)
#SBATCH --no-requeue
#SBATCH --input=/dev/null
#SBATCH --reservation=course
unset SLURM_EXPORT_ENV
python train.py
