"""`cotenant sim` and `cotenant whatif`."""
