#!/bin/bash
#SBATCH -J hello -N1 -n2 --gres=gpu:2
#SBATCH --time 0
#SBATCH --wckey=x --comment "for the paper"
#SBATCH -D /scratch/ada
srun -l --cpu-bind=none python hello.py
