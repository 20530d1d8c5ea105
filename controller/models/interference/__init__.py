"""How much two jobs slow each other down, from a trained model; evaluated, never trained."""
