"""The demo's training scripts. Rule: they are programs; only they themselves and tests import them."""
