"""On the machine that starts a job: launches the ranks, reads their output, ends the job when one of them dies."""
