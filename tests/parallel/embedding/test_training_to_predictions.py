"""From a training to batch predictions and to answers: the guide's commands, and the example."""

from __future__ import annotations

import json
import re

import pytest

from support.example_runs import ROOT, alone, documented_program, shell
from support.served_tables import addresses

pytestmark = pytest.mark.timeout(180)
PAGE = (ROOT / "docs/guides/serving.md").read_text()


def test_the_commands_of_the_guide(tmp_path):
    program = re.search(r"```python\n(# train.py\n.*?)```", PAGE, re.DOTALL)[1]
    commands = re.search(r"```sh\n(tfdist run .*?)```", PAGE, re.DOTALL)[1]
    (tmp_path / "train.py").write_text(program)
    tables, rest = addresses(2), addresses(2)
    commands = commands.replace("127.0.0.1:7000,127.0.0.1:7001", ",".join(tables))
    ports = [address.rpartition(":")[2] for address in rest]
    commands = commands.replace("8501", ports[1]).replace(
        "tfdist serve ", f"tfdist serve --port {ports[0]} --rest-port {ports[1]} "
    )
    shell(commands, tmp_path)
    lines = (tmp_path / "scores/part-000000-of-000001.jsonl").read_text().splitlines()
    predicted = [json.loads(line)["score"] for line in lines]
    answered = json.loads((tmp_path / "answer.json").read_text())["predictions"]
    assert len(predicted) == 2 and predicted[0] != predicted[1]
    assert answered == pytest.approx(predicted, abs=1e-6)


@pytest.mark.long(
    covered_by="test_the_commands_of_the_guide, parallel/embedding/test_served_training.py, "
    "single/serving/test_publishing.py, single/serving/test_model_server_of_tables.py"
)
def test_the_example(tmp_path):
    script, *words = documented_program("keras_examples/recommender.py")
    words[words.index("--output") + 1] = str(tmp_path / "recommender")
    # It ends with 1 if the predictions differ.
    printed = alone(ROOT / script, *words, "--epochs", "8")
    requests, failed = map(int, re.search(r"(\d+) requests, (\d+) failed", printed).groups())
    assert requests > 10 and failed == 0
    assert "killed table server 0" in printed
    assert "18860 scores" in printed
    assert float(re.search(r"fifth of the ratings: ([\d.]+)", printed)[1]) > 0.7
    # Changes were published while the training continued, and after its end.
    published = (tmp_path / "recommender/follow.log").read_text()
    assert re.search(r"published \d+: changes", published)
