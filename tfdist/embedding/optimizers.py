"""The optimizers of a table's rows. Arguments have Keras's names and defaults.

A server stores a row's slots with the row. Gradients of an id that occurs several times in a batch
are summed first, as for a dense variable. A step changes only rows that have a gradient in it;
other rows neither decay nor move. Bias corrections count the model's steps, not the row's.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from tfdist._types import KerasOptimizer
from tfdist.ops.ps.optimizer_config import OptimizerConfig, OptimizerKind
from tfdist.ops.ps.table_config import RowRule

if TYPE_CHECKING:
    import keras

_Kind = OptimizerKind
_Rule = RowRule
# Arguments of Keras's optimizers that a row's optimizer does not have, with their neutral values.
_OF_THE_MODEL = {
    "weight_decay": None,
    "clipnorm": None,
    "clipvalue": None,
    "global_clipnorm": None,
    "use_ema": False,
    "loss_scale_factor": None,
    "gradient_accumulation_steps": None,
}


# `None`: the rate of the model's optimizer.
LearningRate: TypeAlias = "float | keras.optimizers.schedules.LearningRateSchedule | None"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowOptimizer:
    """The base class of all row optimizers.

    Args:
      learning_rate: a number, a Keras `LearningRateSchedule`, or `None` for the rate of the model's
        optimizer in each step.
    """

    learning_rate: LearningRate = None

    _kind: ClassVar[int]
    _rule: ClassVar[int] = _Rule.ELEMENTWISE

    @property
    def rule(self) -> int:
        """The servers' update rule."""
        return self._rule

    @property
    def first_slots(self) -> tuple[float, ...]:
        """The initial values of a row's slots, where they are not 0."""
        return ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "learning_rate", as_learning_rate(self.learning_rate))

    def config(self) -> OptimizerConfig:
        """Returns the optimizer in the servers' form."""
        known = {field[0] for field in OptimizerConfig._fields_}
        fields = {k: v for k, v in dataclasses.asdict(self).items() if k in known}
        return OptimizerConfig(kind=self._kind, **fields)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments and the "name", from which `get` makes an equal optimizer."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {"name": _NAMES[type(self)], **fields}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SGD(RowOptimizer):
    """Gradient descent, with momentum."""

    momentum: float = 0.0
    nesterov: bool = False

    _kind = _Kind.SGD


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adagrad(RowOptimizer):
    """Adagrad (Duchi et al. 2011), with an accumulator for each element."""

    initial_accumulator_value: float = 0.1
    epsilon: float = 1e-7

    _kind = _Kind.ADAGRAD

    @property
    def first_slots(self) -> tuple[float, ...]:
        """The accumulator's initial value."""
        return (self.initial_accumulator_value,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowWiseAdagrad(Adagrad):
    """Adagrad with one accumulator for each row, of the mean of its squared gradient."""

    _rule = _Rule.ROWWISE_ADAGRAD


@dataclasses.dataclass(frozen=True, kw_only=True)
class RMSprop(RowOptimizer):
    """RMSprop (Tieleman and Hinton 2012)."""

    rho: float = 0.9
    momentum: float = 0.0
    epsilon: float = 1e-7
    centered: bool = False

    _kind = _Kind.RMSPROP


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adam(RowOptimizer):
    """Adam (Kingma and Ba 2015).

    Args:
      learning_rate: as for `RowOptimizer`.
      beta_1: the decay of the momentum.
      beta_2: the decay of the velocity.
      epsilon: for numerical stability.
      amsgrad: use the largest velocity so far.
      exact_decay: momentum and velocity of a row also decay, and move it, in steps without a
        gradient, as in a dense variable. The next lookup of the row makes up for these
        steps, at the learning rate of the latest step. Otherwise such steps do not change the row
        ("lazy Adam").
    """

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    amsgrad: bool = False
    exact_decay: bool = False

    _kind = _Kind.ADAM

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.exact_decay and self.amsgrad:
            raise ValueError("Adam of rows: expected exact_decay or amsgrad, received both")

    @property
    def rule(self) -> int:
        """The servers' update rule."""
        return _Rule.EXACT_ADAM if self.exact_decay else _Rule.ELEMENTWISE


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019) of rows that have a gradient.

    Args:
      learning_rate: as for `RowOptimizer`.
      beta_1: the decay of the momentum.
      beta_2: the decay of the velocity.
      epsilon: for numerical stability.
      amsgrad: use the largest velocity so far.
      exact_decay: must be False: with it rows would have to decay in all steps.
      weight_decay: before a step a row loses this fraction of itself, times the learning rate.
    """

    weight_decay: float = 0.004

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.exact_decay:
            raise ValueError("AdamW of rows: expected exact_decay=False, received True")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adamax(RowOptimizer):
    """Adamax (Kingma and Ba 2015), lazy."""

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    weight_decay: float | None = None

    _kind = _Kind.ADAMAX


@dataclasses.dataclass(frozen=True, kw_only=True)
class Nadam(RowOptimizer):
    """Adam with Nesterov's momentum (Dozat 2016), lazy.

    Its momentum schedule is a product over the model's steps, as for a dense variable.
    """

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    weight_decay: float | None = None

    _kind = _Kind.NADAM


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adadelta(RowOptimizer):
    """Adadelta (Zeiler 2012), lazy."""

    rho: float = 0.95
    epsilon: float = 1e-7
    weight_decay: float | None = None

    _kind = _Kind.ADADELTA


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lion(RowOptimizer):
    """Lion (Chen et al. 2023), lazy."""

    beta_1: float = 0.9
    beta_2: float = 0.99
    weight_decay: float | None = None

    _kind = _Kind.LION


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lamb(RowOptimizer):
    """Lamb (You et al. 2020), with a trust ratio for each row.

    Keras and the paper divide the norm of a whole variable (a layer) by the norm of its update.
    Here each row counts as a layer: the norm of its update is the row's norm times the learning
    rate. A row of zeros moves by Adam's update. Momentum and velocity are lazy.
    """

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    weight_decay: float | None = None

    _kind = _Kind.ADAM
    _rule = _Rule.LAMB


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adafactor(RowOptimizer):
    """Adafactor (Shazeer and Stern 2018), with each row as a separate vector.

    This is the paper's algorithm 5, for vectors: a second moment for each element, as Keras keeps
    it for a variable of one dimension. Keras factors the second moment of a matrix into rows and
    columns; rows on all servers would share a column's factor. Both root-mean-squares are the
    row's, not the whole variable's as in Keras: the row's value, which multiplies the step size,
    and the update's, which is clipped. The learning rate is at most one over the root of the
    model's step.

    Args:
      learning_rate: as for `RowOptimizer`.
      beta_2_decay: the exponent with which the second moment's decay approaches 1.
      epsilon_1: added to squared gradients.
      epsilon_2: the minimum root-mean-square of a row.
      clip_threshold: the maximum root-mean-square of an update.
      weight_decay: as for `AdamW`; `None`: none.
    """

    beta_2_decay: float = -0.8
    epsilon_1: float = 1e-30
    epsilon_2: float = 1e-3
    clip_threshold: float = 1.0
    weight_decay: float | None = None

    _kind = _Kind.RMSPROP
    _rule = _Rule.ADAFACTOR


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ftrl(RowOptimizer):
    """Ftrl-proximal (McMahan et al. 2013)."""

    learning_rate_power: float = -0.5
    initial_accumulator_value: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    l2_shrinkage_regularization_strength: float = 0.0
    beta: float = 0.0

    _kind = _Kind.FTRL

    @property
    def first_slots(self) -> tuple[float, ...]:
        """The accumulator's initial value."""
        return (self.initial_accumulator_value,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupFtrl(Ftrl):
    """Ftrl with a penalty on each row's norm, which sets rows of little use to 0.

    Yue et al. 2021, "Adaptive Optimizers with Sparse Group Lasso for Neural Networks in CTR
    Prediction".

    Args:
      learning_rate: as for `RowOptimizer`.
      learning_rate_power: as for `Ftrl`.
      initial_accumulator_value: the accumulators' initial value.
      l1_regularization_strength: the penalty on each element.
      l2_regularization_strength: the penalty on each element's square.
      l2_shrinkage_regularization_strength: the shrinkage of each element.
      beta: added to the root of the accumulator.
      l21_regularization_strength: the penalty on a row's norm, times the root of its width.
    """

    l21_regularization_strength: float = 0.0

    _rule = _Rule.GROUP_FTRL


# A row optimizer, one of Keras, a name, or a name and arguments; see `get`.
AnyRowOptimizer: TypeAlias = "RowOptimizer | KerasOptimizer | dict[str, Any] | str"

_BY_NAME: dict[str, tuple[type[RowOptimizer], dict[str, Any]]] = {
    "sgd": (SGD, {}),
    "adagrad": (Adagrad, {}),
    "rowwise_adagrad": (RowWiseAdagrad, {}),
    "rmsprop": (RMSprop, {}),
    "adam": (Adam, {}),
    "exact_adam": (Adam, {"exact_decay": True}),
    "adamw": (AdamW, {}),
    "adamax": (Adamax, {}),
    "nadam": (Nadam, {}),
    "adadelta": (Adadelta, {}),
    "adafactor": (Adafactor, {}),
    "lamb": (Lamb, {}),
    "lion": (Lion, {}),
    "ftrl": (Ftrl, {}),
    "group_ftrl": (GroupFtrl, {}),
}
_NAMES = {of: name for name, (of, fixed) in _BY_NAME.items() if not fixed}
# By class name in Keras 3 and tf_keras, which lack these two.
_OF_KERAS = {of.__name__: of for of in _NAMES if of not in (RowWiseAdagrad, GroupFtrl)}


def as_learning_rate(rate: LearningRate | dict) -> LearningRate:
    """Returns a learning rate, also from the configuration that Keras saves.

    Raises:
      ValueError: the rate is no number from 0 on, no schedule, and not `None`.
    """
    if isinstance(rate, dict):
        import keras

        return keras.saving.deserialize_keras_object(rate)
    is_number = isinstance(rate, int | float) and not isinstance(rate, bool) and rate >= 0
    if rate is None or is_number or callable(rate):
        return rate
    raise ValueError(
        "an embedding's learning_rate: expected a number from 0 on, a LearningRateSchedule, or "
        f"None, received {rate!r}"
    )


def get(optimizer: AnyRowOptimizer) -> RowOptimizer:
    """Returns a row optimizer.

    Args:
      optimizer: a `RowOptimizer`, a name such as "adagrad" or "exact_adam", a dict of a "name" and
        arguments, or an optimizer of Keras 3 or tf_keras, whose learning rate becomes the table's.

    Raises:
      ValueError: there is no such optimizer, or it has an option that row optimizers lack.
    """
    if isinstance(optimizer, RowOptimizer):
        return optimizer
    if isinstance(optimizer, dict):
        arguments = dict(optimizer)
        name = arguments.pop("name", None)
    else:
        name, arguments = optimizer, {}
    if isinstance(name, str) and name.lower() in _BY_NAME:
        of, fixed = _BY_NAME[name.lower()]
        return of(**{**fixed, **arguments})
    if not isinstance(optimizer, str | dict) and type(optimizer).__name__ in _OF_KERAS:
        return _from_keras(optimizer)
    raise ValueError(
        f"an embedding's optimizer: expected one of {', '.join(_BY_NAME)}, an optimizer of "
        f"tfdist.embedding, or one of Keras called {', '.join(_OF_KERAS)}; received {optimizer!r}"
    )


def _from_keras(optimizer: KerasOptimizer) -> RowOptimizer:
    config = optimizer.get_config()
    of = _OF_KERAS[type(optimizer).__name__]
    names = {field.name for field in dataclasses.fields(of)} - {"learning_rate"}
    for name, harmless in _OF_THE_MODEL.items():
        if name not in names and config.get(name, harmless) not in (harmless, None):
            raise ValueError(
                f"an embedding's optimizer: expected {type(optimizer).__name__} without {name}, "
                f"received {name}={config[name]!r}: give it to the model's optimizer"
            )
    rate = optimizer._learning_rate
    if not callable(rate) or hasattr(rate, "dtype"):
        rate = float(config["learning_rate"])
    return of(learning_rate=rate, **{name: config[name] for name in names if name in config})
