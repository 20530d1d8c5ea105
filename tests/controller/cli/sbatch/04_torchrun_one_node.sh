#!/usr/bin/env bash
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=96
#SBATCH --exclusive
#SBATCH --time=2-00
#SBATCH --output=torchrun-%x.%J.log

export OMP_NUM_THREADS=12
torchrun --standalone --nproc_per_node=8 train.py
