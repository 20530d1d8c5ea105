"""The demo's training scripts. Rule: they are programs; nothing but themselves and tests imports them."""
