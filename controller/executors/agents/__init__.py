"""Our agents as executors: commands out, reports in, leases."""
