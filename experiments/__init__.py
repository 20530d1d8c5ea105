"""What rebuilds papers, one folder each: the product imports nothing of it, and no wheel has it."""
