"""All about GPUs that only an agent needs: what state they are in, who holds their memory, MPS."""
