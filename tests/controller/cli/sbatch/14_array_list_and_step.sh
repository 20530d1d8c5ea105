#!/bin/bash
#SBATCH -a 1,3,10-20:5%2
#SBATCH -G 1
#SBATCH -o logs/%4a-%A.txt
#SBATCH --export=ALL,DATA=/data/imagenet
python train.py --fold $SLURM_ARRAY_TASK_ID
