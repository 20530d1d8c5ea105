"""Parts of `bench/results_patient.py`."""
