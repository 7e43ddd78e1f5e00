"""How workers that train alone combine what they have learned: rules of `LocalUpdateStrategy`.

A rule, such as `BMUF(0.9)`, is a value; the strategy holds the state.
See docs/guides/local_updates.md.
"""

from tfdist.rules.admm import ADMM
from tfdist.rules.bmuf import BMUF
from tfdist.rules.diloco import DiLoCo
from tfdist.rules.easgd import EASGD
from tfdist.rules.model_averaging import ModelAveraging
from tfdist.rules.post_local_sgd import PostLocalSGD
from tfdist.rules.rule import Rule
from tfdist.rules.streaming_diloco import StreamingDiLoCo

__all__ = [
    "ADMM",
    "BMUF",
    "EASGD",
    "DiLoCo",
    "ModelAveraging",
    "PostLocalSGD",
    "Rule",
    "StreamingDiLoCo",
]
