"""A plain script that takes memory of one device until it is refused. Knows nothing of cotenant.

Rule: nothing but torch and the standard library. It prints one JSON object: what it held of the device, with
which error it was refused, and on which devices it has a context.
"""

from __future__ import annotations

import argparse
import json
import os

import torch

BLOCK_BYTES = 64 << 20


def taken(device: torch.device, most_mib: int) -> tuple[int, str]:
    blocks: list[torch.Tensor] = []
    try:
        while len(blocks) * BLOCK_BYTES < most_mib << 20:
            blocks.append(torch.empty(BLOCK_BYTES, dtype=torch.uint8, device=device))
    except torch.cuda.OutOfMemoryError as error:
        return len(blocks) * BLOCK_BYTES >> 20, str(error).splitlines()[0]
    return len(blocks) * BLOCK_BYTES >> 20, ""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", type=int, default=None, help="else LOCAL_RANK, else the first")
    parser.add_argument("--most-mib", type=int, required=True, help="it stops there by itself")
    options = parser.parse_args()
    no = int(os.environ.get("LOCAL_RANK", "0")) if options.device is None else options.device
    held_mib, error = taken(torch.device("cuda", no), options.most_mib)
    is_open = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    found = [each for each in range(torch.cuda.device_count()) if is_open is not None and is_open(each)]
    print(json.dumps({"held_mib": held_mib, "error": error, "open": found, "device": no}), flush=True)


if __name__ == "__main__":
    main()
