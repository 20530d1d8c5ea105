"""What every verb shares: how questions are asked, how tables, errors and help pages read."""
