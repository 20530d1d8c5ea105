"""Measures what a job needs: step time, memory, duty cycle, and the indicators of its device.

Rule: this module imports nothing, so that one source can be used without the others' dependencies.
"""

__all__ = ["inplace", "step_law", "throughput"]
