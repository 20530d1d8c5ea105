"""What every verb shares: asking the controller, its daemons, and printing tables, errors and help pages."""
