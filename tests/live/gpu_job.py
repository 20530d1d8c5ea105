"""A training job for a host whose GPUs are stand-ins: `python gpu_job.py STEPS PACE_S`.

It speaks the job-side protocol in a few lines, saves every few steps and goes on from there, and for as long
as it lives a file says that it is a process on its GPU, so that the library and the MPS stub see it there.
Before that it writes down what it finds on the device, under a lock: who else lives there, and what the
agent's own notes say of it. At SIGUSR1 it dies as one does whose CUDA context is gone.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

SAVE_EVERY = 10
WAIT_S = 30.0
MIB = 15_000


def living(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Rank:
    def __init__(self, steps: int, pace_s: float) -> None:
        env = os.environ
        self.steps, self.pace_s = steps, pace_s
        self.job, self.attempt, self.rank = (
            env["COTENANT_JOB"],
            int(env["COTENANT_ATTEMPT"]),
            int(env["RANK"]),
        )
        seen = env["CUDA_VISIBLE_DEVICES"].split(",")
        self.gpu = seen[int(env["LOCAL_RANK"])]
        self.pipe = env.get("CUDA_MPS_PIPE_DIRECTORY", "")
        self.saved = Path(env["COTENANT_CHECKPOINT_ROOT"]) / "step"
        self.step = int(self.saved.read_text()) if self.saved.exists() else 0
        self.promised: dict[int, int] = {}
        self.stop_at = -1
        self.supervisor = env["COTENANT_SOCKET"]
        self.channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.channel.bind(str(Path(self.supervisor).with_name(f"rank-{self.rank}.sock")))

    # --- What it says ------------------------------------------------------------------------------

    def say(self, word: str, **fields: object) -> None:
        data = json.dumps({"v": 1, "m": word, "rank": self.rank, **fields}).encode()
        try:
            self.channel.sendto(data, self.supervisor)
        except OSError:  # Its supervisor is gone.
            return

    def claim(self) -> None:
        """Be on the GPU, and bear witness."""
        folder = Path(os.environ["CHAOS_CLAIMS"])
        with Path(os.environ["CHAOS_STARTS"]).open("a+") as notes:
            fcntl.flock(notes, fcntl.LOCK_EX)
            notes.seek(0)
            before = [json.loads(line) for line in notes]
            note = {
                "job": self.job,
                "attempt": self.attempt,
                "rank": self.rank,
                "pid": os.getpid(),
                "uid": os.getuid(),
                "gpu": self.gpu,
                "pipe": self.pipe,
                "step": self.step,
                "beside": [each for each in before if each["gpu"] == self.gpu and living(each["pid"])],
                "twins": [
                    (each["attempt"], each["pid"])
                    for each in before
                    if (each["job"], each["rank"]) == (self.job, self.rank) and living(each["pid"])
                ],
                **self.known_of_it(),
            }
            for each in note["beside"]:  # type: ignore[attr-defined]
                del each["beside"]
            notes.write(json.dumps(note) + "\n")
            notes.flush()
            fresh = folder.with_name(f"claim-{os.getpid()}")
            fresh.write_text(f"M {self.pipe}" if self.pipe else "C")
            os.replace(fresh, folder / f"{self.gpu}.{os.getpid()}.{MIB}")

    def known_of_it(self) -> dict[str, object]:
        """What the agent had noted against the device when it wrote down the order for this attempt."""
        state = Path(os.environ["CHAOS_STATE"])
        kept = json.loads((state / "devices.json").read_text()) if (state / "devices.json").exists() else {}
        ordered = (state / "attempts" / f"{self.job}-a{self.attempt}" / "order.json").stat().st_mtime
        ordered_s = ordered - time.time() + time.clock_gettime(time.CLOCK_BOOTTIME)
        against = [
            f"{mark['state']}: {mark['why']}"
            for mark in kept.get("marks", ())
            if mark["uuid"] == self.gpu and mark["since_s"] < ordered_s - 0.05
        ]
        mode = Path(f"{os.environ['CHAOS_FACTS']}.mode-{os.environ['CHAOS_GPUS'].split().index(self.gpu)}")
        return {"against": against, "exclusive": mode.exists() and mode.read_text().strip() == "3"}

    # --- What it does ------------------------------------------------------------------------------

    def run(self) -> None:
        resumed = {"resumed_from": f"s{self.step}", "exact": True} if self.step else {}
        self.say("hello", world_size=1, resumable=True, accumulates=False, step=self.step, **resumed)
        begun = False
        while self.step < self.steps:
            self.listen(self.pace_s)
            self.step += 1
            if not begun:
                self.say("first_step", step=self.step)
            begun = True
            self.say("step", step=self.step, count=1, elapsed_s=self.pace_s, s=1, loss=1.0)
            if self.step % SAVE_EVERY == 0:
                self.save()
            deadline_s = time.monotonic() + WAIT_S
            while self.step in self.promised.values() and self.stop_at < 0 and time.monotonic() < deadline_s:
                self.listen(0.5)
            if self.step == self.stop_at:
                self.save()
                self.say("stopped", step=self.step)
                return

    def save(self) -> None:
        if self.rank == 0:
            fresh = self.saved.with_name("fresh")
            fresh.write_text(str(self.step))
            os.replace(fresh, self.saved)
            self.say("durable", step=self.step, name=f"a{self.attempt}-s{self.step}", exact=True, note="")

    def listen(self, wait_s: float) -> None:
        until_s = time.monotonic() + wait_s
        while (left_s := until_s - time.monotonic()) > 0:
            if select.select([self.channel], [], [], left_s)[0]:
                self.obey(json.loads(self.channel.recv(4096)))

    def obey(self, said: dict[str, object]) -> None:
        if said.get("m") != "stop_at":
            if said.get("m") == "save_at" and said["phase"] == "propose":
                self.say("confirm", proposal=said["proposal"], step=self.step, ok=False)
            return
        proposal, step = int(str(said["proposal"])), int(str(said["step"]))
        if said["phase"] == "propose":
            ok = step > self.step and step <= self.steps
            if ok:
                self.promised[proposal] = step
            self.say("confirm", proposal=proposal, step=self.step, ok=ok)
        elif said["phase"] == "commit":
            self.stop_at = step
        else:
            self.promised.pop(proposal, None)


def die(*_: object) -> None:
    os.write(2, b"RuntimeError: CUDA error: an illegal memory access was encountered\n")
    os._exit(1)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, die)
    made = Rank(int(sys.argv[1]), float(sys.argv[2]))
    made.claim()
    made.run()
