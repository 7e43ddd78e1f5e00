"""The specification of an indexed Job, which all engines but TFJob and StatefulSet share.

Which failures count is said by exit codes: 143 is a preemption notice that the task has followed
(docs/operate/preemption.md), so it starts again and is not counted. Neither is a pod that its node
loses.
"""

from __future__ import annotations

from tfdist.errors import Preempted
from tfdist.kubernetes.names import Object, count
from tfdist.kubernetes.options import JobOptions
from tfdist.kubernetes.pods import template
from tfdist.prediction.options import FINAL_CODE

# How often one worker of an elastic job may fail before it is left out, as with `tfdist run`.
_FAILURES_OF_A_WORKER = 3
# The same with `tfdist predict`.
_FAILURES_OF_A_PREDICTION = 30


def job_spec(job: JobOptions, role: str, *, restarts_together: bool) -> Object:
    """Returns the specification of the Job of a role.

    Args:
      job: the job.
      role: "worker", "ps" or "evaluator".
      restarts_together: whether something above the Jobs starts all of them again when a worker of
        a job without parameter servers has failed; else each pod is started again by itself.
    """
    pods = count(job, role)
    spec: Object = {"completionMode": "Indexed", "completions": pods, "parallelism": pods}
    if job.predicts:
        # A record that kills its worker is parked by later starts. A worker that has ended well has
        # seen all parts done.
        spec["backoffLimitPerIndex"] = _FAILURES_OF_A_PREDICTION
        spec["successPolicy"] = {"rules": [{"succeededCount": 1}]}
    elif role == "worker" and job.elastic is not None:
        # The others continue without a worker that fails again and again. When one has ended well,
        # all that train have: workers that still wait for room are not needed any more.
        spec["backoffLimitPerIndex"] = _FAILURES_OF_A_WORKER
        spec["successPolicy"] = {"rules": [{"succeededCount": job.min_workers}]}
    elif role == "worker" and not job.ps:
        # One failure ends the step of all workers, so that each has one.
        spec["backoffLimit"] = 0 if restarts_together else job.restarts * pods
    else:
        spec["backoffLimit"] = job.restarts
    rules: list[Object] = [
        {
            "action": "Ignore",
            "onExitCodes": {"operator": "In", "values": [Preempted.EXIT_CODE]},
        },
        {
            "action": "Ignore",
            "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
        },
    ]
    if job.predicts:
        final: Object = {"operator": "In", "values": [FINAL_CODE]}
        rules.append({"action": "FailJob", "onExitCodes": final})
    spec["podFailurePolicy"] = {"rules": rules}
    return spec | {"template": template(job, role)}
