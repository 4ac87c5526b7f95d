"""Why and when a job ends: signals, silence, stalls, the state machine, and what is reported."""
