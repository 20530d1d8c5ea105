"""Wall clocks that a test moves while processes run by them: `wall_clock.c`, preloaded, a file for each."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


class NoShim(Exception):
    """Why no clock can be moved here."""


class WallClocks:
    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        """Raises NoShim."""
        compiler = shutil.which("cc")
        if compiler is None:
            raise NoShim("needs a C compiler (cc): wall clocks are moved by a preloaded library")
        self._library = folder / "wall_clock.so"
        words = (compiler, "-shared", "-fPIC", "-O1", "-o", str(self._library), str(SOURCE))
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NoShim(f"{' '.join(words)}: {done.stderr.strip()}")
        self._files = {name: folder / f"clock-{name}" for name in names}
        for file in self._files.values():
            file.write_bytes(struct.pack("=q", 0))

    def environment(self, name: str) -> dict[str, str]:
        """What puts a program and all that it starts under that clock."""
        return {"LD_PRELOAD": str(self._library), "STORM_CLOCK": str(self._files[name])}

    def jump(self, name: str, by_s: float) -> None:
        shift_ns = int((self.shift_s(name) + by_s) * 1e9)
        with self._files[name].open("r+b") as file:  # In place: it is mapped.
            file.write(struct.pack("=q", shift_ns))

    def shift_s(self, name: str) -> float:
        shift_ns: int = struct.unpack("=q", self._files[name].read_bytes())[0]
        return shift_ns / 1e9
