"""Requests of users checked and answered: handlers, and views of what there is."""
