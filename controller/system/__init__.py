"""One machine: settings, paths, keys, files, locks, and the endpoint that Prometheus reads."""
