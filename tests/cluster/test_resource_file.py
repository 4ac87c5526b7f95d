import re
import socket

import pytest

from parallax.base.errors import ConfigError, ResourceFileError
from parallax.cluster.machines import Cluster, FieldError, Host, Network, Ssh, local_cluster
from parallax.cluster.resource_file import parse_resource_file, parse_resource_text

TWO_GPUS = Host("localhost", 2, (0, 1))


def _lines(text):
    return parse_resource_text(text, "hosts.txt", TWO_GPUS)


def _yaml(text):
    return parse_resource_text(text, "c.yaml", TWO_GPUS)


@pytest.mark.parametrize(("text", "size"), [("16GB", 16 * 10**9), ("4GiB", 4 << 30), ("1.5 gb", 15 * 10**8), ("9B", 9)])
def test_the_memory_of_a_host_is_in_units_of_1000_or_of_1024(text, size):
    (host,) = _yaml(f"hosts:\n- address: a\n  memory: {text}\n").hosts
    assert host.memory_bytes == size


# --- values ---


def test_ranks_are_counted_host_by_host_also_when_workers_differ():
    a, b, c = Host("a", 2, (0, 1)), Host("b", 0, num_servers=1), Host("c", 1)
    cluster = Cluster((a, b, c))
    assert cluster.num_workers == 3
    assert cluster.host_by_rank == (a, a, c)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Host("", 1), "address: expected a host name or an IP address, got ''"),
        (lambda: Host("-oProxyCommand=x", 1), "address: expected a host name or an IP address, got '-oProxy"),
        (lambda: Host("10.0.0.300", 1), "address: expected a host name or an IP address, got '10.0.0.300'"),
        (lambda: Host("a", 1, (-1,)), "gpus: expected GPU numbers from 0, each once, got [-1]"),
        (lambda: Host("a", 2, (3, 3)), "gpus: expected GPU numbers from 0, each once, got [3, 3]"),
        (lambda: Host("a", 1, (0, 1)), "num_workers: expected one worker for each of 2 GPUs, got 1"),
        (lambda: Host("a", 0), "num_workers: expected 1 or more, or 0 on a host with servers, got 0"),
        (lambda: Host("a", -1, num_servers=1), "num_workers: expected 1 or more, or 0 on a host with servers"),
        (lambda: Host("a", 1, num_servers=-1), "num_servers: expected 0 or more, got -1"),
        (lambda: Host("a", 1, link_bytes_per_s=0), "link_bytes_per_s: expected more than 0 bytes per second, got"),
        (lambda: Ssh(user="-l"), "user: expected a login name, got '-l'"),
        (lambda: Ssh(port=0), "port: expected a port from 1 to 65535, got 0"),
        (lambda: Ssh(key=""), "key: expected the path of a private key, without blanks and colons, got ''"),
        (lambda: Ssh(key="my key"), "key: expected the path of a private key, without blanks and colons, got 'my"),
        (lambda: Ssh(agent="a : b"), "agent: expected a command without colons, got 'a : b'"),
        (
            lambda: Ssh("me", agent="a"),
            "agent: expected an agent without user, port and key, which are for ssh, got both",
        ),
        (lambda: Network("eth0", "10.0.0.0/8"), "subnet: expected interface or subnet, not both, got 'eth0' and"),
        (lambda: Network("eth0,eth1"), "interface: expected the name of one network interface, got 'eth0,eth1'"),
        (lambda: Network(subnet="10.0.0.1/8"), "subnet: expected a network such as 10.0.0.0/16 with host bits zero"),
        (lambda: Network(subnet="10.0.0.1"), "subnet: expected a network such as 10.0.0.0/16 with host bits zero"),
        (
            lambda: Cluster((Host("a", 1),), ports=(9, 8)),
            "ports: expected two ports from 1 to 65535, the smaller first, got 9-8",
        ),
        (lambda: Cluster(()), "hosts: expected at least one host, got none"),
        (lambda: Cluster((Host("a", 1), Host("A.", 1))), "hosts[1]: expected each host once, with all its GPUs"),
        (lambda: Cluster((Host("a", 0, num_servers=1),)), "hosts: expected a worker on at least one host, got"),
    ],
)
def test_a_value_that_no_stage_could_carry_out_is_refused(build, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        build()


@pytest.mark.parametrize("address", ["localhost", "LOCALHOST", "127.0.0.1", "127.0.0.2", "::1", socket.gethostname()])
def test_this_machine_is_known_by_its_names(address):
    assert Cluster((Host(address, 1),)).is_local


@pytest.mark.parametrize("address", ["10.255.255.254", "2001:db8::1", "no-such-host.invalid"])
def test_one_foreign_host_makes_a_cluster_not_local(address):
    assert not Cluster((Host("localhost", 1), Host(address, 1))).is_local


# --- this machine ---


@pytest.fixture
def gpu_folder(tmp_path):
    """The driver's folder on a machine with three GPUs."""
    for bus in ("0000:01:00.0", "0000:02:00.0", "0000:03:00.0"):
        (tmp_path / bus).mkdir()
    return tmp_path


def test_without_gpu_this_machine_has_two_workers(tmp_path):
    assert local_cluster(gpu_folder=tmp_path / "none") == Cluster((Host("localhost", 2),))


def test_every_gpu_gets_a_worker(gpu_folder):
    assert local_cluster(gpu_folder=gpu_folder) == Cluster((Host("localhost", 3, (0, 1, 2)),))


def test_fewer_workers_take_the_first_gpus(gpu_folder):
    assert local_cluster(2, gpu_folder=gpu_folder) == Cluster((Host("localhost", 2, (0, 1)),))


@pytest.mark.parametrize(
    ("visible", "host"),
    [
        ("2,0", Host("localhost", 2, (2, 0))),
        (" 1 ", Host("localhost", 1, (1,))),
        ("1,-1,0", Host("localhost", 1, (1,))),
        ("", Host("localhost", 2)),
        ("-1", Host("localhost", 2)),
    ],
)
def test_visible_devices_decide_before_the_driver(gpu_folder, visible, host):
    assert local_cluster(None, visible, gpu_folder) == Cluster((host,))


def test_without_gpu_any_number_of_workers_may_run():
    assert local_cluster(5, "").num_workers == 5


@pytest.mark.parametrize(
    ("num_workers", "visible", "message"),
    [
        (3, "0,1", "num_workers: expected at most one worker for each of 2 GPUs (an empty CUDA_VISIBLE_DEVICES"),
        (0, "0,1", "num_workers: expected 1 or more, or 0 on a host with servers, got 0"),
        (-1, "", "num_workers: expected 1 or more, or 0 on a host with servers, got -1"),
        (None, "GPU-1f2e", "CUDA_VISIBLE_DEVICES: expected GPU numbers like 0,1, got 'GPU-1f2e'"),
        (None, "0,0", "gpus: expected GPU numbers from 0, each once, got [0, 0]"),
    ],
)
def test_workers_that_this_machine_cannot_run_are_refused(num_workers, visible, message):
    with pytest.raises(FieldError, match=re.escape(message)):
        local_cluster(num_workers, visible)


# --- lines ---


def test_lines_give_hosts_in_their_order():
    text = "# two racks\nb: 0,1,2   # the fast one\n\n  a:1 , 0\r\n[fe80::1]: 4\n[::2]\nnode_1.example.org"
    assert _lines(text) == Cluster(
        (
            Host("b", 3, (0, 1, 2)),
            Host("a", 2, (1, 0)),
            Host("fe80::1", 1, (4,)),
            Host("::2", 1),
            Host("node_1.example.org", 1),
        )
    )


def test_lines_may_be_those_of_a_hostfile():
    text = "a slots=2\n[fe80::1]  slots = 4 # more\nb.example.svc slots=1\nlocalhost slots=3"
    assert _lines(text).hosts == (Host("a", 2), Host("fe80::1", 4), Host("b.example.svc", 1), Host("localhost", 3))


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1", "[::1]"])
def test_localhost_without_numbers_has_what_this_machine_has(address):
    (host,) = _lines(address).hosts
    assert (host.num_workers, host.gpus) == (2, (0, 1))


def test_localhost_with_numbers_has_those():
    assert _lines("localhost: 7") == Cluster((Host("localhost", 1, (7,)),))


def test_a_foreign_host_without_numbers_has_one_worker_without_gpu():
    assert _lines("far") == Cluster((Host("far", 1),))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "hosts.txt:1: hosts: expected a line `host` or `host: 0,1`, IPv6 as `[::1]: 0,1` for each host, got"),
        ("# none\n \n", "hosts.txt:1: hosts: expected a line `host`"),
        ("a\n\na: 1", "hosts.txt:3: hosts[1]: expected each host once, with all its GPUs, got a twice"),
        ("localhost\n::1\n", "hosts.txt:2: host: expected `host` or `host: 0,1`, IPv6 as `[::1]: 0,1`, got '::1'"),
        (
            "localhost\n[::1]",
            "hosts.txt:2: hosts[1]: expected each host once, with all its GPUs, got ::1 after loc",
        ),
        ("a\nfe80::1: 0", "hosts.txt:2: host: expected `host` or `host: 0,1`, IPv6 as `[::1]: 0,1`, got 'fe80::1"),
        ("a\n: 0", "hosts.txt:2: host: expected `host` or `host: 0,1`"),
        ("a\nb:", "hosts.txt:2: gpus: expected GPU numbers like 0,1 after the colon, got ''"),
        ("b: 0,x", "hosts.txt:1: gpus: expected GPU numbers like 0,1 after the colon, got '0,x'"),
        ("a: 0,,1", "hosts.txt:1: gpus: expected GPU numbers like 0,1 after the colon, got '0,,1'"),
        ("a\nb: 0,-1", "hosts.txt:2: gpus: expected GPU numbers from 0, each once, got [0, -1]"),
        ("a\nb: 1,1", "hosts.txt:2: gpus: expected GPU numbers from 0, each once, got [1, 1]"),
        ("a\nb 0,1", "hosts.txt:2: address: expected a host name or an IP address, got 'b 0,1'"),
        ("a\nb slots=x", "hosts.txt:2: slots: expected a number of workers like slots=2, got 'x'"),
        ("b slots=", "hosts.txt:1: slots: expected a number of workers like slots=2, got ''"),
        ("b slots=0", "hosts.txt:1: workers: expected 1 or more, or 0 on a host with servers, got 0"),
        ("a slots=2 max_slots=4", "hosts.txt:1: address: expected a host name or an IP address, got 'a slots"),
        ("me@a", "hosts.txt:1: address: expected a host name or an IP address, got 'me@a'"),
        ("[a]: 0", "hosts.txt:1: address: expected a host name or an IP address, got '[a]'"),
    ],
)
def test_a_broken_line_is_reported_with_its_number(text, message):
    with pytest.raises(ResourceFileError, match="^" + re.escape(message)):
        _lines(text)


