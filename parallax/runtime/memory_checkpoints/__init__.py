"""Replicates a job's state in the memory of its hosts: each owner's rows on two hosts, to restart without a folder."""
