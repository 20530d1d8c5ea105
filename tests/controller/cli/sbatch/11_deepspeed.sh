#!/bin/bash
#SBATCH --job-name=zero3
#SBATCH --nodes=1
#SBATCH --gres=gpu:h100:8
#SBATCH --mem=900G
#SBATCH --time=24:00:00
#SBATCH --output=%u-%x-%j-%N.log
export MASTER_PORT=$((12000 + SLURM_JOB_ID % 10000))
deepspeed --master_port "$MASTER_PORT" train.py --deepspeed ds_config.json
