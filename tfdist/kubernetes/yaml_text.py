"""Objects as text of YAML, and back. Needs PyYAML, the extra `k8s`."""

from __future__ import annotations

import re
from typing import Any

from tfdist._extras import install_command
from tfdist.errors import ClusterConfigError
from tfdist.kubernetes.names import Object

# Words that no reader of YAML takes for something else than text. Others are quoted: Kubernetes'
# own reader, for instance, takes 1e3 for a number where PyYAML does not.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]+")
_NOT_WORDS = frozenset({"yes", "no", "on", "off", "true", "false", "null", "nan", "inf"})


def dump(document: Object) -> str:
    """Returns an object as YAML.

    Raises:
      ClusterConfigError: PyYAML is not installed.
    """
    yaml = _pyyaml()

    safe: Any = yaml.SafeDumper

    class Dumper(safe):
        """Indents lists, repeats equal parts, and quotes what could be something else than text."""

        def increase_indent(self, flow: bool = False, indentless: bool = False) -> Any:
            return super().increase_indent(flow, False)

        def ignore_aliases(self, data: object) -> bool:
            return True

    def text(dumper: Any, value: str) -> Any:
        is_plain = _PLAIN.fullmatch(value) and value.lower() not in _NOT_WORDS
        return dumper.represent_scalar(
            "tag:yaml.org,2002:str", value, style=None if is_plain else '"'
        )

    Dumper.add_representer(str, text)
    dumped: str = yaml.dump(document, Dumper=Dumper, sort_keys=False, width=10**9)
    return dumped


def load(text: str, source: str) -> list[Any]:
    """Returns the documents in a text of YAML.

    Args:
      text: the text.
      source: where it is from, for messages.

    Raises:
      ClusterConfigError: it is no YAML, or PyYAML is not installed.
    """
    yaml = _pyyaml()
    try:
        return list(yaml.safe_load_all(text))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ClusterConfigError(f"{source}: expected YAML: {error}") from None


def _pyyaml() -> Any:
    try:
        import yaml
    except ImportError:
        raise ClusterConfigError(
            f"manifests need PyYAML, which is not installed: {install_command('k8s')}"
        ) from None
    return yaml
