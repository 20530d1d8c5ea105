#!/bin/bash
#SBATCH --ntasks=4
#SBATCH --gpus-per-task=2
#SBATCH --cpus-per-task=8
#SBATCH --tasks-per-node=2
#SBATCH --distribution=block:block
#SBATCH --gpu-bind=closest
srun --kill-on-bad-exit=1 --mpi=none python train.py
