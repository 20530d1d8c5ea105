"""Modules for the tools of others, one each; nothing else imports them."""
