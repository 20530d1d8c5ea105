"""PCS (NSDI '24): its figures rebuilt in the fluid world, as far as their workloads are published."""
