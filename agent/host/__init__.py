"""This machine: devices, cores, cgroups, locks, ports, identity of processes."""
