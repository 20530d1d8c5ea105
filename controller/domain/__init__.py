"""The words of cotenant as types: ids, jobs, devices, events, actions, commands, timings.

Rule: pure values only. Nothing here knows a clock, a socket, a file or a random number.
"""
