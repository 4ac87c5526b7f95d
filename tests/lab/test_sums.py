"""What leaves a host when its workers sum with those of other hosts: the least possible."""

import json

import pytest

pytestmark = pytest.mark.timeout(300)

HEADERS = 0.03
"""Of Ethernet, IP and TCP in large frames, and what keeps the workers in step."""
MESSAGE_BYTES = 1 << 20


@pytest.mark.rotates
def test_hosts_of_two_workers_send_no_more_than_hosts_of_one_would(lab, start, tmp_path):
    output = tmp_path / "sums.json"
    words = ("ops.bench.sums.ranks", lab.resource_file(2), "none", 1, 0.01, output, MESSAGE_BYTES)
    status, _, stderr = start("-m", "ops.bench.jobs.launch_module", *words).finish()
    assert status == 0, stderr
    found = json.loads(output.read_text())
    sent = {method: of[str(MESSAGE_BYTES)][0][1] / MESSAGE_BYTES for method, of in found.items()}
    assert sent["slices"] == pytest.approx(1.0, abs=HEADERS), sent  # 2 (H - 1) / H
    assert sent["ring"] == pytest.approx(1.5, abs=1.5 * HEADERS), sent
