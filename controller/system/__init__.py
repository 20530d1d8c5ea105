"""One machine: settings, paths, keys, files, locks, and the endpoint that Prometheus reads."""

__all__ = ["child", "endpoint", "files", "keys", "locks", "paths", "secrets", "settings"]
