"""Fits the forecasters that a policy may ask for, by XGBoost or torch, both of which may be absent."""

__all__ = ["holidays", "linear", "train"]
