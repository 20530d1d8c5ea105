"""A job that only says that it runs: `python -S -E noted_job.py FOLDER SECONDS`, by the monotonic clock.

It notes its start, a sign of life every few hundredths of a second, and its end.
"""

import os
import sys
import time

TICK_S = 0.05


def main() -> None:
    folder, seconds = sys.argv[1], float(sys.argv[2])
    job, attempt = os.environ["COTENANT_JOB"], os.environ["COTENANT_ATTEMPT"]
    end_s = time.monotonic() + seconds
    with open(os.path.join(folder, f"{job}.notes"), "a", buffering=1) as notes:
        notes.write(f"start {os.getpid()} {attempt} {time.monotonic()}\n")
        while time.monotonic() < end_s:
            time.sleep(TICK_S)
            notes.write(f"tick {os.getpid()} {attempt} {time.monotonic()}\n")
        notes.write(f"end {os.getpid()} {attempt} {time.monotonic()}\n")


if __name__ == "__main__":
    main()
