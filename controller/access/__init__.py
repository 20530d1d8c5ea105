"""Who may come in, through which door, and what stays secret."""
