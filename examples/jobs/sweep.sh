#!/bin/bash
# cotenant submit examples/jobs/sweep.sh
# One task per index; COTENANT_ARRAY_INDEX tells them apart. Every verb takes the array's number for all tasks.
#COTENANT --name sweep --array 0-3
#COTENANT --time 10m --batch-size 64 --launch worker

seeds=(11 23 42 77)
echo "task $COTENANT_ARRAY_INDEX: seed ${seeds[$COTENANT_ARRAY_INDEX]}"
python examples/training/train_cotenant.py
