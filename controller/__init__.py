"""The controller: decides which job runs where, with whom, and who has to wait."""
