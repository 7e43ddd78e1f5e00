"""The text of the manifests: YAML with a comment above each object, made for git."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence

from tfdist.control.signing import metrics_token
from tfdist.kubernetes import engines, objects, patches, yaml_text
from tfdist.kubernetes.names import AUTHORITY, METRICS_TOKEN, Object, metadata, secret_name
from tfdist.kubernetes.options import JobOptions
from tfdist.kubernetes.patches import Patch

_SECRET_BYTES = 32


def render(job: JobOptions, made_by: str | None = None, patched: Sequence[Patch] = ()) -> str:
    """Returns the manifests of a job, for `kubectl apply -f`.

    The secret is not among them, since a manifest is kept where many can read it; see `secret`.

    Args:
      job: the job.
      made_by: the command that makes the same text again, for the comment at the top.
      patched: patches of the objects, which are merged in their order.

    Returns:
      YAML documents.

    Raises:
      ClusterConfigError: PyYAML is not installed, or a patch fits no object.

    Example:
      >>> from tfdist import kubernetes
      >>> options = kubernetes.JobOptions("train", "example/train:1", ("python", "train.py"))
      >>> print(kubernetes.render(options))
    """
    documents: list[tuple[str, Object]] = []
    if job.priority is not None:
        documents.append(("The pods' priority in the whole cluster.", objects.priority_class(job)))
    if job.engine not in engines.HAVE_A_SERVICE:
        documents.append(("Gives each pod a name.", objects.service(job)))
    documents += [
        ("Pods that must stay when nodes are drained.", budget)
        for budget in objects.disruption_budgets(job)
    ]
    if job.volcano is not None:
        documents.append(
            ("The pods that Volcano starts together, or not at all.", objects.pod_group(job))
        )
    if job.tls_issuer is not None:
        documents.append(
            ("The certificate of all pods, of cert-manager.", objects.certificate(job))
        )
    if job.network_policy:
        documents.append(("The sources that can connect to the pods.", objects.network_policy(job)))
    if job.pod_monitor:
        documents.append(("Lets Prometheus read the pods' metrics.", objects.pod_monitor(job)))
    documents += engines.objects(job)
    if job.tasks_per_worker is not None:
        documents.append(
            ("Sets the number of workers by the data tasks that wait.", objects.autoscaler(job))
        )
    namespace = "" if job.namespace is None else f" --namespace {job.namespace}"
    head = [] if made_by is None else [f"Made by: {made_by}"]
    head.append("The secret, which does not belong in git:")
    tls = " --tls" if job.tls and job.tls_issuer is None else ""
    head.append(f"  tfdist k8s secret --name {job.name}{namespace}{tls} | kubectl apply -f -")
    top = _comment("\n".join(head))
    comments = [_comment(comment) for comment, _ in documents]
    found = patches.apply(patched, [document for _, document in documents])
    return top + "---\n".join(
        comment + yaml_text.dump(document)
        for comment, document in zip(comments, found, strict=True)
    )


def secret(name: str, namespace: str | None = None, tls: bool = False) -> str:
    """Returns the manifest of a new random secret, for the job of this name.

    Args:
      name: the job's.
      namespace: the job's.
      tls: whether it also has the authority of the certificates that the secret makes, by which
        Prometheus verifies the pods.

    Returns:
      A YAML document.

    Raises:
      ClusterConfigError: a name cannot be used, or PyYAML, or with `tls` cryptography, is not
        installed.
    """
    # Checks the names.
    job = JobOptions(name, "none", ("none",), namespace=namespace)
    value = secrets.token_hex(_SECRET_BYTES).encode()
    # Prometheus sends the token; the secret cannot be derived from it.
    fields = {"secret": value, METRICS_TOKEN: metrics_token(value).encode()}
    if tls:
        from tfdist.control.tls.authority import certificate_of  # needs an extra

        fields[AUTHORITY] = certificate_of(value)
    return yaml_text.dump(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": metadata(job, secret_name(job)),
            "type": "Opaque",
            # Another value would shut a running job's new pods out of it.
            "immutable": True,
            "data": {key: base64.b64encode(text).decode() for key, text in fields.items()},
        }
    )


def _comment(text: str) -> str:
    # A word of the user's may hold a line break, of which YAML knows several, or a control
    # character, which YAML forbids in comments too.
    lines = ("".join(c if c.isprintable() else "?" for c in line) for line in text.split("\n"))
    return "".join(f"# {line}\n" for line in lines)
