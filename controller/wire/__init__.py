"""What crosses a process boundary: typed messages, their bounded encoding, the job-side protocol.

Rule: payloads are the domain's own types; this package adds only envelopes and limits.
"""
