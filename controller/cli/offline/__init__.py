"""Verbs that compute on files instead of asking a controller: simulation, what-if, predictor."""
