"""The NVIDIA driver's facts about this host's GPUs. Nothing else in cotenant calls the driver's library."""

__all__ = ["cdi", "cuda_probe", "facts", "library", "probe_client", "process_info"]
