"""The cost of plan changes in a running job, on emulated hosts."""