# --- YAML ---

EVERY_KEY = """\
# every key
ssh:
  user: me
  port: 2222
  key: ~/.ssh/id
network: {subnet: 10.0.0.0/16}
mpirun_options: --mca btl "tcp,self"
hosts:
  - address: a
    gpus: [1, 0]
    bandwidth: 10gbit
  - address: b
    workers: 3
    servers: 0
  - address: "[fe80::1]"
    workers: 0
    servers: 2
  - address: localhost
    bandwidth: 0.5 Mbit/s
  - c
  - "d: 0,1"
"""


def test_yaml_gives_every_value():
    assert _yaml(EVERY_KEY) == Cluster(
        hosts=(
            Host("a", 2, (1, 0), link_bytes_per_s=1_250_000_000),
            Host("b", 3, num_servers=0),
            Host("fe80::1", 0, num_servers=2),
            Host("localhost", 2, (0, 1), link_bytes_per_s=62_500),
            Host("c", 1),
            Host("d", 2, (0, 1)),
        ),
        ssh=Ssh("me", 2222, "~/.ssh/id"),
        mpirun_options=("--mca", "btl", "tcp,self"),
        network=Network(subnet="10.0.0.0/16"),
    )


def test_options_and_interface_may_be_a_list_and_a_name():
    cluster = _yaml("hosts: [a]\nmpirun_options: [--tag-output, --mca, x, '1']\nnetwork:\n  interface: eth0\n")
    assert cluster.mpirun_options == ("--tag-output", "--mca", "x", "1")
    assert cluster.network == Network(interface="eth0")


