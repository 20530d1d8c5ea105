"""The interference model at work: features of two jobs in, xi out. Numpy and values only; it is trained in
`controller/tuning/interference.py`."""
