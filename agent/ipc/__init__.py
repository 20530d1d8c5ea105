"""How daemon and supervisors communicate: files in an attempt's folder, and messages on its socket."""

__all__ = [
    "channel",
    "files",
    "records",
]
