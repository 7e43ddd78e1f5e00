"""TensorFlow's banners are shown for rank 0 alone; the logs of all tasks have them."""

from __future__ import annotations

import pytest

from support.launching import Launcher

BANNERS = [
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "I0000 00:00:1.2  9 port.cc:153] oneDNN custom operations are on. You may see different",
    "2026-11-29 05:39:01.1: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on. ",
    "I0000 00:00:1.2  9 cudart_stub.cc:31] Could not find cuda drivers on your machine, GPU will "
    "not be used.",
    "I0000 00:00:1.2  9 cpu_feature_guard.cc:227] This TensorFlow binary is optimized to use CPU",
    "To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with "
    "the appropriate compiler flags.",
    "E0000 00:00:1.2  9 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error",
    "E0000 00:00:1.2  9 cuda_fft.cc:477] Unable to register cuFFT factory: Attempting to register "
    "factory for plugin cuFFT when one has already been registered",
]
OWN = ["I0000 00:00:1.2  9 dataset.cc:9] Input will not be optimized", BANNERS[0]]


@pytest.fixture
def launch(tmp_path):
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


def test_banners_are_shown_for_rank_0_alone(launch, tmp_path):
    body = f"print(*{BANNERS + OWN!r}, sep='\\n', file=sys.stderr)"
    logs = tmp_path / "logs"
    code, _, err = launch(body, "--workers", "2", "--log-dir", str(logs)).finish()
    assert code == 0
    by_task = {
        name: [line.removeprefix(f"[{name}] ") for line in err if line.startswith(f"[{name}]")]
        for name in ("worker 0", "worker 1")
    }
    assert by_task == {"worker 0": BANNERS + OWN, "worker 1": OWN}
    assert (logs / "worker-1.log").read_text().splitlines() == BANNERS + OWN
