"""The arguments of `tfdist.ray.run`, without Ray."""

from __future__ import annotations

import json

import pytest

import tfdist
from tfdist.errors import ClusterConfigError
from tfdist.ray.request import RayRequest, actor_options

ADDRESSES = ["a:1", "b:2"]


def request(**keywords) -> RayRequest:
    defaults = dict(num_workers=2, num_ps=0, elastic=None, resources=None, ps_resources=None)
    defaults |= dict(placement="PACK", max_failures=None, checkpoint_dir=None, variables=None)
    return RayRequest.of(**{**defaults, "placement_timeout": 1.0, **keywords})


@pytest.mark.parametrize(
    "keywords, expected",
    [
        ({"num_workers": 0}, "num_workers to be 1 or more, received 0"),
        ({"num_ps": -1}, "num_ps to be 0 or more, received -1"),
        ({"max_failures": -1}, "max_failures to be 0 or more, received -1"),
        ({"placement": "NEAR"}, "one of PACK, SPREAD, STRICT_PACK, STRICT_SPREAD, received 'NEAR'"),
        ({"placement_timeout": 0}, "more than 0 seconds, received 0"),
        ({"resources": {"CPU": -1}}, r"resources\['CPU'\] to be 0 or more, received -1"),
        ({"ps_resources": {"CPU": 0}}, "ps_resources to name an amount above 0"),
        ({"elastic": 3}, r"such as \(2, 8\), received 3"),
        ({"elastic": (3, 8)}, "received 2"),
    ],
)
def test_wrong_arguments(keywords, expected) -> None:
    with pytest.raises(ClusterConfigError, match=expected):
        request(**keywords)


def test_the_public_function_refuses_them_first() -> None:
    with pytest.raises(ClusterConfigError, match="num_workers"):
        tfdist.ray.run(print, num_workers=0)


def task(found: RayRequest, servers: list[str], index: int) -> dict:
    return json.loads(found.task_variables(ADDRESSES, servers, index, {})["TF_CONFIG"])


def test_tasks_of_all_reduce() -> None:
    found = task(request(), [], 1)
    assert found == {"cluster": {"worker": ADDRESSES}, "task": {"type": "worker", "index": 1}}


@pytest.mark.parametrize(
    "index, role, number", [(0, "chief", 0), (1, "worker", 0), (2, "ps", 0), (3, "ps", 1)]
)
def test_tasks_with_servers(index, role, number) -> None:
    found = task(request(num_ps=2), ["c:3", "d:4"], index)
    assert found["task"] == {"type": role, "index": number}
    assert found["cluster"] == {"chief": ["a:1"], "worker": ["b:2"], "ps": ["c:3", "d:4"]}


def test_variables_of_an_elastic_job() -> None:
    found = request(elastic=(1, 4), num_ps=1, checkpoint_dir="/shared")
    assert found.max_failures == 10
    variables = found.task_variables(ADDRESSES, ["c:3"], 0, {"TFDIST_SECRET": "s"})
    assert variables["TFDIST_ELASTIC"] == "1:4:2"
    assert (variables["TFDIST_SECRET"], variables["TFDIST_CHECKPOINT_DIR"]) == ("s", "/shared")
    assert json.loads(variables["TF_CONFIG"])["cluster"]["worker"] == ADDRESSES


def test_options_of_actors() -> None:
    options = actor_options({"CPU": 2, "GPU": 1, "memory": 10.0, "tpu": 4})
    assert options == {"num_cpus": 2, "num_gpus": 1, "memory": 10.0, "resources": {"tpu": 4}}
