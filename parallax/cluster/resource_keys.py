"""The keys of a resource file in YAML: what each takes and means. The parser and the reference both go by them."""

from __future__ import annotations

from dataclasses import dataclass

LINE_FORM = "`host` or `host: 0,1`, IPv6 as `[::1]: 0,1`"
"""A host in one line, which is also what an item of `hosts` may be."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a map.

    Attributes:
        name: as it is written in the file.
        expected: what its value must be, as errors say it.
        meaning: what it does.
        otherwise: what holds when it is left out.
    """

    name: str
    expected: str
    meaning: str
    otherwise: str


FILE_KEYS = (
    Key(
        "hosts",
        f"a list of hosts, each {LINE_FORM} in quotes or a map",
        "The machines. Ranks are counted in their order; rank 0 is on the first that has workers. No machine comes "
        "twice.",
        "refused",
    ),
    Key("ssh", "a map", "How the hosts are reached; its keys are below.", "`ssh` as it is configured"),
    Key(
        "mpirun_options",
        "a list of words or one string",
        "Words that are added to mpirun's command. A string is split as a shell does.",
        "none",
    ),
    Key("network", "a map", "Which network the job's traffic takes; its keys are below.", "MPI chooses"),
    Key(
        "ports",
        "two ports like 20000-20100",
        "The first and the last port that TensorFlow servers, and workers of a job with servers, may listen on, and "
        "the process that drives a Keras `fit` with worker 0 on another host. MPI's ports are not among them.",
        "any port",
    ),
)
"""Keys of the file."""

HOST_KEYS = (
    Key(
        "address",
        "a host name or an IP address as a string",
        "Where the host is reached. For several hosts it is a name of letters, digits, dots and hyphens, or an IPv4 "
        "address.",
        "refused",
    ),
    Key(
        "gpus",
        "a list of GPU numbers like [0, 1]",
        "A worker for each of these GPUs. Not together with `workers`.",
        "no GPU; of `localhost`, all of this machine",
    ),
    Key(
        "workers",
        "a number of workers",
        "So many workers without a GPU. 0 makes a host for servers only, which then needs `servers`.",
        "1; of `localhost`, one for each GPU, or two without a GPU",
    ),
    Key(
        "servers",
        "a number of servers",
        "So many TensorFlow servers, in a job whose plan has variables on servers. 0 for none.",
        "1, where the plan has any",
    ),
    Key(
        "bandwidth",
        "a rate in bits per second like 10gbit or 200mbit",
        "What the host's link carries each way. `parallax simulate` alone looks at it.",
        "nothing is known of the link",
    ),
    Key(
        "memory",
        "a size in bytes like 16GB or 4GiB",
        "What the job's processes on the host may take together. `parallax plan --memory` alone looks at it.",
        "as a cluster profile says, or as much as this machine has",
    ),
)
"""Keys of an item of `hosts` that is a map."""

SSH_KEYS = (
    Key("user", "a login name", "The login name.", "as ssh is configured"),
    Key("port", "a port from 1 to 65535", "The port of ssh on every host.", "as ssh is configured"),
    Key("key", "the path of a private key", "The private key, without blanks and colons.", "as ssh is configured"),
    Key(
        "agent",
        "a command that takes the place of ssh",
        "It is given the host's name and a shell command as arguments. Not together with the other keys.",
        "`ssh`",
    ),
)
"""Keys of `ssh`."""

NETWORK_KEYS = (
    Key("interface", "the name of one network interface", "The interface, the same on all hosts.", "MPI chooses"),
    Key("subnet", "a network like 10.0.0.0/16", "The network. Not together with `interface`.", "MPI chooses"),
)
"""Keys of `network`."""
