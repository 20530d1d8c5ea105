#!/bin/bash
#SBATCH --constraint=a100&nvlink
#SBATCH --gpus=2
#SBATCH --cpus-per-gpu=6
#SBATCH --mem-per-cpu=4G
#SBATCH -t 90
accelerate launch --num_processes 2 train.py
