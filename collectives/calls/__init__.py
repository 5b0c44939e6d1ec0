"""The methods of a communicator, one module for each kind of call.

The methods take the arguments as users write them, and return results, requests and planned calls.
The core checks the arguments and runs the call. These modules have the signatures and the
docstrings, and the work that vector forms, messages, objects and groups do before and after the
run. `neighborhood` has the contracts of the collectives between neighbours, which are no part of
the registry. No algorithm is chosen here.
"""
