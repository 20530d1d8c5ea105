"""Lazer: preempt when it is time.

Go et al., "Making Sense of Job Preemption for Distributed Deep Learning Acceleration" (DAC '26).
"""
