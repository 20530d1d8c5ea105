#!/bin/bash -l
#SBATCH -J resnet
#SBATCH -p accelerated
#SBATCH -A project_1234
#SBATCH -N 1
#SBATCH -n 4
#SBATCH -c 10
#SBATCH --gres=gpu:a100:4
#SBATCH -t 1-12:30:00
#SBATCH -o resnet.%j.log

module purge
module load gcc/11 cuda/12.1

srun python train_ddp.py
