"""Live indicators of devices: the sources of their counters, which one is asked, and windows of values.

Reading order: `sources.py` (names, windows and summaries), `gpm.py`, `dcgm.py`, `exporter.py`, `nvml.py` and
`cpu.py` (a file per source), `device_process.py` (which source, and why; who asks), `device_child.py` (the
process that reads them, for a call into a driver may hang).
"""

__all__ = ["counters", "cpu", "dcgm", "device_process", "gpm", "gpu", "sources"]