def test_hosts_may_be_reached_by_an_agent():
    cluster = _yaml("hosts: ['a slots=2']\nssh:\n  agent: kubectl-agent --namespace jobs\n")
    assert cluster == Cluster((Host("a", 2),), Ssh(agent="kubectl-agent --namespace jobs"))
    assert cluster.ssh.command == "kubectl-agent --namespace jobs"


def test_ssh_asks_nobody_anything():
    assert Ssh().command == "ssh -o BatchMode=yes"
    assert Ssh("me", 22, "~/.ssh/id").command == "ssh -o BatchMode=yes -p 22 -l me -i ~/.ssh/id"


@pytest.mark.parametrize("ports", ["20000-20100", "[20000, 20100]", "20000 - 20100"])
def test_ports_may_be_a_range_or_a_list(ports):
    assert _yaml(f"hosts: [a]\nports: {ports}\n").ports == (20000, 20100)


@pytest.mark.parametrize(
    "text", ["hosts: [a]", "# comment\nssh: {port: 1}\nhosts:\n- a", "---\nhosts: [a]", "{hosts: [a]}"]
)
def test_yaml_is_known_by_its_content(text):
    assert parse_resource_text(text, "cluster").hosts == (Host("a", 1),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "c.yaml:1: hosts: expected a list of hosts, got an empty file"),
        ("# none\n", "c.yaml:1: hosts: expected a list of hosts, got an empty file"),
        ("\nssh: {}\n", "c.yaml:2: hosts: expected a list of hosts, got no such key"),
        (
            "- a\n",
            "c.yaml:1: file: expected a map with keys of hosts, ssh, mpirun_options, network, ports, got a list",
        ),
        (
            "hosts: [a]\nnodes: 1\n",
            "c.yaml:2: nodes: expected a map with keys of hosts, ssh, mpirun_options, network, ",
        ),
        ("hosts: [a]\nhosts: [b]\n", "c.yaml:2: hosts: expected the key once (first on line 1), got it again"),
        ("hosts: a\n", "c.yaml:1: hosts: expected a list of hosts, each `host` or `host: 0,1`"),
        ("\nhosts:\n", "c.yaml:2: hosts: expected a list of hosts, each `host` or `host: 0,1`"),
        ("hosts: []\n", "c.yaml:1: hosts: expected at least one host, got none"),
        ("hosts:\n- a\n- 7\n", "c.yaml:3: hosts[1]: expected `host` or `host: 0,1`"),
        ("hosts:\n- a\n- [b]\n", "c.yaml:3: hosts[1]: expected a map with keys of address, gpus, workers, servers, "),
        (
            "hosts:\n- a: 0,1\n",
            "c.yaml:2: a: expected a map with keys of address, gpus, workers, servers, bandwidth, memory, island",
        ),
        ("hosts:\n- a\n- 'b: x'\n", "c.yaml:3: gpus: expected GPU numbers like 0,1 after the colon, got 'x'"),
        ("hosts:\n- a\n- b\n- a\n", "c.yaml:4: hosts[2]: expected each host once, with all its GPUs, got a twice"),
        ("hosts:\n- gpus: [0]\n", "c.yaml:2: address: expected a host name or an IP address, got no such key"),
        ("hosts:\n- gpus: [0]\n  address: 7\n", "c.yaml:3: address: expected a host name or an IP address as a string"),
        ("hosts:\n- gpus: [0]\n  address: -x\n", "c.yaml:3: address: expected a host name or an IP address, got"),
        (
            "hosts:\n- address: no\n",
            "c.yaml:2: address: expected a host name or an IP address as a string, got no ",
        ),
        (
            "hosts:\n- address: a\n  gpus: 2\n",
            "c.yaml:3: gpus: expected a list of GPU numbers like [0, 1], got 2 ",
        ),
        ("hosts:\n- address: a\n  gpus: []\n", "c.yaml:3: gpus: expected a list of GPU numbers like [0, 1] (`workers`"),
        ("hosts:\n- address: a\n  gpus: [0, -2]\n", "c.yaml:3: gpus: expected GPU numbers from 0, each once, got"),
        ("hosts:\n- address: a\n  gpus: [1, 1]\n", "c.yaml:3: gpus: expected GPU numbers from 0, each once, got"),
        ("hosts:\n- address: a\n  gpus:\n  - 0\n  - x\n", "c.yaml:5: gpus[1]: expected a GPU number, got 'x'"),
        ("hosts:\n- address: a\n  gpus: [0]\n  workers: 1\n", "c.yaml:4: workers: expected gpus or workers, not both"),
        ("hosts:\n- address: a\n  workers: 0\n", "c.yaml:3: workers: expected 1 or more, or 0 on a host with servers"),
        (
            "hosts:\n- address: a\n  workers: 1.5\n",
            "c.yaml:3: workers: expected a number of workers, got 1.5 (float)",
        ),
        (
            "hosts:\n- address: a\n  workers: 010\n",
            "c.yaml:3: workers: expected a number of workers, got 010 (int)",
        ),
        ("hosts:\n- address: a\n  servers: -1\n", "c.yaml:3: servers: expected 0 or more, got -1"),
        (
            "hosts:\n- address: a\n  bandwidth: 10\n",
            "c.yaml:3: bandwidth: expected a rate in bits per second like 10gbit",
        ),
        (
            "hosts:\n- address: a\n  bandwidth: 9gbps\n",
            "c.yaml:3: bandwidth: expected a rate in bits per second like 10g",
        ),
        ("hosts:\n- address: a\n  memory: 16\n", "c.yaml:3: memory: expected a size in bytes like 16GB or 4GiB"),
        ("hosts:\n- address: a\n  memory: 0GB\n", "c.yaml:3: memory: expected more than 0 bytes, got 0"),
        ("hosts:\n- address: a\n  bandwidth: 0gbit\n", "c.yaml:3: bandwidth: expected more than 0 bytes per second"),
        ("hosts: [a]\nssh: me\n", "c.yaml:2: ssh: expected a map with keys of user, port, key, agent, got 'me'"),
        ("hosts: [a]\nssh:\n  user:\n", "c.yaml:3: user: expected a login name, got nothing"),
        ("hosts: [a]\nssh:\n  user: a b\n", "c.yaml:3: user: expected a login name, got 'a b'"),
        (
            "hosts: [a]\nssh:\n  user: me\n  port: 70000\n",
            "c.yaml:4: port: expected a port from 1 to 65535, got 70000",
        ),
        ("hosts: [a]\nssh:\n  port: '22'\n", "c.yaml:3: port: expected a port from 1 to 65535, got '22'"),
        (
            "hosts: [a]\nnetwork: {mtu: 9}\n",
            "c.yaml:2: mtu: expected a map with keys of interface, subnet, got the",
        ),
        ("hosts: [a]\nnetwork:\n  subnet: 10.0.0.1/8\n", "c.yaml:3: subnet: expected a network such as 10.0.0.0/16"),
        ("hosts: [a]\nports: 20000\n", "c.yaml:2: ports: expected two ports like 20000-20100, got 20000 (int)"),
        (
            "hosts: [a]\nports: [1, 2, 3]\n",
            "c.yaml:2: ports: expected two ports like 20000-20100, got a list of 3",
        ),
        ("hosts: [a]\nports: 5-x\n", "c.yaml:2: ports: expected two ports like 20000-20100, got '5-x'"),
        ("ports: 9-8\nhosts: [a]\n", "c.yaml:1: ports: expected two ports from 1 to 65535, the smaller first"),
        ("hosts: [a]\nssh:\n  agent: x\n  user: y\n", "c.yaml:3: agent: expected an agent without user, port and key"),
        (
            "hosts: [a]\nmpirun_options: {}\n",
            "c.yaml:2: mpirun_options: expected a list of words or one string, got",
        ),
        ("hosts: [a]\nmpirun_options: 'a \"b'\n", "c.yaml:2: mpirun_options: expected words with closed quotes"),
        ("hosts: [a]\nmpirun_options:\n- 1\n", "c.yaml:3: mpirun_options[0]: expected a word as a string"),
        (
            "hosts: [a]\n? [b]\n: 1\n",
            "c.yaml:2: (a list or map): expected a map with keys of hosts, ssh, mpirun_options, network",
        ),
        ("hosts:\n- a\n- [b\n", "c.yaml:4: file: expected YAML, got invalid YAML (expected ',' or ']'"),
        ("hosts:\n\t- a\n", "c.yaml:2: file: expected YAML, got invalid YAML (found character"),
        ("hosts:\n- a\x07\n", "c.yaml:2: file: expected YAML, got the character"),
        ("hosts: [a]\n---\nhosts: [b]\n", "c.yaml:2: file: expected YAML, got"),
    ],
)
def test_a_broken_yaml_key_is_reported_with_its_line(text, message):
    with pytest.raises(ResourceFileError, match="^" + re.escape(message)):
        _yaml(text)


