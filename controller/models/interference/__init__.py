"""How much two jobs slow each other down, from a trained model; evaluated, never trained."""

__all__ = ["bands", "features", "forest", "model_file", "predictor"]
