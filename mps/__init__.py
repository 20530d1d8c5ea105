"""NVIDIA's Multi-Process Service: whether it works here, what a client needs, what the daemon's answers mean.

Rule: everything in this package except `detection.look` is pure. Nothing here starts, stops or configures a
daemon; that needs one owner per host, who knows which jobs are on the device.
"""
