"""What every verb shares: asking the controller, its daemons, keys, and printing tables, errors and help pages."""
