#!/bin/bash
#SBATCH --gres=gpu:4
#SBATCH --ntasks=4
#SBATCH --job-name=four-seeds
for seed in 0 1 2 3; do
    srun --ntasks=1 --gpus=1 --exclusive python train.py --seed "$seed" > "seed-$seed.log" &
done
wait
