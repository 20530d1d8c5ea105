"""What every verb shares: asking the controller, and printing tables, errors and help pages."""
