"""The keys of a YAML resource file, with their types and meanings. The parser and the reference docs both use them."""

from __future__ import annotations

from dataclasses import dataclass

LINE_FORM = "`host` or `host: 0,1`, IPv6 as `[::1]: 0,1`"
"""A host in one line, which is also a valid item of `hosts`."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a map.

    Attributes:
        name: as it is written in the file.
        expected: the type of its value, as in errors.
        meaning: its meaning.
        otherwise: the default.
    """

    name: str
    expected: str
    meaning: str
    otherwise: str


FILE_KEYS = (
    Key(
        "hosts",
        f"a list of hosts, each {LINE_FORM} in quotes or a map",
        "The machines, each once. Ranks are counted in this order.",
        "refused",
    ),
    Key("ssh", "a map", "How hosts are reached (below).", "ssh's configuration"),
    Key(
        "mpirun_options",
        "a list of words or one string",
        "Words for mpirun's command. A string is split as by a shell.",
        "none",
    ),
    Key("network", "a map", "The job's network (below).", "MPI chooses"),
    Key(
        "ports",
        "two ports like 20000-20100",
        "For TensorFlow servers, workers of a job with servers, and a Keras script with worker 0 on another host; not "
        "for MPI.",
        "any port",
    ),
)
"""Keys of the file."""

HOST_KEYS = (
    Key(
        "address",
        "a host name or an IP address as a string",
        "For several hosts a name of letters, digits, dots and hyphens, or an IPv4 address.",
        "refused",
    ),
    Key(
        "gpus",
        "a list of GPU numbers like [0, 1]",
        "A worker for each of these GPUs; not with `workers`.",
        "none; `localhost`: all",
    ),
    Key(
        "workers",
        "a number of workers",
        "Workers without a GPU. 0: servers only; then give `servers`.",
        "1; `localhost`: one per GPU, or two without a GPU",
    ),
    Key("servers", "a number of servers", "TensorFlow servers, if the plan has any.", "1"),
    Key(
        "bandwidth",
        "a rate in bits per second like 10gbit or 200mbit",
        "The link's rate each way, for `parallax simulate`, `doctor` and `calibrate --from`.",
        "unknown",
    ),
    Key(
        "memory",
        "a size in bytes like 16GB or 4GiB",
        "The most that the job's processes take there, for `parallax plan --memory` and `doctor`.",
        "the cluster profile's, or this machine's",
    ),
    Key(
        "island",
        "a name",
        "The host's island, for `Config(islands=...)`: all hosts of an island have one name, and follow each other.",
        "none",
    ),
)
"""Keys of an item of `hosts` that is a map."""

SSH_KEYS = (
    Key("user", "a login name", "Whose login.", "ssh's configuration"),
    Key("port", "a port from 1 to 65535", "The port on every host.", "ssh's configuration"),
    Key("key", "the path of a private key", "A path without blanks and colons.", "ssh's configuration"),
    Key(
        "agent",
        "a command that takes the place of ssh",
        "Takes a host's name and a shell command; not with the other keys.",
        "`ssh`",
    ),
)
"""Keys of `ssh`."""

NETWORK_KEYS = (
    Key("interface", "the name of one network interface", "The same on all hosts.", "MPI chooses"),
    Key("subnet", "a network like 10.0.0.0/16", "Not with `interface`.", "MPI chooses"),
)
"""Keys of `network`."""
