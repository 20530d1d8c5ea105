"""Lazer: a preemption is put off by a time that is learned from the load.

Source: Go et al., "Making Sense of Job Preemption for Distributed Deep Learning Acceleration" (DAC '26).
Departs from it in that free devices are tried before anybody is preempted, and that all free devices are
offered (`policy.py`). What came of it: deferral itself changes no mean completion time that 95 % intervals
could tell from chance; the paper's gain over sjf holds, those over srtf do not
(experiments/results/lazer.md).

`policy.py` has Algorithms 1 and 2, `learning.py` when the deferral is learned anew, `surrogate.py` and
`improvement.py` the Gaussian process and what is tried next, `deferral.py` the fit, in a process of its own.
"""
