"""NVIDIA's GPUs on the PCI bus, which are seen without any driver.

Rule: what is on the bus need not be ours to use: a container sees its host's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

DEVICES: Final = "sys/bus/pci/devices"
VENDOR: Final = "0x10de"
CLASSES: Final = ("0x0300", "0x0302")
"""Display controllers, and 3D controllers, which have no display."""


def gpus_on_the_bus(root: Path = Path("/")) -> int | None:
    """How many; None: the bus cannot be read."""
    folder = root / DEVICES
    try:
        return sum(_is_gpu(device) for device in folder.iterdir())
    except OSError:
        return None


def _is_gpu(device: Path) -> bool:
    try:
        vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return False
    return vendor == VENDOR and kind[:6] in CLASSES
