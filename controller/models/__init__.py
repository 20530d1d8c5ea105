"""Models at work: evaluated here, never trained."""
