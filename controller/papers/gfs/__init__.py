"""GFS: hp jobs first; spot jobs get what a forecast of hp demand leaves, and give way at the least cost.

Source: GFS (ASPLOS '26). Departs from it where the paper is silent or contradicts itself; each module says
where. What came of it: on a synthetic workload of the paper's shape `gfs-rise`, ours, breaks the fewest
promises of spot jobs at every load, and spot jobs wait longest under `gfs` (experiments/results/gfs.md).

`policy.py` is the layer over any order, `state.py` what it remembers and the quota, `scheduling.py` the
paper's own order and whom it preempts, `demand.py` and `forecasting.py` what is asked of a forecast,
`class_view.py` what the order below sees. `forecast/` computes forecasts, `training/` fits them anew on the
controller's own hours; experiments/gfs fits one to a file of demand, and judges it beside others.
"""
