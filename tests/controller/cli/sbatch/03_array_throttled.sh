#!/bin/bash
#SBATCH --job-name=sweep
#SBATCH --array=0-31%4
#SBATCH --gres=gpu:1
#SBATCH --mem=0
#SBATCH --output=sweep_%A_%a.out

LRS=(0.1 0.03 0.01 0.003)
python sweep.py --lr "${LRS[$((SLURM_ARRAY_TASK_ID % 4))]}" --seed "$SLURM_ARRAY_TASK_ID"
