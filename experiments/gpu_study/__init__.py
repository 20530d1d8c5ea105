"""The pre-registered study of one GPU: its questions, and the program that measures."""
