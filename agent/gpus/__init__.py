"""The GPUs of this host: what they are, how they are, and how jobs share them.

Reading order: `nvml.py` and `nvml_watch.py` (who ask the driver, as processes of their own), `health.py` with
its tables `device_states.py` and `xid.py` (what it means, pure), `faults.py` (for whom), `held.py` (memory
that does not come back), `clients.py` and `mps_setup.py` (who uses MPS), `mps_edge.py` (how it stays alive).
"""
