"""Answers people: what they may ask, change and see, one request and one reply at a time.

Rule: reading changes nothing; every change becomes an event, and is answered when it is durable.
"""
