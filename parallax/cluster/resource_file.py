"""Reads the file that lists the machines of a job, in either of its two formats.

- Lines: `host` or `host: 0,1,2` (GPU numbers) per line, as in Parallax 2019, or `host slots=2` (workers without GPU),
  as in Open MPI's hostfiles; `#` begins a comment, IPv6 goes in brackets.
- YAML: a map with the keys of `parallax.cluster.resource_keys`; an item of `hosts` is such a line or a map.

Every error states the file, line, key, the expected value and the received value.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import yaml

from parallax.base.errors import ResourceFileError
from parallax.cluster.machines import LOOPBACK_NAMES, Cluster, FieldError, Host, Network, Ssh, local_cluster
from parallax.cluster.resource_keys import FILE_KEYS, HOST_KEYS, LINE_FORM, NETWORK_KEYS, SSH_KEYS, Key

# The keys of the file that differ from the names of fields.
_KEY_BY_FIELD = {
    "num_workers": "workers",
    "num_servers": "servers",
    "link_bytes_per_s": "bandwidth",
    "memory_bytes": "memory",
}

# The beginning of a line that only a YAML file has: a document, a map in braces, the key `hosts`.
_YAML_LINE = re.compile(r"""^(---|\{|hosts\s*:|"hosts"\s*:|'hosts'\s*:)""", re.MULTILINE)

_SLOTS = re.compile(r"(\S+)\s+slots\s*=\s*(\S*)")
_BANDWIDTH = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([kmgt]?)bit(?:/s)?", re.IGNORECASE)
_MEMORY = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([kmgt]?)(i?)b", re.IGNORECASE)
_BITS_BY_PREFIX = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def parse_resource_file(path: Path | str, this_machine: Host | None = None) -> Cluster:
    """Reads a resource file; arguments, result and errors as for `parse_resource_text`.

    Raises:
        ResourceFileError: also when the file is missing, cannot be read or is not UTF-8.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ResourceFileError(f"{path}: cannot read the resource file: {error.strerror}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ResourceFileError(f"{path}:{line}: expected UTF-8, got byte {data[error.start]:#04x}") from error
    return parse_resource_text(text, str(path), this_machine)


def parse_resource_text(text: str, name: str, this_machine: Host | None = None) -> Cluster:
    """Reads the text of a resource file.

    A host without GPUs and number of workers has one worker, without a GPU, because it has not been inspected. Only
    `localhost` (127.0.0.1, ::1) then has the workers and GPUs of `this_machine`. `workers` are workers without a GPU.

    Args:
        text: lines or YAML.
        name: the file's name in errors; `.yaml` or `.yml` at its end means YAML.
        this_machine: the workers and GPUs of this machine; None detects them, as `local_cluster()`.

    Raises:
        ResourceFileError: the text breaks a rule of its format or of the values in `parallax.cluster.machines`.
    """
    if name.lower().endswith((".yaml", ".yml")) or _YAML_LINE.search(text):
        return _read_yaml(text, name, this_machine)
    return _read_lines(text, name, this_machine)


def parse_bandwidth(text: str) -> int | None:
    """Bytes per second of a rate in bits per second like `10gbit`; None if the text is no rate."""
    match = _BANDWIDTH.fullmatch(text)
    return int(Fraction(match[1]) * _BITS_BY_PREFIX[match[2].lower()] / 8) if match else None


def _error(file: str, line: int, key: str, expected: str, received: str) -> ResourceFileError:
    return ResourceFileError(f"{file}:{line}: {key}: expected {expected}, got {received}")


@contextmanager
def _on_lines(file: str, line: int, line_by_key: Mapping[str, int]) -> Iterator[None]:
    """Context that reports an invalid value on the line of its key, or on `line` if the key is not in the file."""
    try:
        yield
    except FieldError as error:
        key = _KEY_BY_FIELD.get(error.field, error.field)
        raise _error(file, line_by_key.get(key, line), key, error.expected, error.received) from error


# --- lines ---


def _read_lines(text: str, file: str, this_machine: Host | None) -> Cluster:
    hosts: list[Host] = []
    line_by_key: dict[str, int] = {}
    for line, written in enumerate(text.split("\n"), start=1):
        entry = written.split("#")[0].strip()
        if entry:
            line_by_key[f"hosts[{len(hosts)}]"] = line
            with _on_lines(file, line, {}):
                hosts.append(_host_of_line(entry, this_machine))
    if not hosts:
        raise _error(file, 1, "hosts", f"a line {LINE_FORM} for each host", "no line but blanks and comments")
    with _on_lines(file, 1, line_by_key):
        return Cluster(tuple(hosts))


def _host_of_line(entry: str, this_machine: Host | None) -> Host:
    if slots := _SLOTS.fullmatch(entry):
        if not re.fullmatch("[0-9]{1,9}", slots[2]):
            raise FieldError("slots", "a number of workers like slots=2", repr(slots[2]))
        return Host(_without_brackets(slots[1]), int(slots[2]))
    match = re.fullmatch(r"(\[[^\[\]]*\]|[^:\[\]]*?)\s*(?::([^:]*))?", entry)
    if match is None or not match[1]:
        raise FieldError("host", LINE_FORM, repr(entry))
    address, numbers = _without_brackets(match[1]), match[2]
    if numbers is None:
        return _host_with_default_workers(address, this_machine)
    words = [word.strip() for word in numbers.split(",")]
    if not all(re.fullmatch("-?[0-9]{1,9}", word) for word in words):
        raise FieldError("gpus", "GPU numbers like 0,1 after the colon", repr(numbers.strip()))
    return Host(address, len(words), tuple(int(word) for word in words))


def _without_brackets(address: str) -> str:
    """Removes the brackets of an IPv6 address; around anything else they stay, and Host refuses them."""
    return address[1:-1] if re.fullmatch(r"\[[^\[\]]*:[^\[\]]*\]", address) else address


def _host_with_default_workers(
    address: str,
    this_machine: Host | None,
    servers: int | None = None,
    link_bytes_per_s: int | None = None,
    memory_bytes: int | None = None,
    island: str | None = None,
) -> Host:
    if address.lower() not in LOOPBACK_NAMES:
        return Host(address, 1, (), servers, link_bytes_per_s, memory_bytes, island)
    seen = this_machine or local_cluster().hosts[0]
    return Host(address, seen.num_workers, seen.gpus, servers, link_bytes_per_s, memory_bytes, island)


# --- YAML ---


@dataclass(frozen=True, slots=True)
class _Value:
    """A YAML value, its key, the line of that key (of the item, in a list), and the expected type."""

    file: str
    line: int
    key: str
    node: yaml.Node
    expected: str = ""

    def error(self, expected: str = "", received: str = "") -> ResourceFileError:
        """The error about a value that is not of the expected type."""
        return _error(self.file, self.line, self.key, expected or self.expected, received or self._describe())

    def fields(self, keys: tuple[Key, ...], otherwise: str = "") -> dict[str, _Value]:
        """The values of a map by key; only `keys` are allowed, each at most once. `otherwise` lists them in errors."""
        expected = {key.name: key.expected for key in keys}
        known = f"a map with keys of {', '.join(expected)}{otherwise}"
        if not isinstance(self.node, yaml.MappingNode):
            raise self.error(known)
        fields: dict[str, _Value] = {}
        for key_node, node in self.node.value:
            key = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "(a list or map)"
            field = _Value(self.file, key_node.start_mark.line + 1, key, node, expected.get(key, ""))
            if key not in expected:
                raise field.error(known, f"the unknown key {key!r}")
            if key in fields:
                raise field.error(f"the key once (first on line {fields[key].line})", "it again")
            fields[key] = field
        return fields

    def items(self, expected: str = "") -> list[_Value]:
        """The values of a list."""
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.error(expected)
        return [
            _Value(self.file, node.start_mark.line + 1, f"{self.key}[{position}]", node)
            for position, node in enumerate(self.node.value)
        ]

    def text(self, expected: str = "") -> str:
        """A string; unquoted numbers, `yes` and similar values are not strings."""
        if self.node.tag != "tag:yaml.org,2002:str":
            raise self.error(expected)
        return str(self.node.value)

    def number(self, expected: str = "") -> int:
        """A whole number in decimal digits: YAML's octal, hexadecimal and base 60 would surprise here."""
        if self.node.tag != "tag:yaml.org,2002:int" or not re.fullmatch("0|-?[1-9][0-9]{0,8}", self.node.value):
            raise self.error(expected)
        return int(self.node.value)

    def _describe(self) -> str:
        if isinstance(self.node, yaml.ScalarNode):
            kind = self.node.tag.rpartition(":")[2]
            return {"null": "nothing", "str": repr(self.node.value)}.get(kind, f"{self.node.value} ({kind})")
        return "a list" if isinstance(self.node, yaml.SequenceNode) else "a map"


def _read_yaml(text: str, file: str, this_machine: Host | None) -> Cluster:
    root = _compose(text, file)
    if root is None:
        raise _error(file, 1, "hosts", "a list of hosts", "an empty file")
    top = _Value(file, root.start_mark.line + 1, "file", root).fields(FILE_KEYS)
    if "hosts" not in top:
        raise _error(file, root.start_mark.line + 1, "hosts", "a list of hosts", "no such key")
    items = top["hosts"].items()
    hosts = tuple(_host(item, this_machine) for item in items)
    ssh = _ssh(top["ssh"]) if "ssh" in top else Ssh()
    network = _network(top["network"]) if "network" in top else Network()
    options = _mpirun_options(top["mpirun_options"]) if "mpirun_options" in top else ()
    ports = _ports(top["ports"]) if "ports" in top else None
    with _on_lines(file, top["hosts"].line, {**_lines(top), **{item.key: item.line for item in items}}):
        return Cluster(hosts, ssh, options, network, ports)


def _compose(text: str, file: str) -> yaml.Node | None:
    """The nodes of the text, with their positions; None if there are only comments."""
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 1 if mark is None else mark.line + 1
        raise _error(file, line, "file", "YAML", f"invalid YAML ({error.problem or error.context})") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _error(file, line, "file", "YAML", f"the character {error.character!r}") from error


def _host(item: _Value, this_machine: Host | None) -> Host:
    if isinstance(item.node, yaml.ScalarNode):
        entry = item.text(f"{LINE_FORM} as a string").strip()
        with _on_lines(item.file, item.line, {}):
            return _host_of_line(entry, this_machine)
    fields = item.fields(HOST_KEYS, ", or a string: `host: 0,1` in quotes")
    if "address" not in fields:
        raise _error(item.file, item.line, "address", "a host name or an IP address", "no such key")
    if "gpus" in fields and "workers" in fields:
        raise fields["workers"].error("gpus or workers, not both", "both")
    address = _without_brackets(fields["address"].text())
    gpus = _gpus(fields["gpus"]) if "gpus" in fields else ()
    workers = fields["workers"].number() if "workers" in fields else len(gpus)
    servers = fields["servers"].number() if "servers" in fields else None
    link_bytes_per_s = _bandwidth(fields["bandwidth"]) if "bandwidth" in fields else None
    memory_bytes = _memory(fields["memory"]) if "memory" in fields else None
    island = fields["island"].text() if "island" in fields else None
    with _on_lines(item.file, item.line, _lines(fields)):
        if "gpus" in fields or "workers" in fields:
            return Host(address, workers, gpus, servers, link_bytes_per_s, memory_bytes, island)
        return _host_with_default_workers(address, this_machine, servers, link_bytes_per_s, memory_bytes, island)


def _lines(fields: Mapping[str, _Value]) -> dict[str, int]:
    return {key: field.line for key, field in fields.items()}


def _gpus(value: _Value) -> tuple[int, ...]:
    gpus = tuple(item.number("a GPU number") for item in value.items())
    if not gpus:
        raise value.error(f"{value.expected} (`workers` is for workers without GPU)", "an empty list")
    return gpus


def _bandwidth(value: _Value) -> int:
    """Bytes per second of a rate in bits per second."""
    link_bytes_per_s = parse_bandwidth(value.text())
    if link_bytes_per_s is None:
        raise value.error()
    return link_bytes_per_s


def _memory(value: _Value) -> int:
    """Bytes of a size: units of 1000, or of 1024 with an `i`."""
    match = _MEMORY.fullmatch(value.text())
    if match is None:
        raise value.error()
    power = ("", "k", "m", "g", "t").index(match[2].lower())
    return int(Fraction(match[1]) * (1024 if match[3] else 1000) ** power)


def _ssh(value: _Value) -> Ssh:
    fields = value.fields(SSH_KEYS)
    user = fields["user"].text() if "user" in fields else None
    port = fields["port"].number() if "port" in fields else None
    key = fields["key"].text() if "key" in fields else None
    agent = fields["agent"].text() if "agent" in fields else None
    with _on_lines(value.file, value.line, _lines(fields)):
        return Ssh(user, port, key, agent)


def _network(value: _Value) -> Network:
    fields = value.fields(NETWORK_KEYS)
    interface = fields["interface"].text() if "interface" in fields else None
    subnet = fields["subnet"].text() if "subnet" in fields else None
    with _on_lines(value.file, value.line, _lines(fields)):
        return Network(interface, subnet)


def _ports(value: _Value) -> tuple[int, int]:
    """First and last of a range."""
    if isinstance(value.node, yaml.SequenceNode):
        numbers = [item.number("a port") for item in value.items()]
        if len(numbers) != 2:
            raise value.error(received=f"a list of {len(numbers)}")
        return numbers[0], numbers[1]
    match = re.fullmatch(r"([0-9]{1,5})\s*-\s*([0-9]{1,5})", value.text())
    if match is None:
        raise value.error()
    return int(match[1]), int(match[2])


def _mpirun_options(value: _Value) -> tuple[str, ...]:
    """The words of the options; a string is split like a shell command."""
    if isinstance(value.node, yaml.SequenceNode):
        return tuple(item.text("a word as a string (numbers in quotes)") for item in value.items("a list of words"))
    try:
        return tuple(shlex.split(value.text()))
    except ValueError as error:
        raise value.error("words with closed quotes") from error
