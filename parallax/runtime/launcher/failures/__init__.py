"""Ends jobs: signals, silent processes, stalls, the state machine, and the report of the cause."""
