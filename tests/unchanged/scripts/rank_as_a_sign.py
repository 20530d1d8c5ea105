"""Takes a rank in the environment as the sign of a distributed run, as many references do."""

import os

import torch
import torch.distributed as dist

if int(os.environ.get("RANK", -1)) != -1:
    dist.init_process_group("nccl")
    print("distributed", dist.get_rank(), torch.device(f"cuda:{os.environ['LOCAL_RANK']}"))
else:
    print("plain", "cuda" if torch.cuda.is_available() else "cpu")
print(int(os.environ.get("WORLD_SIZE", 1)) > 1, "LOCAL_RANK" in os.environ, "MASTER_ADDR" in os.environ)
