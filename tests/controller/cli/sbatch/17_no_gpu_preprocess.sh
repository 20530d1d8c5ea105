#!/bin/bash
#SBATCH --job-name="make shards"
#SBATCH --ntasks=16
#SBATCH --nodes=1-1
#SBATCH --mem-per-cpu=2000
#SBATCH --time=02:30
srun python make_shards.py
