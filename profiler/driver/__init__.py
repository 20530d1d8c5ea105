"""What the NVIDIA driver says of this host's GPUs. Nothing else in cotenant calls its library."""

__all__ = ["facts", "library", "probe_client", "process_info"]
