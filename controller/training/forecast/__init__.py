"""Fits forecasters of demand, and judges them on demand that was kept out."""
