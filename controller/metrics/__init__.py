"""What Prometheus may ask of a controller and of an agent: one table, and one way to answer.

Rule: the table is the promise. A name or label that is not in it cannot be shown.
"""
