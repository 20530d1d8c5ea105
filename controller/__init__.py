"""The controller: it decides which job runs where, beside which other job, and which jobs wait."""
