"""What the literature compares with: baselines of GFS, Castor, Lazer, RLTune and PCS, and their rivals.

`two_class.py` has the schedulers of two classes that GFS is set against (yarn-cs, fgd, lyra, chronus),
`lucid.py` and `sjf_ffs.py` share devices without a model of interference, `remaining.py` has srtf-full and
its fixed intervals, `scores.py` the scored orders (f1, wfp3, unicep, qssf), `elastic/` policies that
resize jobs (max-min, afs-l, themis). Each module says its source and what it departs from.
"""
