#!/bin/bash
# cotenant submit examples/jobs/digits.sh
# Lines that start with #COTENANT hold flags. They stand before the first command.
#COTENANT --name digits --gpus 2
#COTENANT --time 1h --mem 1G
#COTENANT --batch-size 64 --iterations 75
#COTENANT --launch worker

# With --launch worker it runs once per GPU: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set.
python examples/training/train_cotenant.py
