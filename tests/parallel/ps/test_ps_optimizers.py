"""One worker and one parameter server train as one process does, with every optimizer of Keras."""

from __future__ import annotations

import keras
import pytest

from support.ps_job import fit_dataset, on_job, served, train_like_alone
from support.training.models import classifier, difference, slots

STEPS = 20
optimizers = keras.optimizers

# Run on the server.
KNOWN = {
    "sgd": lambda: optimizers.SGD(0.1),
    "momentum": lambda: optimizers.SGD(0.05, momentum=0.9),
    "nesterov": lambda: optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "decay": lambda: optimizers.SGD(0.1, weight_decay=0.01),
    "adagrad": lambda: optimizers.Adagrad(0.05),
    "rmsprop": lambda: optimizers.RMSprop(0.003),
    "centered": lambda: optimizers.RMSprop(0.003, momentum=0.5, centered=True),
    "adam": lambda: optimizers.Adam(0.01),
    "amsgrad": lambda: optimizers.Adam(0.01, amsgrad=True),
    "adamw": lambda: optimizers.AdamW(0.01, weight_decay=0.1),
    "adamax": lambda: optimizers.Adamax(0.01),
    "ftrl": lambda: optimizers.Ftrl(0.1, l1_regularization_strength=0.001),
    "lion": lambda: optimizers.Lion(0.001),
    "clipnorm": lambda: optimizers.Adam(0.01, clipnorm=0.05),
    "global_clipnorm": lambda: optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.05),
    "clipvalue": lambda: optimizers.SGD(0.1, clipvalue=0.01),
    "accumulation": lambda: optimizers.Adam(0.01, gradient_accumulation_steps=3),
    "schedule": lambda: optimizers.Adam(optimizers.schedules.CosineDecay(0.01, STEPS)),
    "loss_scale": lambda: optimizers.LossScaleOptimizer(
        optimizers.SGD(0.1), initial_scale=8.0, dynamic_growth_steps=3
    ),
}

AVERAGED = {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 3}


class DoubleSGD(optimizers.SGD):
    """Does something else than the class that the servers know."""

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(2 * gradient, variable, learning_rate)


# These run on the worker, which pushes the changes.
OTHERS = {
    "nadam": lambda: optimizers.Nadam(0.01),
    "adadelta": lambda: optimizers.Adadelta(0.5),
    "adafactor": lambda: optimizers.Adafactor(0.01),
    "lamb": lambda: optimizers.Lamb(0.01),
    "loss_scale_nadam": lambda: optimizers.LossScaleOptimizer(optimizers.Nadam(0.01)),
    "moving_average": lambda: optimizers.SGD(0.1, **AVERAGED),
    "average_of_accumulated": lambda: optimizers.Adam(
        0.01, gradient_accumulation_steps=2, **AVERAGED
    ),
    "subclass": lambda: DoubleSGD(0.05, momentum=0.9),
}


def _trained(name, make, tolerance, on_server):
    model = train_like_alone(lambda: classifier(make()), fit_dataset(STEPS), tolerance)
    strategy = model.distribute_strategy
    places = [on for _, on in strategy.extended.optimizer_places.values()]
    assert places == [on_server], name
    stats = strategy.communication_stats()
    assert stats.pushes == STEPS and stats.dropped_pushes == 0


@pytest.mark.long("*ftrl", "*schedule", "*accumulation", "*adagrad", covered_by="the other cases")
@pytest.mark.long(
    "*-momentum",
    "*-nesterov",
    "*-rmsprop",
    "*-centered",
    "*-amsgrad",
    "*-adamw",
    "*-adamax",
    "*-lion",
    "*-clipnorm",
    "*-clipvalue",
    covered_by="the other cases, single/ps/test_server_optimizers.py",
)
@pytest.mark.parametrize("name", KNOWN)
@on_job(1)
def test_on_the_server(ctx, name):
    if not served():
        _trained(name, KNOWN[name], 1e-6, on_server=True)


@pytest.mark.long("*loss_scale_nadam", "*subclass", covered_by="the other cases")
@pytest.mark.long(
    "2-ranks-nadam", "*-adadelta", "*-adafactor", "*-lamb", covered_by="the other cases"
)
@pytest.mark.parametrize("name", OTHERS)
@on_job(1)
def test_on_the_worker(ctx, name):
    if not served():
        _trained(name, OTHERS[name], 1e-6, on_server=False)


@pytest.mark.long("*-momentum", covered_by="the other cases")
@pytest.mark.parametrize("name", ["adam", "momentum"])
@on_job(1)
def test_known_ones_on_the_worker_as_asked(ctx, name):
    if served():
        return
    model = train_like_alone(
        lambda: classifier(KNOWN[name]()), fit_dataset(STEPS), 1e-6, ps_optimizer="worker"
    )
    places = model.distribute_strategy.extended.optimizer_places
    assert [on for _, on in places.values()] == [False]


@on_job(1)
def test_constraints(ctx):
    if served():
        return

    def build():
        middle = [keras.layers.Dense(8, kernel_constraint=keras.constraints.MaxNorm(0.5))]
        return classifier(optimizers.Adam(0.05), middle=middle)

    model = train_like_alone(build, fit_dataset(STEPS), 1e-6)
    assert [on for _, on in model.distribute_strategy.extended.optimizer_places.values()] == [False]


@on_job(1)
def test_asking_for_the_server_in_vain(ctx):
    import tfdist

    if served():
        return
    strategy = tfdist.ParameterServerStrategy(ps_optimizer="server")
    with strategy.scope():
        model = classifier(optimizers.Nadam())
    with pytest.raises(ValueError, match="'nadam'.*ps_optimizer='server'.*Nadam is not one"):
        fit_dataset(1)(model)


@on_job(1, servers=2)
def test_two_servers_and_split_variables(ctx):
    if served():
        return
    model = train_like_alone(
        lambda: classifier(KNOWN["adam"]()), fit_dataset(STEPS), 1e-6, max_shard_bytes=64
    )
    assert difference(slots(model)[:1], [STEPS]) == 0
