"""The state of a job in the memory of its hosts: each owner's rows on two of them, for a start without a folder."""
