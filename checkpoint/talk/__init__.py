"""How a training process communicates with its supervisor and with the job's other ranks.

Reading order: `protocol.py` (names and datagrams), `channel.py` (the sockets), `reports.py` (what is
told), `agreement.py` (a common step to stop or save at), `gang.py` (the other ranks).
"""
