"""The tests follow the tree of the package; what runs one after the other is said in conftest.py.

- `equality`: N workers equal one process, slots included, by optimizer, route, clipping and number of workers.
- `analysis`, `transform`, `views`: plans, decisions, counted ops and pages against `golden`, plans by seconds against
  brute force, and graphs broken by hand that the checks must refuse.
- `checkpoint`, `guard`, `runtime`: what three workers write and any number reads, faults noticed on all workers within
  four steps, frames, outcomes, stalls, mpirun's command, and launches of small programs.
- `end_to_end`, `compat`, `examples`: the commands, sessions, jobs in which something goes wrong, drivers of 2019.
- `fences`: strangers at the ports of jobs, and what children and other users get.
- `lab`: jobs on emulated hosts, which need root: after a kill no host keeps a process, a port or a file.
- `book`, `exactness`, `bench`: the documentation's commands, graphs of a grammar, what the figures are made with.
"""