# --- files ---


@pytest.mark.parametrize(
    ("name", "text"), [("hosts", "a: 0\n"), ("c.YML", "hosts: ['a: 0']\n"), ("bom", "\ufeffa: 0\n")]
)
def test_a_file_is_read_in_its_format(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert parse_resource_file(tmp_path / name) == Cluster((Host("a", 1, (0,)),))


def test_a_missing_file_is_named():
    with pytest.raises(ResourceFileError, match="^none/such: cannot read the resource file: No such file"):
        parse_resource_file("none/such")


def test_a_folder_is_no_resource_file(tmp_path):
    with pytest.raises(ResourceFileError, match=re.escape(f"{tmp_path}: cannot read the resource file: Is a dir")):
        parse_resource_file(tmp_path)


def test_bytes_that_are_not_utf_8_are_reported_with_their_line(tmp_path):
    path = tmp_path / "hosts"
    path.write_bytes(b"a\nb # caf\xe9\n")
    with pytest.raises(ResourceFileError, match=re.escape(f"{path}:2: expected UTF-8, got byte 0xe9")):
        parse_resource_file(path)


def test_hosts_name_their_islands():
    text = "hosts:\n- {address: a, workers: 2, island: x}\n- {address: b, island: y}\n- {address: c, island: y}\n"
    cluster = parse_resource_text(text, "c.yaml")
    assert [host.island for host in cluster.hosts] == ["x", "y", "y"] and cluster.num_islands == 2


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        ("- {address: a, island: [x, y]}\n", "c.yaml:2: island: expected a name, got a list"),
        ("- {address: a, island: 3}\n", "c.yaml:2: island: expected a name, got 3 (int)"),
        ("- {address: a, island: x}\n- {address: a, island: y}\n", "c.yaml:3: hosts[1]: expected each host once"),
        ("- {address: a, island: x}\n- b\n", "c.yaml:3: hosts[1]: expected the island of each host, or of none"),
        (
            "- {address: a, island: x}\n- {address: b, island: y, workers: 2}\n",
            "c.yaml:1: hosts: expected equally many",
        ),
    ],
)
def test_islands_that_do_not_fit_are_reported_with_their_line(hosts, message):
    with pytest.raises(ResourceFileError, match="^" + re.escape(message)):
        parse_resource_text(f"hosts:\n{hosts}", "c.yaml")
