"""Who may wait before the policy is asked, what may change its decision, what follows (`stages.py`)."""
