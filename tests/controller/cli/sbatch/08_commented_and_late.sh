#!/bin/sh
##SBATCH --gres=gpu:8
# #SBATCH --nodes=9
#SBATCH --gres=gpu:2   # two are enough
  # an indented remark

#SBATCH	--time=45
set -e
#SBATCH --time=9-00:00:00
torchrun --nproc-per-node "$SLURM_GPUS_ON_NODE" train.py
