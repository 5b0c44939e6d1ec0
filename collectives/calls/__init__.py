"""The methods of a communicator, one module for each kind of call.

In come the arguments as users write them; out go results, requests and planned calls. The checks
and the run are the core's; what is said here is the signature, the docstring, and what vector
forms, messages, objects and groups do before and after. No algorithm is chosen here.
"""
