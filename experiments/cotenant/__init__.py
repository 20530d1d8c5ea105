"""The product's own policy against patient, srtf, castor-cost and castor, on windows of Philly's VCs."""
