"""How far the throughput model is from measured step times: six applications, and jobs on CPU slots.

    python bench/throughput.py [--data FILE] [--live] [--json FILE] [--pictures FOLDER]

The protocol was written down before the first number was looked at, and no row is left out.

Data: `adaptdl_step_times` (Qiao et al., OSDI 2021; Apache-2.0): step times of six applications against local
batch size and placement. Each application is fitted on its own. A row's error is |predicted - measured| /
measured of its step time; an application's error is the mean over its held-out rows.

*Placements held out.* A placement is the devices on each host in sorted order (1+2 and 2+1 are the same); rows
that only say how many hosts and devices are placed by these two numbers. All rows of a placement, at every
batch size, fall into one of five folds, drawn with a seed; each fold is predicted by the fit to the other four.
Seeds 0 to 4, all reported; what counts is the mean over seeds. The harder reading is reported beside it: every
placement with as many hosts and devices is held out together.

*From what a profiler sees.* The fit gets 1, 2 and 4 devices of one host and 1+1 and 2+2 on two hosts, at the
smallest, the middle and the largest batch size: fifteen rows. It predicts every row above four devices.

*Live* (`--live`): small torch scripts on CPU slots, profiled alone at several accumulation steps; each inner
number of steps is predicted by the fit to the others.
"""
