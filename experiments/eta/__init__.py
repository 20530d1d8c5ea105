"""Are ETAs right: simulated, against what is wanted of them."""
