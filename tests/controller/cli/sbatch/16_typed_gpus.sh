#!/bin/bash
#SBATCH --gpus=a100:8
#SBATCH --gpus-per-node=4
#SBATCH --ntasks-per-gpu=1
#SBATCH --switches=1
#SBATCH --kill-on-invalid-dep=yes
srun python pretrain.py
