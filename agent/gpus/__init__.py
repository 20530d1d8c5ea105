"""The GPUs of this host: what they are, how they are, and how jobs share them.

Reading order: `nvml_watch.py` (which asks the driver, as a process of its own), `health.py` with
its tables `device_states.py` and `xid.py` (what it means, pure), `faults.py` (for whom), `held.py` (memory
that does not come back), `clients.py` and `mps_setup.py` (who uses MPS), `mps_edge.py` (how it stays alive).
"""
