#!/bin/bash -e
#SBATCH --nodes=2
#SBATCH --gres=gpu:v100:2
#SBATCH --ntasks-per-node=2
#SBATCH --mem-per-gpu=48G
#SBATCH --signal=SIGUSR1@90
#SBATCH --time=0-08:00
srun python lightning_train.py
