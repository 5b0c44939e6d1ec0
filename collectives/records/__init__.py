"""What ran: timelines of all ranks, and traces of calls.

In come the records of the core (`tape`); out go a file of trace events (`tracefile`, `timeline`),
its summary (`summary`), and lists of calls (`trace`). Nothing here changes what runs.
"""
