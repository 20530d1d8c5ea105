"""Models at work: evaluated here, never trained."""

__all__ = ["eta", "eta_score", "lengths"]
