"""Changes of plan in a job that trains, on emulated hosts."""
