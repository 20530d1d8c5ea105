#!/bin/bash
#SBATCH --job-name=evaluate
#SBATCH --dependency=afterok:123
#SBATCH --mail-type=END,FAIL
#SBATCH --mail-user=ada@example.org
#SBATCH --account=nlp
#SBATCH --qos=normal
#SBATCH --gpus=1
python evaluate.py
