"""How many GPUs will be asked for in the next hours, with how much doubt; evaluated, never trained."""
