"""cotenant: the product's own policy. One rule of marginal cost decides between a free device, a share, a
preemption and waiting; `costs.py` has the rule, `policy.py` says for which jobs, and when, it is asked."""

from cotenant.controller.policies.cotenant.policy import COTENANT, Cotenant

__all__ = ["COTENANT", "Cotenant"]
