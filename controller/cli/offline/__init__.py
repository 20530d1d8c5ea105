"""Verbs that compute here, on files, instead of asking a controller: simulation, what if, predictor."""
